"""AckedOffsets: popped messages at or after a queue's committed offset that must not be popped again.

Claims live in memory (`actors.broker.features.pop.claims`). The next process pops from the committed offset
on, so it needs to know what was acked after it:

    acks of replicas                  logged once per turn, before they are answered (`HeldAcks`)
    acks for an earlier process       the message is skipped when it is reached

There is a bit per message, in chunks of CHUNK offsets. Each chunk is replicated as one entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from store.store_errors import StoreError

CHUNK: Final = 1024

Queue = tuple[str, str, int]
"""Topic, group and queue id."""
Record = Callable[[], StoreError | None]


class AckedOffsets:
    """The acked offsets of one broker."""

    def __init__(self, *, is_replicated: bool) -> None:
        """Create the object; `is_replicated` is true if the changes of each turn are logged."""
        self.is_replicated = is_replicated
        self._queues: dict[Queue, dict[int, int]] = {}
        self._changed: set[tuple[Queue, int]] = set()
        self._committed: set[tuple[str, str]] = set()
        self._records: list[Record] = []
        self.changes = 0

    def done(self, queue: Queue, offset: int) -> None:
        """Note that a message after the committed offset was acked; needed only if it is logged."""
        if self.is_replicated:
            self.add(queue, offset)

    def add(self, queue: Queue, offset: int) -> None:
        """Let pops skip a message."""
        chunk, bit = divmod(offset, CHUNK)
        chunks = self._queues.setdefault(queue, {})
        self._set(queue, chunk, chunks.get(chunk, 0) | 1 << bit)

    def committed(self, queue: Queue, offset: int) -> None:
        """Note that the committed offset has advanced to `offset`."""
        chunk, bit = divmod(offset, CHUNK)
        for each in [each for each in self._queues.get(queue, ()) if each <= chunk]:
            left = self._queues[queue][each] >> bit << bit if each == chunk else 0
            self._set(queue, each, left)

    def note(self, topic: str, group: str) -> None:
        """Note that committed offsets or an ordered batch of a group have changed."""
        if self.is_replicated:
            self._committed.add((topic, group))

    def open_of(self, queue: Queue, offsets: list[int]) -> list[int]:
        """Return the offsets that are not acked: the same object if that is all of them."""
        chunks = self._queues.get(queue)
        if chunks is None:
            return offsets
        found = [each for each in offsets if not chunks.get(each // CHUNK, 0) >> each % CHUNK & 1]
        return offsets if len(found) == len(offsets) else found

    def forget(self, is_selected: Callable[[Queue], bool]) -> None:
        """Forget the acks in queues that were reset or deleted, or whose group was deleted."""
        for queue in [each for each in self._queues if is_selected(each)]:
            for chunk in list(self._queues[queue]):
                self._set(queue, chunk, 0)

    # ---- if changes are logged -----------------------------------------------------------------------------

    def before_log(self, record: Record) -> None:
        """Register a function that records other acks; called before the changes of a turn are taken."""
        self._records.append(record)

    def record(self) -> StoreError | None:
        """Call the registered functions; return the first error."""
        return next((error for record in self._records if (error := record()) is not None), None)

    def take_changes(self) -> tuple[list[str], list[str]]:
        """Return the names `topic@group` and of the chunks that have changed since the last call."""
        groups = [f"{topic}@{group}" for topic, group in self._committed]
        chunks = [_name(queue, chunk) for queue, chunk in self._changed]
        self._committed.clear()
        self._changed.clear()
        return groups, chunks

    def entries(self) -> dict[str, str]:
        """Return the bits of all chunks as hexadecimal numbers, by name."""
        return {
            _name(queue, chunk): f"{bits:x}"
            for queue, chunks in self._queues.items()
            for chunk, bits in chunks.items()
        }

    def entry(self, name: str) -> str | None:
        """Return the bits of a chunk."""
        queue, chunk = _parse(name)
        bits = self._queues.get(queue, {}).get(chunk)
        return None if bits is None else f"{bits:x}"

    def restore(self, name: str, value: str | None) -> None:
        """Set the bits of a chunk. Raises ValueError if the name or the value is invalid."""
        queue, chunk = _parse(name)
        bits = 0 if value is None else int(value, 16)
        if bits < 0 or bits >> CHUNK:
            raise ValueError(f"{value!r:.100} has more than {CHUNK} bits")
        self._queues.setdefault(queue, {})
        self._set(queue, chunk, bits)
        self._changed.discard((queue, chunk))

    def _set(self, queue: Queue, chunk: int, bits: int) -> None:
        chunks = self._queues[queue]
        if bits:
            chunks[chunk] = bits
        else:
            chunks.pop(chunk, None)
            if not chunks:
                del self._queues[queue]
        self.changes += 1
        if self.is_replicated:
            self._changed.add((queue, chunk))


def _name(queue: Queue, chunk: int) -> str:
    topic, group, queue_id = queue
    return f"{topic}@{group}@{queue_id}@{chunk}"


def _parse(name: str) -> tuple[Queue, int]:
    topic, group, queue_id, chunk = name.split("@")
    return (topic, group, int(queue_id)), int(chunk)
