"""Admin client and dead letters: count, list, resend to the group or the topic, purge."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from actors.broker.core.sending.send import Sender
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from cluster.client import Admin, Message, MessageExt, MessageQueue, Producer, PushConfig, PushConsumer, aio
from cluster.client import reconsume_later as later
from cluster.client.admin.aio_broker_admin import TOOLS_GROUP
from cluster.client.errors import BrokerRefused, ConfigInvalid
from tests.eventually import eventually

from .conftest import Cluster
from .test_pull_consumer import committed, fill

CONFIG = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.address) as opened:
        yield opened


def dead_letter(cluster: Cluster, group: str, topic: str, count: int) -> None:
    """Make all `count` messages of a topic dead letters of the group."""
    with PushConsumer(cluster.address, group, lambda _messages: later(-1), config=CONFIG) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == count)


def consume(cluster: Cluster, group: str, topic: str, count: int) -> list[MessageExt]:
    """Return the messages that the group gets, at least `count`."""
    seen: list[MessageExt] = []
    with PushConsumer(cluster.address, group, seen.extend, config=CONFIG) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(seen) >= count)
    return seen


def bodies(messages: list[MessageExt]) -> set[bytes]:
    return {message.body for message in messages}


def test_dead_letters_are_listed_with_origin_and_counted(cluster: Cluster, admin: Admin, group: str) -> None:
    topic = cluster.topic(queues=1)
    assert (admin.dead_letters(group), admin.dead_letter_count(group)) == ([], 0)
    fill(cluster, topic, 40)
    dead_letter(cluster, group, topic, 40)
    letters = admin.dead_letters(group)
    assert [int(each.body) for each in letters] == sorted(range(40), key=[int(x.body) for x in letters].index)
    assert bodies(letters) == {f"{n}".encode() for n in range(40)}
    assert {each.properties["RETRY_TOPIC"] for each in letters} == {topic}
    assert {each.broker_name for each in letters} == {"a", "b"}
    assert admin.dead_letter_count(group) == admin.dead_letter_counts()[group] == 40
    assert len(admin.dead_letters(group, 1)) == 2, "one of each broker"
    with pytest.raises(ConfigInvalid, match="max_messages is 0: it must be greater than 0"):
        admin.dead_letters(group, 0)


def test_pages_have_all_dead_letters_the_newest_first(cluster: Cluster, admin: Admin, group: str) -> None:
    topic = cluster.topic(queues=1)
    assert (admin.dead_letter_page(group).messages, admin.dead_letter_page(group).total) == ([], 0)
    fill(cluster, topic, 40)
    dead_letter(cluster, group, topic, 40)
    everything = admin.dead_letter_page(group)
    assert (everything.total, everything.before) == (40, None)
    assert {each.broker_name for each in everything.messages} == {"a", "b"}
    times_ms = [each.store_timestamp for each in everything.messages]
    assert times_ms == sorted(times_ms, reverse=True)
    for size in (1, 7, 39, 40):
        found: list[MessageExt] = []
        before = None
        for number in range(1, 41):
            page = admin.dead_letter_page(group, size, before=before)
            found += page.messages
            before = page.before
            assert (page.total, len(found)) == (40, min(number * size, 40))
            if before is None:
                break
        assert found == everything.messages
    with pytest.raises(ConfigInvalid, match="max_messages is 0: it must be greater than 0"):
        admin.dead_letter_page(group, 0)


def test_resend_to_group_reaches_only_this_group(cluster: Cluster, admin: Admin, group: str) -> None:
    topic = cluster.topic(queues=1)
    with Producer(cluster.address, "sends") as producer:
        result = producer.send(Message(topic, b"x" * 10_000, "tag", "key", {"colour": "red"}))
    dead_letter(cluster, group, topic, 1)
    other = consume(cluster, f"{group}-other", topic, 1)
    assert admin.resend_dead_letters(group) == 1
    [again] = consume(cluster, group, topic, 1)
    assert (again.topic, again.body, again.tags, again.keys) == (topic, b"x" * 10_000, "tag", "key")
    assert (again.uniq_key, again.properties["colour"]) == (result.msg_id, "red")
    assert again.reconsume_times == 0, "the message may be retried 16 times again"
    assert again.properties["ORIGIN_MESSAGE_ID"] == result.offset_msg_id
    assert admin.dead_letters(group) == []
    assert len(admin.dead_letters(group, include_handled=True)) == 1
    assert admin.resend_dead_letters(group) == 0
    with Producer(cluster.address, "sends") as producer:
        producer.send(topic, b"last")
    assert bodies(consume(cluster, f"{group}-other", topic, 1)) == {b"last"}
    assert len(other) == 1


def test_resend_to_topic_reaches_all_groups(cluster: Cluster, admin: Admin, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 3)
    dead_letter(cluster, group, topic, 3)
    assert len(consume(cluster, f"{group}-other", topic, 3)) == 3
    assert admin.resend_dead_letters(group, to="topic") == 3
    for each in (group, f"{group}-other"):
        assert bodies(consume(cluster, each, topic, 3)) == {b"0", b"1", b"2"}


def test_selected_message_stays_pending_behind_older_one(cluster: Cluster, admin: Admin, group: str) -> None:
    topic = cluster.topic(queues=1, brokers=["a"])
    fill(cluster, topic, 3)
    dead_letter(cluster, group, topic, 3)
    first, second, third = admin.dead_letters(group)
    assert admin.resend_dead_letters(group, [second]) == 1
    assert admin.dead_letters(group) == [first, second, third]
    assert admin.resend_dead_letters(group, [second, first]) == 2
    assert admin.dead_letters(group) == [third]
    assert len(consume(cluster, group, topic, 3)) == 3


def test_failed_resend_keeps_unsent_messages_pending_and_counted(
    clusters: Callable[..., Cluster], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, resent = Sender.send, itertools.count(1)

    def fail(handler: Sender, context: RequestContext) -> None:
        if context.header.producer_group == TOOLS_GROUP and next(resent) == 40:
            raise Refused(ResponseCode.SYSTEM_BUSY, "the disk is full")
        send(handler, context)

    monkeypatch.setattr(Sender, "send", fail)
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 50)
    dead_letter(cluster, group, topic, 50)
    with Admin(cluster.address) as admin:
        with pytest.raises(BrokerRefused, match="the disk is full"):
            admin.resend_dead_letters(group)
        assert admin.dead_letter_count(group) == 50 - 32
        table = admin.broker_runtime("a")
        assert (table["deadLettersPending"], table["messagesSentBack"]) == ("18", "50")
        assert admin.resend_dead_letters(group) == 18
        assert admin.broker_runtime("a")["deadLettersPending"] == "0"


def test_purge_marks_messages_until_a_time(cluster: Cluster, admin: Admin, group: str) -> None:
    topic = cluster.topic(queues=1, brokers=["a"])
    fill(cluster, topic, 3)
    dead_letter(cluster, group, topic, 3)
    [oldest, *_] = letters = admin.dead_letters(group)
    before = oldest.store_timestamp
    assert admin.purge_dead_letters(group, before) == 0
    assert admin.purge_dead_letters(group, dry_run=True) == 3
    assert admin.dead_letters(group) == letters
    assert admin.purge_dead_letters(group) == 3
    assert admin.dead_letters(group) == []
    assert admin.dead_letters(group, include_handled=True) == letters
    assert admin.purge_dead_letters(group) == 0


def test_resend_refuses_messages_that_are_not_dead_letters(
    cluster: Cluster, admin: Admin, group: str
) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 8)
    [message] = admin.messages_at(MessageQueue(topic, "a", 0), 0)
    with pytest.raises(ConfigInvalid, match=f"is not a dead letter of group '{group}'"):
        admin.resend_dead_letters(group, [message])
    with pytest.raises(ConfigInvalid, match="to is 'queue': it must be 'group' or 'topic'"):
        admin.resend_dead_letters(group, to="queue")  # type: ignore[arg-type]


def test_async_admin_offers_dead_letters(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 2)
    dead_letter(cluster, group, topic, 2)

    async def story() -> tuple[int, int]:
        async with aio.Admin(cluster.address) as opened:
            assert len(await opened.dead_letters(group)) == 2
            return await opened.resend_dead_letters(group), await opened.dead_letter_count(group)

    assert asyncio.run(story()) == (2, 0)
