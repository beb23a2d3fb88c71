"""QueueWork: one queue of a push consumer, with its fetched chunks, running tasks and commit offset.

    fetched ─→ readers ─ take() ─→ tasks running ─ settle() ─→ finished ─→ committed
                  └ the chunks of a paused queue wait here

The event loop adds chunks. The listener threads take tasks and settle them. `lock` guards all state that both
use.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from cluster.client.config import PushConfig
from cluster.client.consumer.chunk_reader import ChunkReader
from cluster.client.consumer.consumer_stats import ConsumeCounts
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.consumer.process_queue import Portion, ProcessQueue
from cluster.client.namespaces import Namespace
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst
from store.message.validate import RETRY_TOPIC_PREFIX


@dataclass(slots=True, eq=False)
class Task:
    """Messages for one listener call.

    `started_ms` is the start of the call, in monotonic ms. `is_returned` is True between the end of a call
    that failed and the broker's response to the messages that are sent back.
    """

    work: QueueWork
    process_queue: ProcessQueue
    portion: Portion
    messages: list[MessageExt]
    started_ms: int = 0
    is_abandoned: bool = False
    is_returned: bool = False


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of the unfinished messages of one queue: their number, bytes, and span of offsets."""

    messages: int
    size_bytes: int
    span: int

    @classmethod
    def of(cls, config: PushConfig, queues_of_topic: int) -> CacheLimits:
        """Return the limits of each queue of a topic that has `queues_of_topic` queues on this consumer."""
        messages, size_bytes = config.max_cached_messages, config.max_cached_bytes
        shares = max(queues_of_topic, 1)
        if config.max_cached_messages_for_topic is not None:
            messages = min(messages, max(config.max_cached_messages_for_topic // shares, 1))
        if config.max_cached_bytes_for_topic is not None:
            size_bytes = min(size_bytes, max(config.max_cached_bytes_for_topic // shares, 1))
        return cls(messages, size_bytes, config.max_offset_span)

    def are_reached_by(self, process_queue: ProcessQueue) -> bool:
        """Return True if the queue has reached a limit and must not fetch more."""
        return (
            process_queue.cached_messages >= self.messages
            or process_queue.cached_bytes >= self.size_bytes
            or process_queue.span > self.span
        )


@dataclass(slots=True, eq=False)
class QueueWork:
    """State of an assigned queue, or of a queue that is being released (`is_leaving`)."""

    queue: MessageQueue
    generation: int
    process_queue: ProcessQueue
    limits: CacheLimits
    fetcher: Fetcher
    is_paused: bool = False
    is_leaving: bool = False
    committed: int = -1
    is_full: bool = False
    is_offered: bool = False
    running: set[Task] = field(default_factory=set)
    paused_tasks: list[Task] = field(default_factory=list)
    locked_ms: int = 0
    """Time of the last request that locked the queue of an ordered consumer, in monotonic ms."""
    taken_ms: int = 0
    """Time of the last `take` that returned a task, in monotonic ms; 0 before the first one."""
    counts: ConsumeCounts = field(default_factory=ConsumeCounts)
    lock: threading.Lock = field(default_factory=threading.Lock)
    names: Namespace = Namespace.NONE
    """Translates the topics of the messages to the names of the application."""
    _readers: deque[ChunkReader] = field(default_factory=deque)

    @property
    def is_retry_queue(self) -> bool:
        """Return True for a queue of the group's retry topic."""
        return self.queue.topic.startswith(RETRY_TOPIC_PREFIX)

    @property
    def may_commit(self) -> bool:
        """Return True if this member may commit the offset of the queue."""
        return True

    # ---- extended by OrderedQueueWork; called with the lock held

    def _may_run(self, now_ms: int) -> bool:
        """Return True if the listener may be called at `now_ms` (monotonic ms)."""
        return not self.is_paused

    def _may_take(self) -> bool:
        """Return True if a task may be taken although earlier tasks may be unfinished."""
        return True

    def _began(self, task: Task) -> None:
        """Record that `task` was taken."""

    # ---- called on the event loop

    def share(self, limits: CacheLimits) -> None:
        """Set new limits, because the number of queues that share the limits of the topic has changed."""
        self.limits = limits

    def note_commit(self, offset: int) -> None:
        """Record `offset` as the committed offset of the group."""
        self.committed = offset

    def put(self, chunk: Chunk, wanted_tags: frozenset[str] | None) -> bool:
        """Add a fetched chunk. Return True if the caller must offer this queue to the listeners."""
        with self.lock:
            if chunk.count:
                self.counts.add_pull(chunk.count, chunk.took_ms)
            if chunk.next_offset < self.process_queue.fetched_to:
                # The group's offset was reset, or the broker has lost the fetched messages. In both cases the
                # broker has another committed offset than the last one of this consumer.
                self.process_queue = ProcessQueue(chunk.next_offset)
                self.committed = -1
                self._readers.clear()
            else:
                self.process_queue.arrived(chunk.next_offset, chunk.count, len(chunk.records))
                self._readers.append(ChunkReader(chunk, wanted_tags))
            self.is_full = self.limits.are_reached_by(self.process_queue)
            return self._offer()

    def _offer(self) -> bool:
        is_due = bool(self._readers) and not self.is_offered and not self.is_paused and self._may_take()
        self.is_offered = self.is_offered or is_due
        return is_due

    def leave(self) -> bool:
        """Start to release the queue. Return True if no listener is running on it."""
        with self.lock:
            self.is_leaving = True
            self._readers.clear()
            return not self.running

    def pause(self) -> None:
        """Give listeners no more messages until `resume`."""
        with self.lock:
            self.is_paused = True

    def resume(self) -> tuple[bool, list[Task]]:
        """End a pause. Return whether the caller must offer this queue, and the tasks to offer as well."""
        with self.lock:
            self.is_paused = False
            tasks, self.paused_tasks = self.paused_tasks, []
            return self._offer(), tasks

    def overdue(self, started_before_ms: int) -> list[Task]:
        """Return the tasks whose listener call started before `started_before_ms` and has not returned."""
        with self.lock:
            return [
                task for task in self.running if task.started_ms < started_before_ms and not task.is_returned
            ]

    def abandon(self, task: Task) -> bool:
        """Finish a running task without its listener, and ignore the later result of the listener.

        The caller has already sent the messages of the task back to the broker. Returns False if the
        listener returned first.
        """
        with self.lock:
            if task not in self.running:
                return False
            task.is_abandoned = True
            self.running.discard(task)
            task.process_queue.finish(task.portion)
            return True

    # ---- called by the listener threads

    def take(self, count: int, now_ms: int) -> tuple[Task | None, bool]:
        """Return a task of at most `count` messages, and whether more messages are available.

        The task is None if no messages are available. Raises DataDamaged.
        """
        with self.lock:
            while self._readers and not self.is_leaving and self._may_run(now_ms) and self._may_take():
                reader, process_queue = self._readers[0], self.process_queue
                before = reader.position
                messages = reader.take_messages(count)
                size_bytes = reader.position - before
                if reader.is_exhausted:
                    self._readers.popleft()
                begin = process_queue.next_offset
                portion = process_queue.take(begin, reader.next_offset, len(messages), size_bytes)
                if reader.is_exhausted:
                    process_queue.discard_filtered(reader.chunk.count - reader.taken)
                if not messages:
                    process_queue.finish(portion)
                    continue
                if self.is_retry_queue:
                    _restore_topics(messages)
                self.names.unwrap_messages(messages)
                task = Task(self, process_queue, portion, messages, now_ms)
                self.running.add(task)
                self.taken_ms = now_ms
                self._began(task)
                self.is_offered = bool(self._readers) and self._may_take()
                return task, self.is_offered
            self.is_offered = False
            return None, False

    def retry_task(self, task: Task, now_ms: int) -> bool:
        """Restart a task whose listener failed. Return False if the queue is paused or being released."""
        with self.lock:
            if self.is_leaving:
                return False
            if not self._may_run(now_ms):
                self.paused_tasks.append(task)
                return False
            task.started_ms = now_ms
            task.is_returned = False
            self.running.add(task)
            return True

    def settle(self, task: Task, *, succeeded: bool) -> bool:
        """Record the result of a listener call.

        Returns True if the event loop must act: a full queue may fetch again, or a queue that is being
        released has no running listener any more.
        """
        with self.lock:
            self.running.discard(task)
            if succeeded:
                self.counts.succeeded += len(task.messages)
                task.process_queue.finish(task.portion)
            else:
                self.counts.failed += len(task.messages)
            if self.is_leaving:
                return not self.running
            if not self.is_full or self.limits.are_reached_by(self.process_queue):
                return False
            self.is_full = False
            return True

    def note_time(self, took_ms: int) -> None:
        """Count a listener call that took `took_ms`."""
        with self.lock:
            self.counts.add_timed_call(took_ms)

    def finish(self, task: Task) -> None:
        """Mark the messages of `task` as consumed, for example after they became dead letters."""
        with self.lock:
            task.process_queue.finish(task.portion)
            self.is_full = self.limits.are_reached_by(self.process_queue)


def _restore_topics(messages: list[MessageExt]) -> None:
    for message in messages:
        message.topic = message.properties.get(MessageConst.RETRY_TOPIC, message.topic)
