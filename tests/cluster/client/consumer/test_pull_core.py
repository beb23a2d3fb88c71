"""A pull consumer whose lease ends, whose queue is another's, whose queue has not begun."""

from __future__ import annotations

import pytest

from cluster.client import ConsumerConfig, MessageQueue, PullConsumer
from cluster.client.consumer.pull_core import MIN_SHARE_BYTES
from cluster.client.errors import CommitFenced, QueueNotAssigned
from tests.cluster.client.conftest import LONG_LEASE_MS, Cluster
from tests.cluster.client.test_pull_consumer import fill, poll_numbers
from tests.eventually import eventually

QUICK = ConsumerConfig(sync_interval_ms=200, lease_ms=LONG_LEASE_MS, auto_commit=False)


def test_a_suspended_consumer_hands_out_nothing_and_drops_what_is_lost(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    with PullConsumer(cluster.address, group, config=QUICK) as consumer:
        consumer.subscribe(topic)
        poll_numbers(consumer, 1)
        core, thread = consumer._consumer._core, consumer._thread
        thread.call(lambda: core.suspended(is_suspended=True))
        fill(cluster, topic, 20)
        assert consumer.poll(timeout_ms=100) == []
        thread.call(lambda: core.suspended(is_suspended=False))
        assert consumer.poll(timeout_ms=60_000)
        queue = consumer.assignment()[0]
        thread.call(lambda: core.lost(queue))
        assert queue not in consumer.assignment()
        with pytest.raises(QueueNotAssigned):
            consumer.position(queue)


def test_a_queue_whose_commit_is_fenced_is_given_up_and_asked_for_again(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 20)
    with PullConsumer(cluster.address, group, config=QUICK) as consumer:
        consumer.subscribe(topic)
        poll_numbers(consumer, 20)
        core = consumer._consumer._core
        queue = consumer.assignment()[0]
        core.deliveries.states[queue].generation -= 1
        with pytest.raises(CommitFenced, match="others hold these queues now"):
            consumer.commit()
        eventually(lambda: queue in consumer.assignment())
        assert poll_numbers(consumer, consumer.end_offset(queue))  # nothing of it was committed
        consumer.commit()
        assert consumer.committed(queue) == consumer.end_offset(queue)


def test_a_queue_that_has_not_begun_is_not_committed(cluster: Cluster, group: str) -> None:
    queue = MessageQueue(cluster.topic(queues=1), "a", 0)
    with PullConsumer(cluster.address, group, config=QUICK) as consumer:
        consumer.start()
        consumer._thread.call(lambda: consumer._consumer._core._add(queue, 0))
        consumer.commit()
        assert consumer.lag() == {}
        assert consumer.committed(queue) is None


def test_a_queue_among_many_still_has_room_for_a_message(cluster: Cluster, group: str) -> None:
    config = ConsumerConfig(prefetch_bytes=1_000)
    topic = cluster.topic(queues=1)
    with PullConsumer(cluster.address, group, config=config) as consumer:
        consumer.assign(consumer.queues(topic))
        assert consumer._consumer._core._share_bytes() == MIN_SHARE_BYTES
