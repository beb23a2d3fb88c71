"""SendGate: decides whether new messages may be appended to a store.

    failure, dispatch, full disk ──┐
    too few replicas, no leader  ──┼─close, open──► SendGate ──► appends, compiled sends, requests, deliveries
    features                     ──┘

Each source closes and opens the gate for itself; the gate is open while no source has closed it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from store.store_errors import SendsRefused, StoreError

FAILURE: Final = "failure"
"""The store has failed, or another process writes it."""
DISPATCH: Final = "dispatch"
"""Consume queues or index cannot be written."""
DISK: Final = "disk"
"""The disk is too full."""
REPLICATION: Final = "replication"
"""This replica does not lead, or too few others are in sync."""

_OF_ALL_WRITES: Final = (FAILURE, DISPATCH, DISK)
"""Sources that also refuse copies of another replica's log, the most lasting one first."""


class _Closing(NamedTuple):
    reason: str
    path: Path | str | None
    position: int | None


class SendGate:
    """Decides whether new messages may be appended to one store; open at first."""

    __slots__ = ("_closed", "_root", "is_open")

    def __init__(self, root: Path) -> None:
        """Create the gate of the store at `root`."""
        self._root = root
        self._closed: dict[str, _Closing] = {}
        self.is_open = True
        """True if new messages may be appended."""

    def close(
        self, source: str, reason: str, path: Path | str | None = None, position: int | None = None
    ) -> None:
        """Refuse new messages with `reason` until the same source opens the gate.

        `path` (default: the root of the store) and `position` are those of the errors.
        """
        self._closed[source] = _Closing(reason, path or self._root, position)
        self.is_open = False

    def open(self, source: str) -> None:
        """Withdraw what the source has closed; other sources may keep the gate closed."""
        self._closed.pop(source, None)
        self.is_open = not self._closed

    def is_closed_by(self, source: str) -> bool:
        """Return True if this source keeps the gate closed."""
        return source in self._closed

    @property
    def write_refusal(self) -> str | None:
        """Why nothing may be written, not even copies of another replica's log; None if that is permitted."""
        return next((self._closed[each].reason for each in _OF_ALL_WRITES if each in self._closed), None)

    def check(self) -> None:
        """Raise StoreError if nothing may be written, or SendsRefused if only new messages may not."""
        if not self.is_open:
            self.check_writes()
            closing = next(iter(self._closed.values()))
            raise SendsRefused(closing.reason)

    def check_writes(self) -> None:
        """Raise StoreError if nothing may be written, not even copies of another replica's log."""
        for source in _OF_ALL_WRITES:
            if (closing := self._closed.get(source)) is not None:
                raise StoreError(*closing)
