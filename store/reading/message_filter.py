"""MessageFilter: which messages of a queue a consumer wants (design section 4).

A read applies a filter in two steps. The first needs the consume-queue unit only, the second the record:

    unit ── prefilter(tags_code) ──► record ── matches(record) ──► served
                │ False                            │ False
                └──► skipped, record unread        └──► skipped
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from store.consumequeue.unit import UNIT_BYTES
from store.message.tags import tags_code

_LOW_32_BITS = 0xFFFFFFFF


def codes_of_units(units: memoryview | bytes | NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the tags code of each of the units that stand back to back in `units`."""
    count = len(units) // UNIT_BYTES
    return np.ndarray(count, np.dtype(">i8"), units, offset=12, strides=(UNIT_BYTES,))


class MessageFilter(ABC):
    """A filter, compiled once per subscription. Equal filters want the same messages."""

    accepts_all = False
    """Whether the filter refuses nothing, so that a read need not apply it."""
    reads_records = True
    """Whether `matches` may refuse a record that the prefilter has accepted."""

    @abstractmethod
    def prefilter(self, tags_code: int | None) -> bool:
        """Return False if no message with this tags code is wanted; None stands for an unknown code."""

    @abstractmethod
    def matches(self, record: memoryview) -> bool:
        """Return True if this record, whose tags code passed the prefilter, is wanted."""

    def accepted_codes(self, units: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the tags codes of `units` that pass the prefilter; it may return further codes that would.

        A read calls this once for all its units. Override it if the codes are known without a look at them.
        """
        codes = frozenset(codes_of_units(units).tolist())
        return np.array([code for code in codes if self.prefilter(code)], dtype=np.int64)


class _MatchAll(MessageFilter):
    accepts_all = True
    reads_records = False

    def prefilter(self, tags_code: int | None) -> bool:
        return True

    def matches(self, record: memoryview) -> bool:
        return True


MATCH_ALL: MessageFilter = _MatchAll()
"""The filter of a consumer that wants every message."""


class TagFilter(MessageFilter):
    """Accepts messages by the hash of their tag; RocketMQ compares its low 32 bits.

    Hashes collide: clients compare the tags themselves.
    """

    reads_records = False

    def __init__(self, tags: Iterable[str]) -> None:
        self._codes = np.array(sorted(map(tags_code, tags)), dtype=np.int64)
        self._low = frozenset((self._codes & _LOW_32_BITS).tolist())

    def prefilter(self, tags_code: int | None) -> bool:
        """Return True if the code is the hash of one of the tags, or unknown."""
        return tags_code is None or tags_code & _LOW_32_BITS in self._low

    def matches(self, record: memoryview) -> bool:
        """Return True: the prefilter has decided."""
        return True

    def accepted_codes(self, units: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the hashes of the tags."""
        return self._codes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and other._low == self._low

    def __hash__(self) -> int:
        return hash(self._low)
