"""LogHistory: recognizes positions that a consumer has from another past of the log (Kafka's KIP-320).

A log goes back if its store is restored from a copy, or loses its end. What is written then gets the queue
offsets of the lost messages, so that a consumer behind them would skip it. Each start of a master begins an
epoch of the log:

    raymq.history    {"epochs": [["198c2f5e1a0-9f3b22c1", 0], ["198c2f61b44-07aa51de", 48128]]}

An epoch has a random id, which begins with its time, and the CommitLog position at which it begins. It ends
where the next one begins. A consumer of RayMQ sends the id of the epoch in which it read; what it has read
there is in this log up to the end of the epoch. If a copy of the store does not know the epoch, it began
after the copy was made: the histories differ from the first epoch on that began after it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from store.disk.files import replace_file
from store.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)

HISTORY_FILE = "raymq.history"
EPOCHS_MAX = 1_000
"""Epochs that are kept. A consumer that read before the first of them is not recognized."""
_ID = re.compile(r"([0-9a-f]{1,15})-[0-9a-f]{8}", re.ASCII)


class Epoch(NamedTuple):
    """One epoch of the log, and the CommitLog position at which it begins."""

    id: str
    position: int


class _File(msgspec.Struct):
    epochs: list[Epoch]


class LogHistory:
    """The epochs of one log, in the order in which they began; the last one is the present one."""

    def __init__(self, epochs: Sequence[Epoch]) -> None:
        self._epochs = tuple(epochs)
        self.current = self._epochs[-1].id
        """The id of the present epoch."""

    @classmethod
    def begin(cls, root: Path, log_end: int, now_ms: int, rng: random.Random) -> LogHistory:
        """Begin an epoch at the end of the log of the store at `root`. Raises OSError."""
        path = root / HISTORY_FILE
        # The log may have lost its end.
        known = [Epoch(each.id, min(each.position, log_end)) for each in _read(path)][1 - EPOCHS_MAX :]
        begun_ms = max(now_ms, _began_ms(known[-1].id) + 1) if known else now_ms
        epochs = [*known, Epoch(f"{begun_ms:x}-{rng.getrandbits(32):08x}", log_end)]
        replace_file(path, msgspec.json.encode(_File(epochs)))
        return cls(epochs)

    def end_of(self, epoch_id: str) -> int | None:
        """Return the CommitLog position up to which this log is the one that was read in an epoch.

        Returns None if that is all of it, or if the id is not that of an epoch.
        """
        following = iter(self._epochs)
        for each in following:
            if each.id == epoch_id:
                return next((end.position for end in following), None)
        if not _ID.fullmatch(epoch_id):
            return None
        began_ms = _began_ms(epoch_id)
        later = (each.position for each in self._epochs if _began_ms(each.id) > began_ms)
        return next(later, self._epochs[-1].position)


class PastPositions:
    """Finds the positions of consumers in one log that they have from another past of it."""

    def __init__(self, store: MessageStore, history: LogHistory | None) -> None:
        """Create the object; without a history, as for a slave or in a Raft group, no position is checked."""
        self._store = store
        self._history = history

    @property
    def current(self) -> str:
        """The id of the present epoch; empty without a history."""
        return "" if self._history is None else self._history.current

    def must_check(self, epoch_id: str) -> bool:
        """Return True if positions that were read in an epoch must be checked.

        They are not while the end of the log is unknown: consumers wait then (`LogEnd`).
        """
        history = self._history
        return history is not None and epoch_id != history.current and self._store.positions.is_end_known

    def valid(self, topic: str, queue_id: int, offset: int, epoch_id: str, group: str) -> int:
        """Return `offset`, or the end of what this log has of the messages that were read in the epoch.

        Raises StoreError, and NotResident inside `resident_only`.
        """
        position = None if self._history is None else self._history.end_of(epoch_id)
        if position is None:
            return offset
        end = self._store.offset_at_position(topic, queue_id, position)
        if end < offset:
            _log.warning(
                "log_went_back", group=group, topic=topic, queue_id=queue_id, requested=offset, resumed_at=end
            )
        return min(offset, end)


def stored_epoch(root: Path) -> str:
    """Return the id of the last epoch of the store at `root`; empty if it is unknown."""
    epochs = _read(root / HISTORY_FILE)
    return epochs[-1].id if epochs else ""


def _began_ms(epoch_id: str) -> int:
    return int(epoch_id.partition("-")[0], 16)


def _read(path: Path) -> list[Epoch]:
    """Return the epochs in a file; none if it is missing or damaged, which only makes it forget them."""
    try:
        epochs = msgspec.json.decode(path.read_bytes(), type=_File).epochs
        if all(_ID.fullmatch(each.id) and each.position >= 0 for each in epochs):
            return epochs
        error: object = "an epoch is invalid"
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as invalid:
        error = invalid
    _log.warning("log_history_damaged", path=str(path), error=str(error))
    return []
