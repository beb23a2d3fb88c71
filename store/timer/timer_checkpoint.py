"""TimerCheckpoint: the file `config/timercheck`, the progress of the timer.

See docs/store-format.md#timer-checkpoint.

4,096 bytes, big-endian, zeros after the last field:

    0            8                  16            24                  32             40          48
    | lastReadMs | timerLogFlushPos | queueOffset | masterQueueOffset | stateVersion | timestamp | counter |
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final, Self

from store.disk.files import reserve, sync_directory
from store.store_errors import StoreError
from store.timer.timer_unit import MS_PER_SECOND

CHECKPOINT_BYTES: Final = 4096
LATE_MS: Final = 60_000
"""Messages that were due in this time before a save of the progress are perhaps not delivered yet."""
_FIELDS: Final = Struct(">qqqqqqq")


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The fields of the file. All messages that were due before `last_read_ms` are delivered.

    Units of the timer log before `log_flush_position` are durable. They contain the messages of the timer
    topic before `queue_offset`; on a master, `master_queue_offset` is the same.
    """

    last_read_ms: int = 0
    log_flush_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    @property
    def delivered_ms(self) -> int:
        """The time before which all due messages of `master_queue_offset` are delivered.

        It is `last_read_ms`, unless the wall clock was set back since: messages that came afterwards wait for
        their time, although it is before `last_read_ms`. Then some are perhaps delivered again.
        """
        if self.last_read_ms <= self.timestamp_ms + MS_PER_SECOND or not self.timestamp_ms:
            return self.last_read_ms
        return max(self.timestamp_ms - LATE_MS, 0)

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """Return the checkpoint in the first 56 bytes of `data`. Raises StoreError if they are invalid."""
        if len(data) < _FIELDS.size:
            raise StoreError(f"the timer checkpoint has {len(data)} bytes, at least {_FIELDS.size} expected")
        found = cls(*_FIELDS.unpack_from(data))
        if min(found.last_read_ms, found.log_flush_position, found.queue_offset) < 0:
            raise StoreError(f"the timer checkpoint has a negative field: {found}")
        return found

    @classmethod
    def read(cls, path: Path) -> TimerCheckpoint | None:
        """Return the checkpoint in the file; None if it does not exist. Raises StoreError, OSError."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return cls.decode(data)
        except StoreError as error:
            raise StoreError(error.reason, path) from error

    def encode(self) -> bytes:
        """Return the 56 bytes of the fields."""
        return _FIELDS.pack(
            self.last_read_ms,
            self.log_flush_position,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.timestamp_ms,
            self.counter,
        )

    def moved(self, last_read_ms: int, log_flush_position: int, queue_offset: int, now_ms: int) -> Self:
        """Return the checkpoint with this progress, and with the next version if the progress is new."""
        progress = (last_read_ms, queue_offset)
        is_new = progress != (self.last_read_ms, self.master_queue_offset)
        return replace(
            self,
            last_read_ms=last_read_ms,
            log_flush_position=log_flush_position,
            queue_offset=queue_offset,
            master_queue_offset=queue_offset,
            timestamp_ms=now_ms if is_new else self.timestamp_ms,
            counter=self.counter + is_new,
        )

    def write(self, path: Path) -> None:
        """Write the file durably. It keeps its inode: RocketMQ maps it. Raises OSError.

        The fields are within one disk sector, so a power failure leaves the old or the new ones.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not existed:
                reserve(descriptor, CHECKPOINT_BYTES, path)
            os.pwrite(descriptor, self.encode(), 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if not existed:
            sync_directory(path.parent)
