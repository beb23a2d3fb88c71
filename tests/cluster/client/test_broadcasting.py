"""Broadcasting push consumers: each member gets every message and keeps its offsets in a local file."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.client import Admin, MessageExt, MessageQueue, Producer, PushConfig, PushConsumer, aio
from cluster.client.errors import ConfigInvalid, DataDamaged
from cluster.client.transport.instance import local_address
from store.common.json_file import JsonConfigFile
from tests.eventually import eventually, eventually_async

from .conftest import Cluster
from .test_pull_consumer import committed, fill
from .test_push_consumer import Seen


@pytest.fixture
def config(tmp_path: Path) -> PushConfig:
    """Return the settings of a broadcasting consumer that keeps its offsets in the test's directory."""
    return PushConfig(
        message_model="broadcasting",
        local_offset_dir=str(tmp_path / "offsets"),
        sync_interval_ms=100,
        commit_interval_ms=20,
        retry_backoff_ms=(1,),
    )


def offset_file(config: PushConfig, group: str) -> Path:
    client_id = f"{local_address()}@{config.instance_name or 'DEFAULT'}"
    return Path(config.local_offset_dir) / client_id / group / "offsets.json"


def saved(config: PushConfig, group: str) -> dict[str, int]:
    """Return the offsets of the file, with RocketMQ's JSON objects as keys.

    While the file is replaced, only its backup exists.
    """
    table: dict[str, int] = (JsonConfigFile(offset_file(config, group)).load() or {}).get("offsetTable", {})
    return table


def send(cluster: Cluster, topic: str, numbers: range) -> None:
    values = [f"{number}" for number in numbers]
    with Producer(cluster.address, "fills") as producer:
        producer.send_many(topic, [value.encode() for value in values], sharding_keys=values)


def await_assignment(consumer: PushConsumer, config: PushConfig, group: str, queues: int) -> None:
    """Wait until the consumer has its queues and their first offsets are saved."""
    eventually(lambda: len(consumer.assignment()) == queues)
    assert len(saved(config, group)) >= queues


def test_every_member_gets_every_message_sent_after_its_start(
    cluster: Cluster, group: str, config: PushConfig
) -> None:
    topic = cluster.topic(queues=2)
    fill(cluster, topic, 50)
    first, late = Seen(), Seen()
    configs = [replace(config, instance_name=name) for name in ("one", "two")]
    with (
        PushConsumer(cluster.address, group, first, config=configs[0]) as one,
        PushConsumer(cluster.address, group, late, config=configs[1]) as two,
    ):
        one.subscribe(topic)
        await_assignment(one, configs[0], group, 4)
        send(cluster, topic, range(50, 100))
        first.wait_for(50)
        two.subscribe(topic)
        await_assignment(two, configs[1], group, 4)
        send(cluster, topic, range(100, 150))
        first.wait_for(100)
        late.wait_for(50)
    assert first.numbers == Counter(range(50, 150))
    assert late.numbers == Counter(range(100, 150))
    assert committed(cluster, group, topic) == 0, "the brokers keep no offsets of the group"


def test_restarted_member_resumes_where_it_was_closed(
    cluster: Cluster, group: str, config: PushConfig
) -> None:
    topic = cluster.topic(queues=2)
    before, after = Seen(), Seen()
    with PushConsumer(cluster.address, group, before, config=config) as consumer:
        consumer.subscribe(topic)
        await_assignment(consumer, config, group, 4)
        send(cluster, topic, range(50))
        before.wait_for(50)
    send(cluster, topic, range(50, 100))  # while it is down
    with PushConsumer(cluster.address, group, after, config=config) as consumer:
        consumer.subscribe(topic)
        after.wait_for(50)
        eventually(lambda: sum(saved(config, group).values()) == 100)
    assert before.numbers == Counter(range(50))
    assert after.numbers == Counter(range(50, 100))


def test_consume_from_earliest_replays_only_before_the_first_save(
    cluster: Cluster, group: str, config: PushConfig
) -> None:
    topic, seen, again = cluster.topic(queues=1), Seen(), Seen()
    config = replace(config, consume_from="earliest")
    fill(cluster, topic, 20)
    for listener in (seen, again):
        with PushConsumer(cluster.address, group, listener, config=config) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: sum(saved(config, group).values()) == 20)
            eventually(lambda consumer=consumer: len(consumer.assignment()) == 2)
    assert seen.numbers == Counter(range(20))
    assert not again.numbers


def test_member_gets_messages_of_queues_that_are_added_later(
    clusters: Callable[..., Cluster], group: str, config: PushConfig
) -> None:
    cluster = clusters(brokers=1)
    topic, seen = cluster.topic(queues=1), Seen()
    settings = replace(config, route_refresh_ms=20)
    with (
        PushConsumer(cluster.address, group, seen, config=settings) as consumer,
        Admin(cluster.address) as admin,
    ):
        consumer.subscribe(topic)
        await_assignment(consumer, config, group, 1)
        admin.create_topic(topic, queues=3)
        with Producer(cluster.address, "fills") as producer:
            for number in range(3):
                producer.send(topic, str(number), queue=MessageQueue(topic, "a", number))
        seen.wait_for(3)
    assert seen.numbers == Counter(range(3))


def test_offset_file_has_rocketmqs_name_and_format(cluster: Cluster, group: str, config: PushConfig) -> None:
    topic, seen = cluster.topic(queues=1), Seen()
    config = replace(config, instance_name="shop")
    path = offset_file(config, group)
    path.parent.mkdir(parents=True)
    # As RocketMQ's client writes it, with OffsetSerializeWrapper.toJson(true).
    key = f'"brokerName":"a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"{topic}"'
    path.write_text('{\n\t"offsetTable":{{\n\t\t\t' + key + "\n\t\t}:3\n\t}\n}")
    fill(cluster, topic, 20)
    with PushConsumer(cluster.address, group, seen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: saved(config, group).get(_key(topic, "a")) == 10)
        seen.wait_for(7)
    text = path.read_text()
    assert text.startswith('{"offsetTable":{{"brokerName":"a","queueId":0,"topic":')
    assert f"{_key(topic, 'a')}:10" in text
    assert path.with_name("offsets.json.bak").exists()


def _key(topic: str, broker: str) -> str:
    return f'{{"brokerName":"{broker}","queueId":0,"topic":"{topic}"}}'


def test_second_consumer_with_the_same_offset_file_is_refused(
    cluster: Cluster, group: str, config: PushConfig
) -> None:
    topic = cluster.topic(queues=1)
    with PushConsumer(cluster.address, group, Seen(), config=config) as consumer:
        consumer.subscribe(topic)
        other = PushConsumer(cluster.address, group, Seen(), config=config)
        with pytest.raises(ConfigInvalid, match="set a different instance_name"):
            other.start()
    with PushConsumer(cluster.address, group, Seen(), config=config) as consumer:
        consumer.subscribe(topic)  # the closed consumer has released the file


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"offsetTable":{"x":1}}', '{"offsetTable":{{"topic":"T"}:-1}}']
)
def test_damaged_offset_file_is_refused_without_a_backup(
    cluster: Cluster, group: str, config: PushConfig, text: str
) -> None:
    path = offset_file(config, group)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(DataDamaged, match=r"offsets\.json"):
        PushConsumer(cluster.address, group, Seen(), config=config).start()
    path.with_name("offsets.json.bak").write_text('{"offsetTable":{}}')
    PushConsumer(cluster.address, group, Seen(), config=config).start().close()
    assert path.read_text() == text


def test_failed_message_is_retried_then_discarded(cluster: Cluster, group: str, config: PushConfig) -> None:
    topic, attempts = cluster.topic(queues=1), Counter[int]()

    def listen(messages: list[MessageExt]) -> bool:
        attempts.update(int(message.body) for message in messages)
        return int(messages[0].body) != 1

    settings = replace(config, max_reconsume_times=2)
    with (
        PushConsumer(cluster.address, group, listen, config=settings) as consumer,
        Admin(cluster.address) as admin,
    ):
        consumer.subscribe(topic)
        await_assignment(consumer, config, group, 2)
        send(cluster, topic, range(4))
        eventually(lambda: sum(saved(config, group).values()) == 4)
        assert f"%DLQ%{group}" not in admin.topics()
    assert attempts == {0: 1, 1: 3, 2: 1, 3: 1}


def test_broadcasting_consumer_may_be_ordered_and_async(
    cluster: Cluster, group: str, config: PushConfig
) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 40)
    numbers: dict[str, list[int]] = {"a": [], "b": []}

    async def listen(messages: list[MessageExt]) -> bool:
        await asyncio.sleep(0)
        numbers[messages[0].broker_name].append(int(messages[0].body))
        return messages[0].reconsume_times > 0 or int(messages[0].body) != 7

    async def main() -> None:
        settings = replace(config, ordered=True, consume_from="earliest")
        async with aio.PushConsumer(cluster.address, group, listen, config=settings) as consumer:
            await consumer.subscribe(topic)
            await eventually_async(lambda: sum(map(len, numbers.values())) == 41)

    asyncio.run(main())
    found = [number for each in numbers.values() for number in each]
    assert sorted(found) == sorted([*range(40), 7])
    assert all(each == sorted(each) for each in numbers.values())


def test_invalid_broadcasting_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="message_model is 'all': give 'clustering' or 'broadcasting'"):
        PushConfig(message_model="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="cannot be used with message_model='broadcasting'"):
        PushConfig(message_model="broadcasting", retry="broker")
    with pytest.raises(ConfigInvalid, match="cannot be used with ordered=True"):
        PushConfig(ordered=True, retry="broker")
    (tmp_path / "file").touch()
    config = PushConfig(message_model="broadcasting", local_offset_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigInvalid, match="set local_offset_dir to a writable directory"):
        PushConsumer("127.0.0.1:1", "group", print, config=config).start()
