"""QueueWork: tasks, limits, pauses, timeouts and the release of one queue of a push consumer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cluster.client.config import PushConfig
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.consumer.process_queue import ProcessQueue
from cluster.client.consumer.queue_work import CacheLimits, QueueWork, Task
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, encode_record

QUEUE = MessageQueue("T", "a", 0)
FETCHER = cast("Fetcher", SimpleNamespace(queue=QUEUE))


def chunk(begin: int, count: int) -> Chunk:
    """Return a chunk of messages with the tags A, B, A, …"""
    records = bytearray()
    for offset in range(begin, begin + count):
        properties = b"TAGS\x01%s\x02" % b"AB"[offset % 2 : offset % 2 + 1]
        records += encode_record(RecordDraft("T", 0, b"%d" % offset, properties), offset, offset, 1, bytes(8))
    return Chunk(FETCHER, begin, begin + count, count, bytes(records))


def work(**settings: int) -> QueueWork:
    return QueueWork(QUEUE, 1, ProcessQueue(0), CacheLimits.of(PushConfig(**settings), 1), FETCHER)


def taken(queue: QueueWork, count: int, now_ms: int = 0) -> Task:
    task, _ = queue.take(count, now_ms)
    assert task is not None
    return task


def offsets(task: Task) -> list[int]:
    return [message.queue_offset for message in task.messages]


def test_unwanted_messages_are_not_cached_and_are_committed() -> None:
    queue = work()
    assert queue.put(chunk(0, 10), frozenset("B"))
    assert queue.process_queue.cached_messages == 10  # the tags have not been checked yet
    task = taken(queue, 100)
    assert offsets(task) == [1, 3, 5, 7, 9]
    assert queue.process_queue.cached_messages == 5
    assert not queue.settle(task, succeeded=True)
    assert (queue.process_queue.cached_messages, queue.process_queue.cached_bytes) == (0, 0)
    assert queue.process_queue.commit_offset == 10
    queue.put(chunk(10, 3), frozenset("C"))
    assert queue.take(100, 0) == (None, False)
    assert (queue.process_queue.cached_messages, queue.process_queue.commit_offset) == (0, 13)


def test_overdue_returns_tasks_started_before_given_time() -> None:
    queue = work()
    queue.put(chunk(0, 3), None)
    early, late = taken(queue, 1, 1_000), taken(queue, 1, 2_000)
    assert queue.overdue(1_000) == []
    assert queue.overdue(1_001) == [early]
    assert set(queue.overdue(2_001)) == {early, late}
    queue.settle(early, succeeded=False)
    assert queue.overdue(2_001) == [late]
    assert queue.retry_task(early, 5_000)  # a retry restarts its timeout
    assert queue.overdue(4_000) == [late]


def test_abandoned_task_is_finished_and_its_result_is_ignored() -> None:
    queue = work()
    queue.put(chunk(0, 2), None)
    task, other = taken(queue, 1), taken(queue, 1)
    assert queue.abandon(task)
    assert task.is_abandoned
    assert queue.process_queue.commit_offset == 1
    assert not queue.abandon(task)
    queue.settle(other, succeeded=True)
    assert not queue.abandon(other)  # the listener returned first
    assert not other.is_abandoned


def test_settle_reports_once_that_queue_is_no_longer_full() -> None:
    queue = work(max_cached_messages=3)
    queue.put(chunk(0, 4), None)
    assert queue.is_full
    tasks = [taken(queue, 1) for _ in range(4)]
    assert [queue.settle(task, succeeded=True) for task in tasks] == [False, True, False, False]
    assert not queue.is_full


def test_moved_offset_resets_queue_and_late_results_are_ignored() -> None:
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


def test_leaving_queue_is_free_after_its_last_listener_returns() -> None:
    queue = work()
    queue.put(chunk(0, 10), None)
    task = taken(queue, 2)
    assert not queue.leave()
    assert queue.take(1, 0) == (None, False)
    assert not queue.retry_task(task, 0)
    assert queue.settle(task, succeeded=True)
    assert queue.process_queue.commit_offset == 2
    assert queue.leave()


def test_paused_queue_keeps_new_messages_and_retries() -> None:
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
    assert offsets(taken(queue, 9)) == [1]  # one call gets messages of a single chunk
    assert offsets(taken(queue, 9)) == [2]


@pytest.mark.parametrize(("count", "has_more"), [(1, True), (2, False), (3, False)])
def test_queue_is_offered_again_while_it_has_messages(count: int, has_more: bool) -> None:
    queue = work()
    assert queue.put(chunk(0, 2), None)
    assert queue.take(count, 0)[1] is queue.is_offered is has_more
    assert queue.put(chunk(2, 1), None) is not has_more
