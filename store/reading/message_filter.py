"""MessageFilter: decides which messages of a queue a consumer receives (docs/extending.md#message-filter).

A read applies a filter in two steps. The first needs only the consume queue unit, the second needs the
record:

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
    """Return the tags codes of contiguous consume queue units."""
    count = len(units) // UNIT_BYTES
    return np.ndarray(count, np.dtype(">i8"), units, offset=12, strides=(UNIT_BYTES,))


class MessageFilter(ABC):
    """Decides which messages a subscription receives; compiled once per subscription.

    Filters that compare equal accept the same messages.
    """

    accepts_all = False
    """True if the filter accepts every message, so that a read need not apply it."""
    reads_units = True
    """False if `prefilter` accepts every tags code, so that a read need not call it."""
    reads_records = True
    """True if `matches` may reject a record whose tags code `prefilter` accepted."""

    @abstractmethod
    def prefilter(self, tags_code: int | None) -> bool:
        """Return False if no message with this tags code can match; None stands for an unknown code."""

    @abstractmethod
    def matches(self, record: memoryview) -> bool:
        """Return True if the record matches.

        A read calls this only for records whose tags code `prefilter` accepted.
        """

    def accepted_codes(self, units: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return all tags codes in the consume queue units `units` that `prefilter` accepts.

        The result may include codes that are not in `units`. A read calls this once for all its units.
        Override it if the accepted codes are known without reading the units.
        """
        codes = frozenset(codes_of_units(units).tolist())
        return np.array([code for code in codes if self.prefilter(code)], dtype=np.int64)


class _MatchAll(MessageFilter):
    accepts_all = True
    reads_units = False
    reads_records = False

    def prefilter(self, tags_code: int | None) -> bool:
        return True

    def matches(self, record: memoryview) -> bool:
        return True


MATCH_ALL: MessageFilter = _MatchAll()
"""The filter that accepts every message, for subscriptions that select no tags."""


class TagFilter(MessageFilter):
    """Accepts messages with one of several tags, by the hash of the tag.

    Only the low 32 bits of the hash are compared, as in RocketMQ. Different tags may have the same hash, so
    clients compare the tags themselves.
    """

    reads_records = False

    def __init__(self, tags: Iterable[str]) -> None:
        self._codes = np.array(sorted(map(tags_code, tags)), dtype=np.int64)
        self._low = frozenset((self._codes & _LOW_32_BITS).tolist())

    def prefilter(self, tags_code: int | None) -> bool:
        """Return True if the tags code is the hash of one of the wanted tags, or is unknown."""
        return tags_code is None or tags_code & _LOW_32_BITS in self._low

    def matches(self, record: memoryview) -> bool:
        """Return True, because `prefilter` has already decided."""
        return True

    def accepted_codes(self, units: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the hashes of the wanted tags."""
        return self._codes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and other._low == self._low

    def __hash__(self) -> int:
        return hash(self._low)
