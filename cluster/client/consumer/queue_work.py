"""One queue of a push consumer: what is fetched and waits, what listeners work on, and what may be committed.

    fetched ─→ readers ─ take() ─→ tasks running ─ settle() ─→ finished ─→ committed
                  └ a paused queue waits here

The loop puts chunks in; the listeners' threads take portions out and settle them. Everything that both touch
is behind `lock`.
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
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst
from store.message.validate import RETRY_TOPIC_PREFIX


@dataclass(slots=True, eq=False)
class Task:
    """Messages for one call of the listener. `started_ms` is when it was called, in monotonic ms."""

    work: QueueWork
    process_queue: ProcessQueue
    portion: Portion
    messages: list[MessageExt]
    started_ms: int = 0
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one queue may lie here unfinished."""

    messages: int
    size_bytes: int
    span: int

    @classmethod
    def of(cls, config: PushConfig, queues_of_topic: int) -> Limits:
        """What `config` allows each of so many queues of one topic."""
        messages, size_bytes = config.max_cached_messages, config.max_cached_bytes
        shares = max(queues_of_topic, 1)
        if config.max_cached_messages_for_topic is not None:
            messages = min(messages, max(config.max_cached_messages_for_topic // shares, 1))
        if config.max_cached_bytes_for_topic is not None:
            size_bytes = min(size_bytes, max(config.max_cached_bytes_for_topic // shares, 1))
        return cls(messages, size_bytes, config.max_offset_span)

    def are_reached_by(self, process_queue: ProcessQueue) -> bool:
        """Whether nothing more is to be fetched now."""
        return (
            process_queue.cached_messages >= self.messages
            or process_queue.cached_bytes >= self.size_bytes
            or process_queue.span > self.span
        )


@dataclass(slots=True, eq=False)
class QueueWork:
    """A queue that is held, or being given back (`is_leaving`)."""

    queue: MessageQueue
    generation: int
    process_queue: ProcessQueue
    limits: Limits
    fetcher: Fetcher
    is_paused: bool = False
    is_leaving: bool = False
    committed: int = -1
    is_full: bool = False
    is_offered: bool = False
    running: set[Task] = field(default_factory=set)
    set_aside: list[Task] = field(default_factory=list)
    taken_ms: int = 0
    """When listeners were last handed something of it, in monotonic ms."""
    counts: ConsumeCounts = field(default_factory=ConsumeCounts)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _readers: deque[ChunkReader] = field(default_factory=deque)

    @property
    def is_retry_queue(self) -> bool:
        """Whether it is a queue of the group's retry topic."""
        return self.queue.topic.startswith(RETRY_TOPIC_PREFIX)

    # ---- the loop's side

    def share(self, limits: Limits) -> None:
        """Change the limits: the number of queues that share the topic's has changed."""
        self.limits = limits

    def note_commit(self, offset: int) -> None:
        """Note that the group's committed offset is `offset` now."""
        self.committed = offset

    def put(self, chunk: Chunk, wanted_tags: frozenset[str] | None) -> bool:
        """Take a chunk in; says whether the queue is to be offered to the listeners now."""
        with self.lock:
            if chunk.count:
                self.counts.pulled_chunk(chunk.count, chunk.took_ms)
            if chunk.next_offset < self.process_queue.fetched_to:
                # The queue ends before where we were: what was fetched of it is not there any more.
                self.process_queue = ProcessQueue(chunk.next_offset)
                self._readers.clear()
            else:
                self.process_queue.arrived(chunk.next_offset, chunk.count, len(chunk.records))
                self._readers.append(ChunkReader(chunk, wanted_tags))
            self.is_full = self.limits.are_reached_by(self.process_queue)
            return self._offer()

    def _offer(self) -> bool:
        is_due = bool(self._readers) and not self.is_offered and not self.is_paused
        self.is_offered = self.is_offered or is_due
        return is_due

    def leave(self) -> bool:
        """Begin to give the queue back; says whether no listener runs now."""
        with self.lock:
            self.is_leaving = True
            self._readers.clear()
            return not self.running

    def pause(self) -> None:
        """Hand nothing to listeners until `resume`."""
        with self.lock:
            self.is_paused = True

    def resume(self) -> tuple[bool, list[Task]]:
        """End a pause; says whether the queue is to be offered again, and which tasks besides."""
        with self.lock:
            self.is_paused = False
            tasks, self.set_aside = self.set_aside, []
            return self._offer(), tasks

    def overdue(self, started_before_ms: int) -> list[Task]:
        """The tasks whose listeners were called before that moment and have not returned."""
        with self.lock:
            return [task for task in self.running if task.started_ms < started_before_ms]

    def give_up(self, task: Task) -> bool:
        """What `task` has is safe elsewhere: whatever its listener says now is not heard; False if it was
        quicker.
        """
        with self.lock:
            if task not in self.running:
                return False
            task.is_given_up = True
            self.running.discard(task)
            task.process_queue.finish(task.portion)
            return True

    # ---- the listeners' side

    def take(self, count: int, now_ms: int) -> tuple[Task | None, bool]:
        """A portion of at most `count` messages to work on, and whether there is more. Raises DataDamaged."""
        with self.lock:
            while self._readers and not self.is_leaving and not self.is_paused:
                reader, process_queue = self._readers[0], self.process_queue
                before = reader.position
                messages = reader.take_messages(count)
                size_bytes = reader.position - before
                if reader.is_exhausted:
                    self._readers.popleft()
                begin = process_queue.next_offset
                portion = process_queue.take(begin, reader.next_offset, len(messages), size_bytes)
                if reader.is_exhausted:
                    process_queue.left_out(reader.chunk.count - reader.taken)
                if not messages:
                    process_queue.finish(portion)
                    continue
                if self.is_retry_queue:
                    _restore_topics(messages)
                task = Task(self, process_queue, portion, messages, now_ms)
                self.running.add(task)
                self.taken_ms = now_ms
                self.is_offered = bool(self._readers)
                return task, self.is_offered
            self.is_offered = False
            return None, False

    def retry_task(self, task: Task, now_ms: int) -> bool:
        """A task's listener is about to be called once more: say whether it may."""
        with self.lock:
            if self.is_leaving:
                return False
            if self.is_paused:
                self.set_aside.append(task)
                return False
            task.started_ms = now_ms
            self.running.add(task)
            return True

    def settle(self, task: Task, *, succeeded: bool) -> bool:
        """A listener has returned; says whether the loop must hear of it."""
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
        """A call of the listener has been timed."""
        with self.lock:
            self.counts.timed_call(took_ms)

    def finish(self, task: Task) -> None:
        """What `task` has is dealt with."""
        with self.lock:
            task.process_queue.finish(task.portion)
            self.is_full = self.limits.are_reached_by(self.process_queue)


def _restore_topics(messages: list[MessageExt]) -> None:
    for message in messages:
        message.topic = message.properties.get(MessageConst.RETRY_TOPIC, message.topic)
