"""LogHistory: recognizes positions that a consumer has from another past of the log (Kafka's KIP-320).

A log goes back if its store is restored from a copy, or loses its end. What is written then gets the queue
offsets of the lost messages, so that a consumer behind them would skip it. Each start of a master begins an
epoch of the log:

    raymq.history    {"epochs": [["198c2f5e1a0-9f3b22c1", 0], ["198c2f61b44-07aa51de", 48128]]}

An epoch has a random id, which begins with its time, and the CommitLog position at which it begins. It ends
where the next one begins. A consumer of RayMQ sends the id of the epoch in which it read; what it has read
there is in this log up to the end of the epoch. If a copy of the store does not know the epoch, it began
after the copy was made: the histories differ from the first epoch on that began after it.

The epochs of a Raft group are the terms of its leaders (`GroupLogHistory`), which all of its replicas know.
Their ids end with `GROUP_EPOCH`.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.raft.group_record import GROUP_TOPIC, decode_group_record
from actors.wire.raymq_requests import FROM_OTHER, GROUP_EPOCH
from store.common.logs import get_logger
from store.disk.files import replace_file
from store.message.record import body_of
from store.message_store import MessageStore
from store.reading.queries import store_timestamp_of
from store.store_errors import StoreError

_log = get_logger(__name__)

HISTORY_FILE = "raymq.history"
EPOCHS_MAX = 1_000
"""Epochs that are kept. A consumer that read before the first of them is not recognized."""
_ID = re.compile(rf"([0-9a-f]{{1,15}})-[0-9a-f]{{8}}({GROUP_EPOCH})?", re.ASCII)


class Epoch(NamedTuple):
    """One epoch of the log, and the CommitLog position at which it begins."""

    id: str
    position: int


class _File(msgspec.Struct):
    epochs: list[Epoch]


class LogHistory:
    """The epochs of one log, in the order in which they began; the last one is the present one."""

    def __init__(self, epochs: Sequence[Epoch]) -> None:
        self._epochs = [*epochs]

    @property
    def current(self) -> str:
        """The id of the present epoch; empty if it is unknown."""
        return self._epochs[-1].id if self._epochs else ""

    def has(self, epoch_id: str) -> bool:
        """Return True if the epoch is one of this log."""
        return any(each.id == epoch_id for each in self._epochs)

    def is_before(self, epoch_id: str) -> bool:
        """Return True if an epoch began after the present one of this log."""
        return bool(_ID.fullmatch(epoch_id)) and _began_ms(self.current) < _began_ms(epoch_id)

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
        later = (each.position for each in self._epochs if _began_ms(each.id) >= began_ms)
        return next(later, self._epochs[-1].position)


class GroupLogHistory(LogHistory):
    """The epochs of the log of a Raft group: the terms of its leaders, each of which begins with a record.

    The id of an epoch is made of this record, so it is the same at each replica.
    """

    def __init__(self, store: MessageStore) -> None:
        super().__init__(())
        self._store = store
        self._next_offset = 0
        self.term = 0
        """The term of the present epoch."""
        self._read()

    @property
    def current(self) -> str:
        """The id of the last epoch whose first record can be read; empty without one."""
        if self._store.max_offset(GROUP_TOPIC, 0) != self._next_offset:
            self._read()
        return super().current

    def _read(self) -> None:
        store = self._store
        end = store.max_offset(GROUP_TOPIC, 0)
        begin = max(self._next_offset, store.min_offset(GROUP_TOPIC, 0), end - EPOCHS_MAX)
        for unit in store.units(GROUP_TOPIC, 0, begin, end - begin):
            try:
                record = store.record_at(unit.physical_offset)
                term = decode_group_record(record[body_of(record)]).term
            except (StoreError, ValueError):
                continue  # deleted or damaged: its term is not recognized
            if term > self.term:
                self.term = term
                epoch_id = f"{store_timestamp_of(record):x}-{zlib.crc32(record):08x}{GROUP_EPOCH}"
                self._epochs = [*self._epochs[1 - EPOCHS_MAX :], Epoch(epoch_id, unit.physical_offset)]
        self._next_offset = end


class PastPositions:
    """Finds the positions of consumers in one log that they have from another past of it."""

    def __init__(
        self,
        store: MessageStore,
        history: LogHistory | None,
        may_judge: Callable[[str], bool] | None = None,
    ) -> None:
        """Create the object; without a history, as for a slave, no position is checked.

        `may_judge` returns False while this replica cannot say whether an epoch is one of its log; default:
        while the end of the log is unknown, as consumers wait then (`LogEnd`).
        """
        self._store = store
        self._history = history
        self._may_judge = may_judge or (lambda _: store.positions.is_end_known)

    @property
    def current(self) -> str:
        """The id of the present epoch; empty without a history."""
        return "" if self._history is None else self._history.current

    def must_check(self, epoch_id: str) -> bool:
        """Return True if positions that were read in an epoch must be checked, and can be."""
        current = self.current
        if not current or epoch_id == current:
            return False
        return epoch_id.endswith(FROM_OTHER) or self._may_judge(epoch_id)

    def named(self, epoch_id: str) -> str:
        """Return the epoch of a consumer after its position was checked."""
        epoch_id = epoch_id.removesuffix(FROM_OTHER)
        return self.current if self._may_judge(epoch_id) else epoch_id

    def valid(self, topic: str, queue_id: int, offset: int, epoch_id: str, group: str) -> int:
        """Return `offset`, or the end of what this log has of the messages that were read in the epoch.

        Raises StoreError, and NotResident inside `resident_only`.
        """
        epoch_id = epoch_id.removesuffix(FROM_OTHER)
        if self._history is None or not self._may_judge(epoch_id):
            return offset
        position = self._history.end_of(epoch_id)
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
