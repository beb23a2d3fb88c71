"""One queue of a push consumer: what listeners get, what is too late, what is full, what is let go of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cluster.client.config import PushConfig
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.consumer.process_queue import ProcessQueue
from cluster.client.consumer.queue_work import Limits, QueueWork, Task
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, encode_record

QUEUE = MessageQueue("T", "a", 0)
FETCHER = cast("Fetcher", SimpleNamespace(queue=QUEUE))


def chunk(begin: int, count: int) -> Chunk:
    """Messages with the tags A, B, A, …"""
    records = bytearray()
    for offset in range(begin, begin + count):
        properties = b"TAGS\x01%s\x02" % b"AB"[offset % 2 : offset % 2 + 1]
        records += encode_record(RecordDraft("T", 0, b"%d" % offset, properties), offset, offset, 1, bytes(8))
    return Chunk(FETCHER, begin, begin + count, count, bytes(records))


def work(**settings: int) -> QueueWork:
    return QueueWork(QUEUE, 1, ProcessQueue(0), Limits.of(PushConfig(**settings), 1), FETCHER)


def taken(queue: QueueWork, count: int, now_ms: int = 0) -> Task:
    task, _ = queue.take(count, now_ms)
    assert task is not None
    return task


def offsets(task: Task) -> list[int]:
    return [message.queue_offset for message in task.messages]


def test_unwanted_messages_take_no_room_and_are_committed_past() -> None:
    queue = work()
    assert queue.put(chunk(0, 10), frozenset("B"))
    assert queue.process_queue.cached_messages == 10  # nobody has looked yet
    task = taken(queue, 100)
    assert offsets(task) == [1, 3, 5, 7, 9]
    assert queue.process_queue.cached_messages == 5
    assert not queue.settle(task, succeeded=True)
    assert (queue.process_queue.cached_messages, queue.process_queue.cached_bytes) == (0, 0)
    assert queue.process_queue.commit_offset == 10
    queue.put(chunk(10, 3), frozenset("C"))
    assert queue.take(100, 0) == (None, False)
    assert (queue.process_queue.cached_messages, queue.process_queue.commit_offset) == (0, 13)


def test_only_a_listener_that_was_called_before_that_moment_is_overdue() -> None:
    queue = work()
    queue.put(chunk(0, 3), None)
    early, late = taken(queue, 1, 1_000), taken(queue, 1, 2_000)
    assert queue.overdue(1_000) == []
    assert queue.overdue(1_001) == [early]
    assert set(queue.overdue(2_001)) == {early, late}
    queue.settle(early, succeeded=False)
    assert queue.overdue(2_001) == [late]
    assert queue.retry_task(early, 5_000)  # after its back-off: its time begins anew
    assert queue.overdue(4_000) == [late]


def test_what_is_given_up_is_finished_and_its_listener_not_heard_any_more() -> None:
    queue = work()
    queue.put(chunk(0, 2), None)
    task, other = taken(queue, 1), taken(queue, 1)
    assert queue.give_up(task)
    assert task.is_given_up
    assert queue.process_queue.commit_offset == 1
    assert not queue.give_up(task)
    queue.settle(other, succeeded=True)
    assert not queue.give_up(other)  # the listener was quicker
    assert not other.is_given_up


def test_a_full_queue_is_told_of_once_when_there_is_room_again() -> None:
    queue = work(max_cached_messages=3)
    queue.put(chunk(0, 4), None)
    assert queue.is_full
    tasks = [taken(queue, 1) for _ in range(4)]
    assert [queue.settle(task, succeeded=True) for task in tasks] == [False, True, False, False]
    assert not queue.is_full


def test_a_queue_that_ends_before_where_it_was_begins_anew_and_late_answers_move_nothing() -> None:
    queue = work()
    queue.put(chunk(0, 10), None)
    late = taken(queue, 5)
    moved = Chunk(FETCHER, 10, 2, 0, b"")
    queue.put(moved, None)
    assert (queue.process_queue.commit_offset, queue.process_queue.cached_messages) == (2, 0)
    queue.settle(late, succeeded=True)
    assert (queue.process_queue.commit_offset, queue.process_queue.cached_messages) == (2, 0)
    queue.put(chunk(2, 2), None)
    assert offsets(taken(queue, 100)) == [2, 3]


def test_a_queue_that_leaves_gives_nothing_more_and_is_free_when_its_last_listener_is_done() -> None:
    queue = work()
    queue.put(chunk(0, 10), None)
    task = taken(queue, 2)
    assert not queue.leave()
    assert queue.take(1, 0) == (None, False)
    assert not queue.retry_task(task, 0)
    assert queue.settle(task, succeeded=True)
    assert queue.process_queue.commit_offset == 2
    assert queue.leave()


def test_a_paused_queue_keeps_what_comes_and_what_is_to_come_again() -> None:
    queue = work()
    queue.put(chunk(0, 2), None)
    task = taken(queue, 1)
    queue.pause()
    assert queue.take(1, 0) == (None, False)
    queue.settle(task, succeeded=False)
    assert not queue.retry_task(task, 0)
    assert not queue.put(chunk(2, 1), None)
    assert queue.resume() == (True, [task])
    assert queue.resume() == (False, [])
    assert offsets(taken(queue, 9)) == [1]  # a call has messages of one chunk
    assert offsets(taken(queue, 9)) == [2]


@pytest.mark.parametrize(("count", "has_more"), [(1, True), (2, False), (3, False)])
def test_a_queue_is_offered_again_as_long_as_there_is_more(count: int, has_more: bool) -> None:
    queue = work()
    assert queue.put(chunk(0, 2), None)
    assert queue.take(count, 0)[1] is queue.is_offered is has_more
    assert queue.put(chunk(2, 1), None) is not has_more
