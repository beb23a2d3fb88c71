"""GroupHistory: which term wrote each byte of the log, and which members the group had there.

    log        |……… records ………|G|… records …|G|… records …|G|……
    records                     term 3         term 5        term 5, other members
    terms      |<----- 0 ------>|<---- 3 ----->|<---------- 5 ---------…

G is a group record. The first record of each leader is one, so no term is empty, and starts and terms both
increase. A blank at the end of a file belongs to the record after it, because a log of a group never ends
with a blank: the leader appends and sends both at once, and recovery drops a blank without a record.
Bytes before the first group record have term 0: a log that a single broker wrote.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from actors.raft.members import Members


class GroupRecord(NamedTuple):
    """A record in the log that begins a term or changes the members."""

    start: int
    """CommitLog offset of the record, or of the blank before it."""
    term: int
    members: Members


class GroupHistory:
    """The group records of one log, ascending. Derived from the log, and truncated with it."""

    def __init__(self, first_members: Members, records: Iterable[GroupRecord] = ()) -> None:
        """Create the history of a log. `first_members` hold before the first of `records`.

        Raises ValueError if starts or terms do not ascend.
        """
        self._first_members = first_members
        self._records: list[GroupRecord] = []
        self._record_starts: list[int] = []
        self._starts: list[int] = []  # of the first record of each term
        self._terms: list[int] = []
        for record in records:
            self.add(record)

    @property
    def records(self) -> tuple[GroupRecord, ...]:
        """All group records."""
        return tuple(self._records)

    @property
    def members(self) -> Members:
        """The configuration in force: that of the last record, confirmed or not."""
        return self._records[-1].members if self._records else self._first_members

    @property
    def last_term(self) -> int:
        """The term of the last byte of the log."""
        return self._terms[-1] if self._terms else 0

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Each term with the offset at which it begins."""
        return list(zip(self._terms, self._starts, strict=True))

    def add(self, record: GroupRecord) -> None:
        """Add the group record that was appended to the log. Raises ValueError if it cannot follow."""
        if self._records and (record.start <= self._records[-1].start or record.term < self._terms[-1]):
            raise ValueError(f"{record} cannot follow {self._records[-1]}")
        self._records.append(record)
        self._record_starts.append(record.start)
        if record.term > self.last_term:
            self._starts.append(record.start)
            self._terms.append(record.term)

    def term_before(self, offset: int) -> int:
        """Return the term of the byte before `offset`."""
        place = bisect_left(self._starts, offset) - 1
        return self._terms[place] if place >= 0 else 0

    def last_term_up_to(self, term: int, log_end: int) -> tuple[int, int]:
        """Return the greatest term that is at most `term`, and the offset at which its bytes end."""
        place = bisect_right(self._terms, term)
        end = self._starts[place] if place < len(self._starts) else log_end
        return (self._terms[place - 1] if place else 0), end

    def since(self, offset: int) -> tuple[GroupRecord, ...]:
        """Return the group records from CommitLog offset `offset` on."""
        return tuple(self._records[self.count_before(offset) :])

    def count_before(self, offset: int) -> int:
        """Return the number of group records before CommitLog offset `offset`."""
        return bisect_left(self._record_starts, offset)

    def before(self, offset: int, log_min: int) -> tuple[GroupRecord, ...]:
        """Return the group records before `offset`, from the one in force at `log_min` on."""
        first = max(self.count_before(log_min) - 1, 0)
        return tuple(self._records[first : self.count_before(offset)])

    def truncate_to(self, offset: int) -> None:
        """Drop the group records from CommitLog offset `offset` on."""
        count = self.count_before(offset)
        del self._records[count:], self._record_starts[count:]
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._terms.pop()
