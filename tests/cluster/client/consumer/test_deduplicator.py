"""Deduplicator: duplicates are skipped, failures are retried, and kills repeat at most one listener call."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from cluster.client import (
    ConsumeStatus,
    Deduplicator,
    MemorySeen,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    SqliteSeen,
    aio,
)
from cluster.client.consumer.seen_stores import SeenStore
from cluster.client.errors import ConfigInvalid
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_pull_consumer import committed
from tests.eventually import LIMIT_S, eventually

REPO = Path(__file__).parents[4]


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], SeenStore]:
    def make(max_keys: int = 1000) -> SeenStore:
        return (
            MemorySeen(max_keys) if request.param == "memory" else SqliteSeen(tmp_path / "seen.db", max_keys)
        )

    return make


def message(key: str, body: bytes = b"x") -> MessageExt:
    return MessageExt("t", body, {"UNIQ_KEY": key})


def send_twice(cluster: Cluster, topic: str, count: int) -> None:
    """Send `count` messages, each twice with the same UNIQ_KEY, as a producer does whose response is lost."""
    with Producer(cluster.address, "twice") as producer:
        for number in [*range(count), *range(count)]:
            properties = {"UNIQ_KEY": f"id-{number}"}
            producer.send(Message(topic, str(number).encode(), properties=properties))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch", [1, 16])
def test_message_sent_twice_is_consumed_once(
    cluster: Cluster, group: str, make_store: Callable[[], SeenStore], is_async: bool, batch: int
) -> None:
    topic = cluster.topic()
    send_twice(cluster, topic, 60)
    consumed: list[bytes] = []

    def listen(messages: list[MessageExt]) -> None:
        consumed.extend(each.body for each in messages)

    async def listen_async(messages: list[MessageExt]) -> None:
        listen(messages)

    with Deduplicator(make_store()) as once:
        listener = once(listen_async if is_async else listen)
        config = PushConfig(consume_batch=batch, commit_interval_ms=20)
        with PushConsumer(cluster.address, group, listener, config=config) as consumer:
            consumer.subscribe(topic)
            eventually(lambda: committed(cluster, group, topic) == 120)
        assert once.skipped == 60
    assert sorted(map(int, consumed)) == list(range(60))


def test_asyncio_consumer_skips_duplicates(cluster: Cluster, group: str, tmp_path: Path) -> None:
    topic = cluster.topic()
    send_twice(cluster, topic, 20)
    consumed: list[bytes] = []
    once = Deduplicator(SqliteSeen(tmp_path / "seen.db"))

    @once
    async def listen(messages: list[MessageExt]) -> None:
        consumed.extend(each.body for each in messages)

    async def consume() -> None:
        config = PushConfig(commit_interval_ms=20)
        async with aio.PushConsumer(cluster.address, group, listen, config=config) as consumer:
            await consumer.subscribe(topic)
            await asyncio.to_thread(eventually, lambda: committed(cluster, group, topic) == 40)

    asyncio.run(consume())
    once.close()
    assert sorted(map(int, consumed)) == list(range(20))


def test_ordered_consumer_with_business_key_consumes_each_order_once(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address) as producer:
        for number in (1, 2, 1, 3, 2, 3):
            producer.send(topic, f"attempt {number}".encode(), keys=f"order-{number}", sharding_key="one")
    consumed: list[str | None] = []
    once = Deduplicator(key=lambda each: each.keys)
    listener = once(lambda messages: consumed.extend(each.keys for each in messages))
    with PushConsumer(cluster.address, group, listener, ordered=True) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: once.skipped == 3 and len(consumed) == 3)
    assert consumed == ["order-1", "order-2", "order-3"]


def test_failed_message_is_retried_until_it_succeeds(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send_twice(cluster, topic, 3)
    calls: Counter[bytes] = Counter()

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        [each] = messages
        calls[each.body] += 1
        if each.body == b"1" and calls[b"1"] == 1:
            raise ValueError("the first attempt fails")
        failed = each.body == b"2" and calls[b"2"] == 1
        return ConsumeStatus.RECONSUME_LATER if failed else ConsumeStatus.CONSUME_SUCCESS

    once = Deduplicator()
    config = PushConfig(retry_backoff_ms=(1,), commit_interval_ms=20)
    with PushConsumer(cluster.address, group, once(listen), config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 6)
    assert calls == {b"0": 1, b"1": 2, b"2": 2}


def test_concurrent_calls_with_a_common_key_run_one_after_another() -> None:
    once, entered, leave = Deduplicator(), threading.Event(), threading.Event()
    calls: list[list[str]] = []

    @once
    def listen(messages: list[MessageExt]) -> None:
        calls.append([each.msg_id for each in messages])
        entered.set()
        assert leave.wait(LIMIT_S)

    first = threading.Thread(target=listen, args=([message("a"), message("b")],))
    first.start()
    assert entered.wait(LIMIT_S)
    second = threading.Thread(target=listen, args=([message("b"), message("c"), message("c")],))
    second.start()
    leave.set()
    first.join()
    second.join()
    assert calls == [["a", "b"], ["c"]]


def test_messages_of_a_batch_with_one_uniq_key_are_distinct() -> None:
    """RocketMQ 5.3.3 stores all messages of a batch with the same UNIQ_KEY."""
    consumed: list[bytes] = []
    listen = Deduplicator()(lambda messages: consumed.extend(each.body for each in messages))
    listen([message("of the batch", b"1"), message("of the batch", b"2")])
    assert consumed == [b"1", b"2"]


def test_messages_without_a_key_are_never_skipped() -> None:
    consumed: list[MessageExt] = []
    listen = Deduplicator(key=lambda each: each.keys)(consumed.extend)
    for _ in range(2):
        listen([message("a")])
    assert len(consumed) == 2


def test_keys_beyond_the_window_count_as_new(make_store: Callable[[int], SeenStore]) -> None:
    store = make_store(3)
    for number in range(5):
        store.mark([f"{number}"])
        store.mark([f"{number}"])
    assert store.seen([f"{number}" for number in range(5)]) == {"2", "3", "4"}
    store.close()


def test_more_keys_than_parameters_of_a_query_are_found(make_store: Callable[[int], SeenStore]) -> None:
    store, keys = make_store(5_000), [f"{number}" for number in range(2_000)]
    store.mark(keys)
    assert store.seen([*keys, "another"]) == set(keys)
    store.close()


def test_sqlite_file_is_shared_and_kept(tmp_path: Path) -> None:
    one, other = SqliteSeen(tmp_path / "seen.db"), SqliteSeen(tmp_path / "seen.db")
    one.mark(["a"])
    assert other.seen(["a", "b"]) == {"a"}
    one.close()
    other.close()
    reopened = SqliteSeen(tmp_path / "seen.db")
    assert reopened.seen(["a"]) == {"a"}
    reopened.close()


def test_store_that_cannot_mark_does_not_repeat_the_effect(caplog: pytest.LogCaptureFixture) -> None:
    class FullDisk(MemorySeen):
        def mark(self, keys: Sequence[str]) -> None:
            raise OSError(28, "No space left on device")

    calls: list[int] = []
    listen = Deduplicator(FullDisk())(lambda messages: calls.append(len(messages)))
    listen([message("a")])
    assert calls == [1]


def test_store_that_cannot_be_read_fails_the_call() -> None:
    class Unreadable(MemorySeen):
        def seen(self, keys: Collection[str]) -> set[str]:
            raise OSError(5, "Input/output error")

    calls: list[int] = []
    listen = Deduplicator(Unreadable())(lambda messages: calls.append(len(messages)))
    with pytest.raises(OSError, match="Input/output"):
        listen([message("a")])
    assert not calls


def test_invalid_arguments_name_their_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="max_keys is 0: it must be an integer greater than 0"):
        MemorySeen(0)
    with pytest.raises(ConfigInvalid, match="existing directory"):
        SqliteSeen(tmp_path / "missing" / "seen.db")
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigInvalid, match="give a new file"):
        SqliteSeen(other)
    with pytest.raises(ConfigInvalid, match="key is 'id': give a function"):
        Deduplicator(key="id")  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid, match="the listener is None"):
        Deduplicator()(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key returned 7"):
        Deduplicator(key=lambda _: 7)(print)([message("a")])  # type: ignore[arg-type, return-value]


def test_kill_repeats_effect_only_between_effect_and_mark(cluster: Cluster, tmp_path: Path) -> None:
    """No kill loses a message. Only a kill between the effect and the mark repeats an effect, once."""
    topic = cluster.topic(queues=1)
    effects = {"effect": ["1"], "mark": ["1", "1"], "commit": ["1"]}

    def start(kill_at: str, step: str) -> subprocess.Popen[bytes]:
        arguments = [cluster.address, f"killed-at-{kill_at}", topic, str(tmp_path / f"{kill_at}.db")]
        command = [sys.executable, "-m", "tests.cluster.client.consumer.once_member", *arguments]
        (tmp_path / kill_at).touch()
        return subprocess.Popen([*command, str(tmp_path / kill_at), step], cwd=REPO, stdin=subprocess.PIPE)

    def lines(kill_at: str) -> list[str]:
        return sorted((tmp_path / kill_at).read_text().split())

    with Producer(cluster.address) as producer:
        producer.send(topic, b"1")
        for victim in [start(step, step) for step in effects]:
            with victim:
                assert victim.wait(LIMIT_S) == -signal.SIGKILL
        assert all(committed(cluster, f"killed-at-{step}", topic) == 0 for step in effects)
        producer.send(topic, b"2")
    successors = [start(step, "never") for step in effects]
    eventually(lambda: all("2" in lines(step) and len(lines(step)) > len(effects[step]) for step in effects))
    for successor in successors:
        with successor:
            assert successor.stdin is not None
            successor.stdin.close()
            assert successor.wait(LIMIT_S) == 0
    assert {step: lines(step) for step in effects} == {step: [*effects[step], "2"] for step in effects}
    assert all(committed(cluster, f"killed-at-{step}", topic) == 2 for step in effects)
