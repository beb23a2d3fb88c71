"""What is fetched and waits for the user, and how far the user has come in each queue.

    committed ≤ consumed ≤ position ≤ … fetched
                 |          └ follows the last message handed out
                 └ may be committed: moved to `position` by the next poll, which says that the last one is
                 done

The loop puts in; the user's thread (or the loop itself, in the async face) takes out. Both hold the lock
while a queue changes hands, so that no message of a queue that was given back is handed out.
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
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

OFFSET_UNKNOWN = -1


@dataclass(slots=True, eq=False)
class QueueState:
    """One queue of a pull consumer; offsets are OFFSET_UNKNOWN until it is known where to begin."""

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
    def is_in_work(self) -> bool:
        """Whether messages are handed out and not yet said to be done."""
        return self.position != self.consumed


class Deliveries:
    """The queues of one pull consumer and their fetched chunks."""

    def __init__(self, on_room: Callable[[Fetcher, int], None]) -> None:
        """`on_room(fetcher, bytes)` is told, in the taker's thread, what has been taken."""
        self.lock = threading.Lock()
        self.states: dict[MessageQueue, QueueState] = {}
        self.failure: ClientError | None = None
        self.is_held_back = False
        self._on_room = on_room
        self._ready: deque[Chunk | ChunkReader] = deque()
        self._set_aside: list[Chunk | ChunkReader] = []
        self._reader: ChunkReader | None = None
        self._touched: set[QueueState] = set()
        self._wakers: list[Callable[[], None]] = []

    # ---- the loop's side

    def arrived(self, chunk: Chunk) -> None:
        """Take a chunk from its fetcher."""
        self._ready.append(chunk)
        self.wake()

    def wake(self) -> None:
        """Whoever waits is to look again."""
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def hold_back(self, *, held: bool) -> None:
        """Hand out nothing while `held`."""
        self.is_held_back = held
        self.wake()

    def fail(self, error: ClientError | None) -> None:
        """Have takers raise `error`; None: no longer."""
        self.failure = error
        self.wake()

    def restart(self, state: QueueState, fetcher: Fetcher, offset: int) -> None:
        """Go on at `offset` by a new fetcher; what the old one brought is dropped. Hold the lock."""
        if state.fetcher is not None:
            state.fetcher.stop()
        state.fetcher = fetcher
        state.position = state.consumed = offset
        self._touched.discard(state)

    def drop(self, state: QueueState) -> None:
        """Hand out nothing more of this queue and forget it. Hold the lock."""
        state.is_leaving = True
        if state.fetcher is not None:
            state.fetcher.stop()
        self.states.pop(state.queue, None)
        self._touched.discard(state)

    def resumed(self) -> None:
        """Queues were un-paused: what was set aside comes first. Hold the lock."""
        self._ready.extendleft(reversed(self._set_aside))
        self._set_aside.clear()

    # ---- the taker's side

    def acknowledge(self) -> list[QueueState]:
        """Everything handed out is done. Gives the queues that are being given back and have nothing in work
        now.
        """
        with self.lock:
            for state in self._touched:
                state.consumed = state.position
            leaving = [state for state in self._touched if state.is_leaving]
            self._touched.clear()
            return leaving

    def take_messages(self, count: int) -> list[MessageExt]:
        """Up to `count` messages, in order within each queue; none when nothing is there now. Raises
        DataDamaged.
        """
        messages: list[MessageExt] = []
        with self.lock:
            for reader, state in self._readers():
                try:
                    messages += reader.take_messages(count - len(messages))
                except DataDamaged:
                    if messages:
                        break  # of other queues: they are handed out first, the next call meets it again
                    raise
                self._taken(reader, state)
                if len(messages) >= count:
                    break
        return messages

    def take_rows(self, count: int, columns: list[str] | None) -> pa.RecordBatch | None:
        """Up to `count` rows of one queue; None when nothing is there now. Raises DataDamaged."""
        with self.lock:
            for reader, state in self._readers():
                rows = reader.take_rows(count, columns)
                self._taken(reader, state)
                if rows.num_rows:
                    return rows
        return None

    def _taken(self, reader: ChunkReader, state: QueueState) -> None:
        state.position = reader.next_offset
        self._touched.add(state)
        if reader.is_exhausted:
            self._reader = None
            self._on_room(reader.chunk.fetcher, len(reader.chunk.records))

    def _readers(self) -> Iterator[tuple[ChunkReader, QueueState]]:
        """The reader of the next chunk, again and again until nothing is there."""
        if self.failure is not None:
            raise self.failure
        while not self.is_held_back:
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
                continue  # given back, or sought elsewhere
            if state.is_paused:
                self._set_aside.append(item)  # with what has been taken of it already
                continue
            self._reader = item if isinstance(item, ChunkReader) else ChunkReader(item, state.wanted_tags)
            yield self._reader, state

    # ---- waiting

    @property
    def has_messages(self) -> bool:
        """Whether taking may give something now."""
        return self.failure is not None or (
            not self.is_held_back and (self._reader is not None or bool(self._ready))
        )

    def wait(self, timeout_s: float) -> None:
        """Block this thread until something may be there, or the time is over."""
        bell = threading.Lock()
        bell.acquire()
        self._wakers.append(bell.release)
        if not self.has_messages:
            bell.acquire(timeout=timeout_s)
        self._forget(bell.release)

    async def wait_async(self, timeout_s: float) -> None:
        """The same for a task on the loop."""
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
        with suppress(ValueError):  # it has been rung
            self._wakers.remove(waker)
