"""Deliveries: the fetched chunks of a pull consumer, and the offsets that it has delivered and acknowledged.

    committed ≤ consumed ≤ position ≤ … fetched
                 |          └ follows the last message delivered by a poll
                 └ may be committed; the next poll acknowledges the last one and moves it to `position`

The event loop adds chunks. The user's thread (in the async API a task on the event loop) takes messages. Both
hold the lock while a queue is released or its position changes. Therefore no message of a released queue is
delivered.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.client.consumer.chunk_reader import ChunkReader
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.errors import ClientError, DataDamaged
from cluster.client.group.offset_client import Commit
from cluster.client.namespaces import Namespace
from store.message.compression import MAX_PLAIN_BYTES
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

OFFSET_UNKNOWN = -1


@dataclass(slots=True, eq=False)
class PulledQueue:
    """One queue of a pull consumer. Its offsets are OFFSET_UNKNOWN until the starting offset is known."""

    queue: MessageQueue
    generation: int
    wanted_tags: frozenset[str] | None = None
    position: int = OFFSET_UNKNOWN
    consumed: int = OFFSET_UNKNOWN
    committed: int = OFFSET_UNKNOWN
    fetcher: Fetcher | None = None
    is_paused: bool = False
    is_leaving: bool = False

    @property
    def has_unacknowledged(self) -> bool:
        """Return True if messages are delivered but not acknowledged by a later poll."""
        return self.position != self.consumed

    def commit_of(self, offset: int) -> Commit:
        """Return the commit of an offset."""
        history = "" if self.fetcher is None else self.fetcher.epoch.id
        return Commit(offset, self.generation, history)


class Deliveries:
    """The queues of one pull consumer and their fetched chunks.

    Fetchers and the consumer call the first group of methods on the event loop. The taker, which is the
    thread or task that polls, calls the second group.
    """

    def __init__(self, on_taken: Callable[[Fetcher, int], None], names: Namespace = Namespace.NONE) -> None:
        """`on_taken(fetcher, size_bytes)` is called in the taker's thread when a chunk has been read.

        `names` translates the topics of the messages.
        """
        self._names = names
        self.lock = threading.Lock()
        self.states: dict[MessageQueue, PulledQueue] = {}
        self.failure: ClientError | None = None
        self.is_suspended = False
        self.polls = 0
        """Number of polls so far."""
        self._on_taken = on_taken
        self._ready: deque[Chunk | ChunkReader] = deque()
        self._paused_items: list[Chunk | ChunkReader] = []
        self._reader: ChunkReader | None = None
        self._unacknowledged: set[PulledQueue] = set()
        self._wakers: list[Callable[[], None]] = []

    # ---- called on the event loop

    def arrived(self, chunk: Chunk) -> None:
        """Add a chunk that a fetcher has received."""
        self._ready.append(chunk)
        self.wake()

    def wake(self) -> None:
        """Wake all waiting takers. They check again whether messages are available."""
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def suspend(self, *, suspended: bool) -> None:
        """Stop the delivery of messages, or resume it."""
        self.is_suspended = suspended
        self.wake()

    def fail(self, error: ClientError | None) -> None:
        """Make the takers raise `error` from now on, or stop doing so if it is None."""
        self.failure = error
        self.wake()

    def restart(self, state: PulledQueue, fetcher: Fetcher, offset: int) -> None:
        """Continue at `offset` with a new fetcher. The caller must hold the lock."""
        if state.fetcher is not None:
            state.fetcher.stop()
        state.fetcher = fetcher
        state.position = state.consumed = offset
        self._unacknowledged.discard(state)

    def drop(self, state: PulledQueue) -> None:
        """Remove a queue and deliver no more messages of it. The caller must hold the lock."""
        state.is_leaving = True
        if state.fetcher is not None:
            state.fetcher.stop()
        self.states.pop(state.queue, None)
        self._unacknowledged.discard(state)

    def resumed(self) -> None:
        """Requeue all chunks of paused queues at the head, after a resume. The caller must hold the lock."""
        self._ready.extendleft(reversed(self._paused_items))
        self._paused_items.clear()

    # ---- called by the taker

    def acknowledge(self) -> list[PulledQueue]:
        """Mark all delivered messages as consumed.

        Returns the queues that are being released and that have no unacknowledged messages any more.
        """
        with self.lock:
            self.polls += 1
            for state in self._unacknowledged:
                state.consumed = state.position
            leaving = [state for state in self._unacknowledged if state.is_leaving]
            self._unacknowledged.clear()
            return leaving

    def take_messages(self, count: int) -> list[MessageExt]:
        """Return up to `count` available messages, in order within each queue, without waiting.

        Returns fewer once their compressed bodies have MAX_PLAIN_BYTES. Raises DataDamaged.
        """
        messages: list[MessageExt] = []
        inflated_bytes = 0
        with self.lock:
            for reader, state in self._readers():
                inflated_bytes -= reader.inflated_bytes
                try:
                    messages += reader.take_messages(count - len(messages))
                except DataDamaged:
                    if messages:
                        break  # deliver the messages of other queues first; the next call raises the error
                    raise
                self._taken(reader, state)
                inflated_bytes += reader.inflated_bytes
                if len(messages) >= count or inflated_bytes >= MAX_PLAIN_BYTES:
                    break
        self._names.unwrap_messages(messages)
        return messages

    def take_rows(self, count: int, columns: list[str] | None) -> pa.RecordBatch | None:
        """Return up to `count` available rows of one queue, or None. Raises DataDamaged."""
        with self.lock:
            for reader, state in self._readers():
                rows = reader.take_rows(count, columns)
                self._taken(reader, state)
                if rows.num_rows:
                    return self._names.unwrap_rows(rows)
        return None

    def _taken(self, reader: ChunkReader, state: PulledQueue) -> None:
        state.position = reader.next_offset
        self._unacknowledged.add(state)
        if reader.is_exhausted:
            self._reader = None
            self._on_taken(reader.chunk.fetcher, len(reader.chunk.records))

    def _readers(self) -> Iterator[tuple[ChunkReader, PulledQueue]]:
        """Yield the reader and the state of the next chunk, until no chunk is available."""
        if self.failure is not None:
            raise self.failure
        while not self.is_suspended:
            item: Chunk | ChunkReader | None = self._reader
            if item is None:
                try:
                    item = self._ready.popleft()
                except IndexError:
                    return
            self._reader = None
            chunk = item.chunk if isinstance(item, ChunkReader) else item
            state = self.states.get(chunk.queue)
            if state is None or state.fetcher is not chunk.fetcher or state.is_leaving:
                continue  # the queue was released, or a seek replaced its fetcher
            if state.is_paused:
                self._paused_items.append(item)  # a reader keeps its position in the chunk
                continue
            self._reader = item if isinstance(item, ChunkReader) else ChunkReader(item, state.wanted_tags)
            yield self._reader, state

    # ---- waiting

    @property
    def has_messages(self) -> bool:
        """Return True if a taker may find messages, or an error, now."""
        return self.failure is not None or (
            not self.is_suspended and (self._reader is not None or bool(self._ready))
        )

    @property
    def is_waiting(self) -> bool:
        """Return True if a taker waits for messages."""
        return bool(self._wakers)

    def wait(self, timeout_s: float) -> None:
        """Block the calling thread until messages may be available, or until `timeout_s` has passed."""
        bell = threading.Lock()
        bell.acquire()
        self._wakers.append(bell.release)
        if not self.has_messages:
            bell.acquire(timeout=timeout_s)
        self._forget(bell.release)

    async def wait_async(self, timeout_s: float) -> None:
        """Wait like `wait`, but in a task on the event loop."""
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ring() -> None:
            if not bell.done():
                bell.set_result(None)

        self._wakers.append(ring)
        if not self.has_messages:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await bell
        self._forget(ring)

    def _forget(self, waker: Callable[[], None]) -> None:
        with suppress(ValueError):  # `wake` has removed it
            self._wakers.remove(waker)
