"""LogCopy: the CommitLog of a slave, which becomes a copy of its master's; sans I/O.

          begin                end of the slave's log
    ────────┼──────────────────────────┼─────────────────→  the master's log
    held    │ received and compared    │ received and appended

RocketMQ's HA frames cannot ask whether two logs are equal. So a slave requests again the last bytes that it
holds, and compares them with what the master sends before it appends: if the logs differ, replication stops
and nothing is changed.

A master of RocketMQ understands a report of 0 as "the start of your last file". To get its log from offset 0
on, a slave reports 1, unless the log is empty, and supplies the first byte itself: it is the highest byte of
a record's size, which is 0 for records below 16 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from actors.broker.replication.ha.ha_frames import HaFrame
from actors.wire.remoting_errors import ProtocolError
from store.message.buffers import Buffer
from store.message_store import MessageStore

COMPARED_BYTES: Final = 4 << 20
"""How many bytes at the end of its log, in the last file, a slave compares after it has connected."""
_FIRST_BYTE: Final = b"\0"


class LogDiverged(Exception):
    """The logs of slave and master differ: the slave must not append, and a person must decide.

    Attributes:
        position: the CommitLog offset from which on they differ.
        file_bytes: the size of the master's log files, if it differs from the slave's; else 0.
    """

    def __init__(self, reason: str, position: int, file_bytes: int = 0) -> None:
        super().__init__(reason, position, file_bytes)
        self.reason = reason
        self.position = position
        self.file_bytes = file_bytes

    def __str__(self) -> str:
        return self.reason


class LogBounds(NamedTuple):
    """The CommitLog offsets between which a broker has its log."""

    begin: int
    end: int


def join_offset(held: LogBounds, master: LogBounds, file_bytes: int) -> int:
    """Return the CommitLog offset from which a slave requests the master's log.

    Raises LogDiverged if the logs cannot have a common part there.
    """
    if not held.end:
        return master.begin
    if master.begin > held.end:
        raise LogDiverged(
            f"the master's log begins at {master.begin:,}, but this slave's ends at {held.end:,}: the files "
            "between were deleted",
            held.end,
        )
    if master.end < held.end:
        raise LogDiverged(
            f"the master's log ends at {master.end:,}, but this slave's at {held.end:,}: the master has lost "
            "messages, or is not the one that this slave has followed",
            master.end,
        )
    last_file = (held.end - 1) // file_bytes * file_bytes
    return max(last_file, held.end - COMPARED_BYTES, master.begin)


class LogCopy:
    """Compares and appends the frames of one connection to a master."""

    def __init__(self, store: MessageStore, begin: int, held: Buffer, master_end: int) -> None:
        """Create the copy.

        Args:
            store: the slave's store.
            begin: the CommitLog offset from which the master's log is requested (`join_offset`).
            held: the bytes that the slave's log has from there to its end.
            master_end: the end of the master's log.
        """
        self._store = store
        self._held = bytes(held)
        self._begin = begin
        self.first_report = begin or min(master_end, 1)
        """The report that requests the log from `begin` on."""
        self._position = self.first_report

    @property
    def end(self) -> int:
        """The CommitLog offset before which the logs of slave and master are known to be equal."""
        return self._position

    def take(self, frames: Sequence[HaFrame]) -> bool:
        """Compare and append the data of successive frames. Return True if bytes were appended.

        Raises:
            LogDiverged: the data differs from what the slave holds.
            ProtocolError: a frame does not begin where the last one ended.
            RecordDamaged: a record in the data is damaged.
            StoreError: the store refuses the bytes, for example because its disk is full.
        """
        begin = self._position
        for frame in frames:
            if frame.offset != self._position:
                raise ProtocolError(
                    f"the master sent bytes at offset {frame.offset:,}, expected are {self._position:,}",
                    "a master that cannot send the requested part of its log",
                )
            self._position += len(frame.data)
        data = frames[0].data if len(frames) == 1 else memoryview(b"".join(each.data for each in frames))
        new = self._compare(begin, data)
        if not len(new):
            return False
        offset = self._position - len(new)
        if offset == 1 and not self._store.positions.written:
            offset, new = 0, memoryview(_FIRST_BYTE + bytes(new))
        self._store.append_raw(offset, new)
        return True

    @property
    def is_compared(self) -> bool:
        """True if all bytes that the slave held at its connection are compared."""
        return self._position >= self._begin + len(self._held)

    def _compare(self, begin: int, data: memoryview) -> memoryview:
        """Compare `data` with the held bytes at `begin`; return the part that lies behind them."""
        place = begin - self._begin
        held = self._held[place : place + len(data)]
        if bytes(data[: len(held)]) != held:  # bytes: a memoryview compares one by one
            differs = next(at for at, (a, b) in enumerate(zip(data, held, strict=False)) if a != b)
            end = self._begin + len(self._held)
            raise LogDiverged(
                f"the CommitLog differs from the master's at offset {begin + differs:,}, and this slave's "
                f"ends at {end:,}; nothing was changed",
                begin + differs,
            )
        return data[len(held) :]
