"""ProcessQueue: the commit offset and the cache counters of one queue of a push consumer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.client.consumer.process_queue import ProcessQueue
from cluster.client.consumer.queue_work import CacheLimits


def test_unfinished_portion_blocks_commit_offset() -> None:
    queue = ProcessQueue(100)
    queue.arrived(120, 20, 2000)
    assert (queue.cached_messages, queue.cached_bytes, queue.span) == (20, 2000, 20)
    first, second = queue.take(100, 110, 10, 1000), queue.take(110, 120, 10, 1000)
    queue.finish(second)
    assert queue.commit_offset == 100
    assert (queue.cached_messages, queue.cached_bytes) == (10, 1000)
    queue.finish(first)
    assert queue.commit_offset == 120
    assert (queue.cached_messages, queue.cached_bytes) == (0, 0)


def test_repeated_finish_and_late_arrival_change_nothing() -> None:
    queue = ProcessQueue(0)
    queue.arrived(10, 10, 100)
    first, second = queue.take(0, 5, 5, 50), queue.take(5, 10, 5, 50)
    queue.finish(first)
    queue.finish(first)
    assert (queue.cached_messages, queue.cached_bytes, queue.commit_offset) == (5, 50, 5)
    queue.arrived(8, 0, 0)
    assert (queue.fetched_to, queue.span) == (10, 5)
    queue.finish(second)
    assert (queue.cached_messages, queue.cached_bytes, queue.commit_offset) == (0, 0, 10)


def test_limits_on_messages_bytes_and_span() -> None:
    """The span may equal its limit but not exceed it (RocketMQ DefaultMQPushConsumerImpl.pullMessage)."""
    limits = CacheLimits(messages=10, size_bytes=100, span=50)
    for next_offset, count, size_bytes, is_reached in (
        (9, 9, 99, False),
        (10, 10, 99, True),
        (9, 9, 100, True),
        (50, 1, 1, False),
        (51, 1, 1, True),
    ):
        queue = ProcessQueue(0)
        queue.arrived(next_offset, count, size_bytes)
        assert limits.are_reached_by(queue) is is_reached, (next_offset, count, size_bytes)


def test_filtered_messages_are_committed_after_earlier_ones() -> None:
    queue = ProcessQueue(0)
    queue.arrived(9, 7, 70)
    portion = queue.take(0, 5, 5, 50)
    queue.finish(queue.take(5, 9, 0, 20))
    queue.discard_filtered(2)
    assert (queue.commit_offset, queue.next_offset) == (0, 9)
    queue.finish(portion)
    assert (queue.commit_offset, queue.span) == (9, 0)
    assert (queue.cached_messages, queue.cached_bytes) == (0, 0)


def test_take_before_next_offset_is_refused() -> None:
    queue = ProcessQueue(10)
    with pytest.raises(ValueError, match="do not follow"):
        queue.take(9, 12, 3, 30)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_commit_offset_is_first_unfinished_in_any_order(sizes: list[int], random) -> None:  # type: ignore[no-untyped-def]
    queue = ProcessQueue(0)
    portions = [queue.take(queue.next_offset, queue.next_offset + size, size, size) for size in sizes]
    queue.arrived(queue.next_offset, sum(sizes), sum(sizes))
    order = list(portions)
    random.shuffle(order)
    committed = 0
    for portion in order:
        queue.finish(portion)
        unfinished = [each.begin for each in portions if not each.is_finished]
        assert queue.commit_offset == (min(unfinished) if unfinished else queue.next_offset)
        assert queue.commit_offset >= committed
        committed = queue.commit_offset
    assert (queue.cached_messages, queue.cached_bytes) == (0, 0)
