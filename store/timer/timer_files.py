"""TimerFiles: the wheel, log and checkpoint of one store's timer, and their recovery.

All of them are derived from the messages of the timer topic in the CommitLog:

    1. read `timercheck`; units before its `log_flush_position` are durable, and so are their slots
    2. find the end of the log: after the last valid unit
    3. repeat the effect of the last units on the wheel, which may lack them after a power failure
    4. if a file is missing or damaged, create new files; the caller then adds all pending messages again
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from store.common.logs import get_logger
from store.store_errors import StoreError
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_log import TimerLog
from store.timer.timer_unit import DELETE, MS_PER_SECOND, UNIT_BYTES, TimerUnit
from store.timer.timer_wheel import SLOTS, Slot, TimerWheel

_log = get_logger(__name__)

_CHECKPOINT = Path("config", "timercheck")
REBUILDING = 2**62
"""The log position in `timercheck` while the files are rebuilt: a restart then finds them incomplete."""
REBUILT_SECONDS = SLOTS // 4
"""After a rebuild, messages that were due earlier than this before the start are delivered first."""


TIMER_TOPIC = "rmq_sys_wheel_timer"
"""The topic with the messages of the timer, in its queue 0."""


def rewind_timer(root: Path, queue_offset: int) -> None:
    """Mark the files of a stopped timer as incomplete, because its topic was truncated to `queue_offset`.

    Raises OSError.
    """
    path = root / _CHECKPOINT
    try:
        checkpoint = TimerCheckpoint.read(path)
    except StoreError:
        return  # a damaged checkpoint: all messages are added again in any case
    if checkpoint is not None:
        saved = min(checkpoint.queue_offset, queue_offset)
        replace(checkpoint, log_flush_position=REBUILDING, queue_offset=saved).write(path)


def follow_timer(root: Path, master: TimerCheckpoint) -> None:
    """Save the progress of the master's timer in the store `root` of a slave, which runs no timer itself.

    If the slave becomes a master, its timer adds all pending messages again, and leaves out those that the
    master has delivered. Raises OSError.
    """
    path = root / _CHECKPOINT
    saved = replace(master, log_flush_position=REBUILDING, queue_offset=master.master_queue_offset)
    if not path.exists() or not path.read_bytes().startswith(saved.encode()):
        saved.write(path)


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """Where a timer resumes.

    Messages of the timer topic before `queue_offset` are in the log, and those due before `read_second` are
    delivered. Messages before `rebuilt_to` have to be added again if they are due in `rebuilt_from` or later.
    """

    queue_offset: int
    read_second: int
    rebuilt_to: int = 0
    rebuilt_from: int = 0


class TimerFiles:
    """The files of one timer; created when the first message is added."""

    def __init__(self, root: Path, log_file_bytes: int) -> None:
        """Create the object; call `recover` next.

        Args:
            root: The root of the store.
            log_file_bytes: Size of a new file of the log.
        """
        self._wheel_path, self._log_path = root / "timerwheel", root / "timerlog"
        self._checkpoint_path = root / _CHECKPOINT
        self._file_bytes = log_file_bytes
        self._wheel: TimerWheel | None = None
        self._timer_log: TimerLog | None = None
        self.checkpoint = TimerCheckpoint()
        """The content of `config/timercheck`."""

    def recover(self, now_ms: int, physical_end: int) -> TimerProgress:
        """Open and repair the files, and return where to resume. Raises OSError.

        Args:
            now_ms: The present time; a timer without a checkpoint starts there.
            physical_end: End of the CommitLog that the units refer to; later units refer to lost records.
        """
        now_second = now_ms // MS_PER_SECOND
        checkpoint = self._read_checkpoint()
        exists = self._wheel_path.exists() or self._log_path.is_dir()
        if checkpoint is None:
            if exists:
                self._discard("config/timercheck is missing or damaged")
            self.checkpoint = TimerCheckpoint(now_second * MS_PER_SECOND)
            return TimerProgress(0, now_second)
        self.checkpoint = checkpoint
        read_second, saved = checkpoint.last_read_ms // MS_PER_SECOND, checkpoint.queue_offset
        if not exists and not checkpoint.log_flush_position:
            return TimerProgress(saved, max(read_second, now_second))
        try:
            self._open(checkpoint.log_flush_position, physical_end)
            self._redo(checkpoint.log_flush_position, read_second)
            self._check_wheel(checkpoint.log_flush_position, read_second)
        except StoreError as error:
            is_marked = checkpoint.log_flush_position == REBUILDING
            self._discard(
                "another broker delivered, or a rebuild was not finished" if is_marked else str(error),
                is_expected=is_marked,
            )
            self.checkpoint = replace(checkpoint, log_flush_position=REBUILDING)
            self.checkpoint.write(self._checkpoint_path)
            delivered = checkpoint.delivered_ms // MS_PER_SECOND
            earliest = max(delivered, now_second - REBUILT_SECONDS)
            return TimerProgress(0, earliest, saved, delivered)
        # A skip over all empty seconds at once: the saved one may be that of a broker of years ago.
        oldest = max(read_second, now_second - SLOTS)
        return TimerProgress(saved, self._first_second(read_second, oldest))

    @property
    def exist(self) -> bool:
        """True if the files exist, so that there is progress to save."""
        return self._timer_log is not None

    @property
    def is_full(self) -> bool:
        """True if `allocate` must be called before the next `append`."""
        return self._timer_log is None or self._timer_log.is_full

    @property
    def room(self) -> int:
        """Number of units that can be appended before `allocate` must be called."""
        return 0 if self._timer_log is None else self._timer_log.room

    @property
    def end(self) -> int:
        """Position after the last unit of the log."""
        return self._timer_log.end if self._timer_log is not None else 0

    def allocate(self) -> None:
        """Create the files, or the next file of the log; may be called in a thread. Raises OSError."""
        if self._wheel is None:
            self._wheel = TimerWheel(self._wheel_path)
        log = self._timer_log or TimerLog(self._log_path, self._file_bytes)
        if log.is_full:
            log.allocate()
        self._timer_log = log
        if not self._checkpoint_path.exists():
            self.checkpoint.write(self._checkpoint_path)

    def append(self, unit: TimerUnit) -> int:
        """Append a unit behind the other units of its second, and return its position.

        Raises StoreError if `is_full`.
        """
        assert self._timer_log is not None
        assert self._wheel is not None
        second = unit.second
        slot = self._wheel.slot(second)
        position = self._timer_log.append(unit._replace(previous=slot.last))
        first = position if slot.first < 0 else slot.first
        change = -1 if unit.magic & DELETE else 1
        self._wheel.put(second, Slot(first, position, slot.messages + change, slot.magic))
        return position

    def last_position(self, second: int) -> int:
        """Return the position of the last unit of a second; -1 if it has none."""
        return -1 if self._wheel is None else self._wheel.slot(second).last

    def next_second(self, begin: int, end: int) -> int:
        """Return the first second of [begin, end) that has had units; `end` if no second has."""
        return end if self._wheel is None else self._wheel.next_second(begin, end)

    def unit_at(self, position: int) -> TimerUnit:
        """Return the unit at a position. Raises StoreError if no valid unit begins there."""
        assert self._timer_log is not None
        return self._timer_log.unit_at(position)

    def last_unit(self) -> TimerUnit | None:
        """Return the last unit of the log, if it is not the last one of a full file."""
        log = self._timer_log
        if log is None or log.end - log.begin < UNIT_BYTES:
            return None
        try:
            return log.unit_at(log.end - UNIT_BYTES)
        except StoreError:
            return None

    def pending(self, from_second: int) -> int:
        """Return the number of messages that are due in `from_second` or later."""
        return 0 if self._wheel is None else max(self._wheel.pending(from_second), 0)

    def due_within(self, begin: int, end: int) -> int:
        """Return the number of messages that are due in the seconds [begin, end), at most SLOTS."""
        return 0 if self._wheel is None else max(self._wheel.due_within(begin, end), 0)

    def clear(self, second: int) -> None:
        """Remove all units of a second from the wheel."""
        if self._wheel is not None:
            self._wheel.put(second, Slot())

    def save(self, progress: TimerProgress, log_end: int, now_ms: int) -> None:
        """Flush the files, then write the checkpoint; may be called in a thread. Raises OSError.

        Args:
            progress: The progress to save.
            log_end: The `end` when this was the progress.
            now_ms: The present time.
        """
        assert self._timer_log is not None
        assert self._wheel is not None
        self._timer_log.sync()
        self._wheel.sync()
        read_ms = progress.read_second * MS_PER_SECOND
        self.checkpoint = self.checkpoint.moved(read_ms, log_end, progress.queue_offset, now_ms)
        self.checkpoint.write(self._checkpoint_path)

    def delete_before(self, physical_offset: int) -> int:
        """Delete files of the log whose messages are deleted from the CommitLog; return their number."""
        return 0 if self._timer_log is None else self._timer_log.delete_before(physical_offset)

    def close(self) -> None:
        """Close the files."""
        for each in (self._timer_log, self._wheel):
            if each is not None:
                each.close()
        self._timer_log = self._wheel = None

    def _read_checkpoint(self) -> TimerCheckpoint | None:
        try:
            return TimerCheckpoint.read(self._checkpoint_path)
        except StoreError as error:
            _log.error("timer_checkpoint_damaged", error=str(error))
            self._checkpoint_path.unlink()
            return None

    def _open(self, flushed: int, physical_end: int) -> None:
        if not self._wheel_path.exists():
            raise StoreError("the timer wheel is missing", self._wheel_path)
        self._wheel = TimerWheel(self._wheel_path)
        self._timer_log = TimerLog(self._log_path, self._file_bytes)
        self._timer_log.recover(max(flushed - self._timer_log.file_bytes, 0), physical_end)
        if self._timer_log.end < flushed:
            raise StoreError(
                f"the timer log ends at {self._timer_log.end:,}, but timercheck says {flushed:,}",
                self._log_path,
            )

    def _redo(self, flushed: int, read_second: int) -> None:
        """Add the last units to the wheel, as far as it lacks them."""
        log, wheel = self._timer_log, self._wheel
        assert log is not None
        assert wheel is not None
        table = wheel.table()
        # After a power failure the wheel may refer to units that the log has lost: build these slots again.
        ahead = (table["second"] >= read_second) & (table["last"] >= log.end)
        first_of = dict(zip(table["second"][ahead].tolist(), table["first"][ahead].tolist(), strict=True))
        for second in first_of:
            wheel.put(second, Slot())
        begin = min([flushed, *first_of.values()])
        for base, units in log.units(begin):
            seconds = (units["written_ms"] + units["delay_ms"]) // MS_PER_SECOND
            changes = np.where(units["magic"] & DELETE, -1, 1)
            seconds[: max(begin - base, 0) // UNIT_BYTES] = -1  # these units are in the wheel
            for index in np.flatnonzero(seconds >= read_second).tolist():
                second, position = int(seconds[index]), base + index * UNIT_BYTES
                slot = wheel.slot(second)
                # Earlier units may have been replaced (`TimerSchedule.compact`).
                if position >= first_of.get(second, flushed) and position > slot.last:
                    first = slot.first if slot.first >= 0 else position
                    messages = slot.messages + int(changes[index])
                    wheel.put(second, Slot(first, position, messages, slot.magic))

    def _check_wheel(self, flushed: int, read_second: int) -> None:
        """Raise StoreError if the wheel lacks pending units, of those in the last files of the log."""
        log, wheel = self._timer_log, self._wheel
        assert log is not None
        assert wheel is not None
        table = wheel.table()
        for base, units in log.units(max(flushed - log.file_bytes, 0)):
            seconds = (units["written_ms"] + units["delay_ms"]) // MS_PER_SECOND
            pending = np.flatnonzero(seconds > read_second)
            slots, positions = seconds[pending] % SLOTS, base + pending * UNIT_BYTES
            is_lacking = (table["second"][slots] != seconds[pending]) | (table["last"][slots] < positions)
            if is_lacking.any():
                raise StoreError(
                    f"the timer wheel lacks {np.count_nonzero(is_lacking):,} units of the timer log",
                    self._wheel_path,
                )

    def _first_second(self, read_second: int, latest: int) -> int:
        """Return the first second from `read_second` on that has messages; at most `latest`."""
        assert self._wheel is not None
        seconds = self._wheel.table()["second"]
        return int(seconds.min(initial=latest, where=seconds >= read_second))

    def _discard(self, reason: str, *, is_expected: bool = False) -> None:
        """Delete the wheel and the log; the caller adds the pending messages again."""
        log = _log.info if is_expected else _log.error
        log("timer_files_rebuilt", root=str(self._wheel_path.parent), reason=reason)
        self.close()
        self._wheel_path.unlink(missing_ok=True)
        shutil.rmtree(self._log_path, ignore_errors=True)
