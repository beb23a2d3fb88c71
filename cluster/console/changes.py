"""Changes: who changed what through this console, since it started."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from store.common.clock import Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

KEPT = 1_000


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change; `failed` is the reason if it did not succeed. `at_ms`: milliseconds since the epoch."""

    at_ms: int
    user: str
    what: str
    command: str
    failed: str | None


class ChangeLog:
    """The last `KEPT` changes. Each is logged too, as `console_change`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: deque[ChangeRecord] = deque(maxlen=KEPT)

    def add(self, user: str, what: str, command: str, failed: str | None = None) -> None:
        """Record a change."""
        self._records.appendleft(ChangeRecord(self._clock.wall_ms(), user, what, command, failed))
        _log.info("console_change", user=user, what=what, command=command, failed=failed)

    def list(self) -> Sequence[ChangeRecord]:
        """Return the changes, the newest first."""
        return list(self._records)
