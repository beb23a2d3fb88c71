"""Offset resets by the admin client: live and dead groups, by time, earliest, latest and offset; previews."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.client import Admin, MessageQueue, PushConfig, PushConsumer
from cluster.client.errors import BrokerRefused, ConfigInvalid, GroupNotFound
from store.message.group_config import SubscriptionGroupConfig
from tests.eventually import NEVER_S, eventually

from .conftest import Cluster
from .test_push_consumer import Seen
from .test_push_control import send

# Only the release of a queue commits.
CONFIG = PushConfig(sync_interval_ms=100, commit_interval_ms=int(NEVER_S * 1000))


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.address) as opened:
        yield opened


@pytest.fixture
def queue(cluster: Cluster) -> MessageQueue:
    """Return the only queue of a topic with the messages 0 to 4."""
    topic = cluster.topic(queues=1, brokers=["a"])
    send(cluster, topic, *range(5))
    return MessageQueue(topic, "a", 0)


def test_dead_group_starts_at_the_reset_offset(
    cluster: Cluster, admin: Admin, group: str, queue: MessageQueue
) -> None:
    topic = queue.topic
    stored_ms = [message.store_timestamp for message in admin.messages_at(queue, 0, 5)]
    first_of_last_ms = stored_ms.index(stored_ms[4])
    admin.put_group(SubscriptionGroupConfig(group))
    positions: list[tuple[Any, int]] = [("latest", 5), ("earliest", 0), (stored_ms[4], first_of_last_ms)]
    for position, offset in positions:
        before = admin.committed_offsets(group, topic)
        assert admin.reset_offsets(group, topic, position, dry_run=True) == {queue: offset}
        assert admin.committed_offsets(group, topic) == before, "a preview changes nothing"
        assert admin.reset_offsets(group, topic, position) == {queue: offset}
        assert admin.committed_offsets(group, topic) == {queue: offset}
    admin.reset_offset(group, queue, 3)
    seen = Seen()
    with PushConsumer(cluster.address, group, seen, config=CONFIG) as consumer:
        consumer.subscribe(topic)
        seen.wait_for(2)
    assert set(seen.numbers) == {3, 4}


def test_live_member_consumes_and_commits_again_after_rewind(
    cluster: Cluster, admin: Admin, group: str, queue: MessageQueue
) -> None:
    seen = Seen()
    with PushConsumer(cluster.address, group, seen, config=CONFIG) as first:
        first.subscribe(queue.topic)
        seen.wait_for(5)
    assert admin.committed_offsets(group, queue.topic) == {queue: 5}
    with PushConsumer(cluster.address, group, seen, config=CONFIG) as consumer:
        consumer.subscribe(queue.topic)
        send(cluster, queue.topic, 5)
        seen.wait_for(6)
        admin.reset_offset(group, queue, 2)
        eventually(lambda: seen.numbers[5] == 2)
        eventually(lambda: sum(seen.numbers.values()) == 10)
    assert dict(seen.numbers) == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2}
    assert admin.committed_offsets(group, queue.topic) == {queue: 6}


def test_rewind_to_committed_end_is_committed_again(
    cluster: Cluster, admin: Admin, group: str, queue: MessageQueue
) -> None:
    """The last committed offset of a member equals the one that it must commit after the rewind."""
    admin.commit_offsets(group, {queue: 5})
    seen = Seen()
    with PushConsumer(cluster.address, group, seen, config=CONFIG) as consumer:
        consumer.subscribe(queue.topic)
        eventually(lambda: consumer.assignment() == [queue])
        admin.reset_offsets(group, queue.topic, "earliest")
        seen.wait_for(5)
    assert admin.committed_offsets(group, queue.topic) == {queue: 5}


def test_live_member_skips_to_latest(cluster: Cluster, admin: Admin, group: str, queue: MessageQueue) -> None:
    seen = Seen()
    with PushConsumer(cluster.address, group, seen, config=CONFIG) as consumer:
        consumer.subscribe(queue.topic)
        seen.wait_for(5)
        consumer.pause(queue)
        admin.reset_offset(group, queue, 1)
        assert admin.reset_offsets(group, queue.topic) == {queue: 5}
        consumer.resume(queue)
        send(cluster, queue.topic, 5)
        seen.wait_for(6)
    assert set(seen.numbers.values()) == {1}
    assert admin.committed_offsets(group, queue.topic) == {queue: 6}


def test_clone_copies_offsets_to_a_new_group(
    cluster: Cluster, admin: Admin, group: str, queue: MessageQueue
) -> None:
    admin.commit_offsets(group, {queue: 4})
    admin.clone_offsets(group, f"{group}-clone")
    seen = Seen()
    with PushConsumer(cluster.address, f"{group}-clone", seen, config=CONFIG) as consumer:
        consumer.subscribe(queue.topic)
        seen.wait_for(1)
    assert set(seen.numbers) == {4}


def test_invalid_resets_are_refused(admin: Admin, group: str, queue: MessageQueue) -> None:
    for position in ("newest", -2, 1.5, True):
        with pytest.raises(ConfigInvalid, match="must be 'earliest', 'latest' or a time in ms"):
            admin.reset_offsets(group, queue.topic, position)  # type: ignore[arg-type]
    for dry_run in (False, True):
        with pytest.raises(GroupNotFound, match="does not exist"):
            admin.reset_offsets(group, queue.topic, dry_run=dry_run)
    admin.put_group(SubscriptionGroupConfig(group))
    with pytest.raises(ConfigInvalid, match="is negative"):
        admin.reset_offset(group, queue, -1)
    with pytest.raises(BrokerRefused, match=r"Target offset 6 not in consume queue range \[0-5\]"):
        admin.reset_offset(group, queue, 6)
