"""LiteTable: the names of lite topics, and the numbers of each, in arrays that compiled code changes.

It has 116 bytes for each lite topic and no Python object (`store.kernels.lite`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store.kernels import lite as k
from store.lite.names import SEPARATOR, NameEntry
from store.message.lite_topics import NAME_BYTES_MAX

_ROWS: Final = 1024
_SCANNED: Final = 4096
NEVER: Final = 1 << 62
"""BORN of an id without a name: no unit is its own."""

Arrays = tuple[
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.uint8],
    NDArray[np.int64],
    NDArray[np.uint32],
    NDArray[np.uint32],
]


class LiteTable:
    """The lite topics of one store."""

    def __init__(self) -> None:
        self._parents: dict[str, int] = {}
        self.topics: list[str] = []
        """The topics with lite topics; the number of a parent is its index."""
        self.arrays = _arrays(_ROWS)
        """The table for compiled code; replaced when it grows."""

    def __len__(self) -> int:
        return int(self.arrays[0][k.ALIVE])

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The rows of all ids: columns LAST to BORN."""
        return self.arrays[3]

    @property
    def times(self) -> NDArray[np.uint32]:
        """When the last message of each id was stored, in seconds."""
        return self.arrays[5][: self.arrays[0][k.COUNT]]

    @property
    def parents(self) -> NDArray[np.uint32]:
        """The parent of each id."""
        return self.arrays[4][: self.arrays[0][k.COUNT]]

    def parent(self, topic: str) -> int:
        """Return the number of a topic."""
        number = self._parents.get(topic)
        if number is None:
            number = self._parents[topic] = len(self.topics)
            self.topics.append(topic)
        return number

    def find(self, topic: str, name: str) -> int:
        """Return the id of a lite topic; -1 if it is unknown."""
        parent = self._parents.get(topic)
        encoded = np.frombuffer(name.encode(), np.uint8)
        if parent is None or not 0 < len(encoded) <= NAME_BYTES_MAX:
            return -1
        return int(k.find_name(self.arrays, parent, encoded))

    def enter(self, topic: str, name: str) -> int:
        """Return the id of a lite topic, which gets one if it is new."""
        parent, encoded = self.parent(topic), np.frombuffer(name.encode(), np.uint8)
        while (id_ := k.enter_name(self.arrays, parent, encoded)) < 0:
            self.grow()
        return int(id_)

    def remove(self, id_: int) -> None:
        """Forget the lite topic with this id, which another one may get."""
        k.remove_name(self.arrays, id_)

    def topic_and_name(self, id_: int) -> tuple[str, str]:
        """Return the lite topic with this id; its name is empty if the id is free."""
        at = id_ * NAME_BYTES_MAX
        name = self.arrays[2][at : at + NAME_BYTES_MAX].tobytes().rstrip(b"\0").decode()
        return self.topics[self.arrays[4].item(id_)], name

    def key(self, id_: int) -> str:
        """Return the lite topic with this id, as `topic$name`; an empty string if it is free."""
        topic, name = self.topic_and_name(id_)
        return topic + SEPARATOR + name if name else ""

    def names(self, topic: str) -> Iterator[str]:
        """Yield the names of the lite topics of a topic that have had messages."""
        parent = self._parents.get(topic)
        for first in range(0, 0 if parent is None else len(self.parents), _SCANNED):
            rows = slice(first, first + _SCANNED)
            having = (self.parents[rows] == parent) & (self.numbers[: len(self.parents)][rows, k.NEXT] > 0)
            for id_ in (np.flatnonzero(having) + first).tolist():
                if name := self.topic_and_name(id_)[1]:
                    yield name

    def grow(self) -> None:
        """Make room for more names."""
        meta, _, names, numbers, parents, times = self.arrays
        count, alive = meta[k.COUNT], meta[k.ALIVE]
        rows = len(self.arrays[4])
        new = _arrays(2 * rows if 4 * alive > 3 * rows else rows)  # else, slots of removed names are full
        new[0][k.COUNT] = count
        new[2][: count * NAME_BYTES_MAX] = names[: count * NAME_BYTES_MAX]
        new[3][:count], new[4][:count], new[5][:count] = numbers[:count], parents[:count], times[:count]
        k.fill_slots(new)
        self.arrays = new

    def fill(self, entries: Sequence[NameEntry]) -> None:
        """Replace all by the lite topics of these entries, each of which has another id."""
        count, size = 1 + max((each.id for each in entries), default=-1), _ROWS
        while size <= count:
            size *= 2
        new = _arrays(size)
        new[0][k.COUNT] = count
        new[3][:, k.BORN] = NEVER
        if entries:
            ids = np.array([each.id for each in entries])
            keys = [each.name.partition(SEPARATOR) for each in entries]
            new[2].view(f"S{NAME_BYTES_MAX}")[ids] = np.array([name for _, _, name in keys], np.bytes_)
            new[4][ids] = [self.parent(topic) for topic, _, _ in keys]
            new[3][ids, k.LAST] = -1
            new[3][ids, k.NEXT] = [each.next_offset for each in entries]
            new[3][ids, k.BORN] = [each.position for each in entries]
        k.fill_slots(new)
        self.arrays = new


def _arrays(rows: int) -> Arrays:
    """Return the arrays of an empty table; `rows` is a power of two."""
    meta = np.zeros(k.META_FIELDS, np.int64)
    meta[k.SEED] = secrets.randbits(62)  # clients must not choose names with equal hashes
    return (
        meta,
        np.zeros(4 * rows, np.int32),
        np.zeros(rows * NAME_BYTES_MAX, np.uint8),
        np.zeros((rows, k.NUMBERS), np.int64),
        np.zeros(rows, np.uint32),
        np.zeros(rows, np.uint32),
    )
