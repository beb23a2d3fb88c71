"""TimerSchedule: decides when each timer message is due. No clock and no I/O of its own except the files.

    add ──► wheel and log ──(its second begins)──► queue of the second ──(due)──► take ──► finish
                                                        ▲                          │
                                                        └────────── put_back ──────┘

The schedule processes one second after the other. `read_second` is the first one that is not finished. Its
messages are in memory as pairs of numbers, 16 bytes each; all later ones are only in the files.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.common.logs import get_logger
from store.store_errors import StoreError
from store.timer.timer_files import TimerFiles
from store.timer.timer_unit import DELETE, MS_PER_SECOND, NO_POSITION, NORMAL, ROLL, TimerUnit
from store.timer.timer_wheel import SLOTS

_log = get_logger(__name__)

_DELAY_MAX_MS: Final = 2**31 - 1
_SECONDS_PER_LOAD: Final = 4096


class TimerEntry(NamedTuple):
    """A timer message that `take` returned: the position of its unit, and the unit."""

    position: int
    unit: TimerUnit


class TimerArrival(NamedTuple):
    """A message of the timer topic: when it is due, when it was stored, and where."""

    due_ms: int
    stored_ms: int
    physical_offset: int
    record_bytes: int
    topic_hash: int
    is_delete: bool = False


def time_in_wheel(due_ms: int, stored_ms: int, window_s: int) -> tuple[int, int]:
    """Return the time of a message's unit, and the flag ROLL or 0.

    A message that is due `window_s` or more after it was stored is rolled: its record has to be appended
    again before the CommitLog file with the present one is deleted. As in RocketMQ, that is after the window,
    or after half of it if less than a third of the window would remain.
    """
    time_ms, stored_ms = due_ms - 1, stored_ms // MS_PER_SECOND * MS_PER_SECOND
    beyond_ms = time_ms // MS_PER_SECOND * MS_PER_SECOND - stored_ms - window_s * MS_PER_SECOND
    if beyond_ms < 0:
        return time_ms, 0
    wait_s = window_s // 2 if beyond_ms < window_s // 3 * MS_PER_SECOND else window_s
    return stored_ms + wait_s * MS_PER_SECOND, ROLL


class TimerSchedule:
    """The pending timer messages of one store."""

    def __init__(self, files: TimerFiles, read_second: int, window_s: int) -> None:
        """Create the schedule of recovered files.

        Args:
            files: The wheel and the log.
            read_second: The first second whose messages are not all delivered.
            window_s: Messages that are due later than this after they were stored are rolled.
        """
        self._files = files
        self.read_second = read_second
        self._window_s = window_s
        self.pending = files.pending(read_second)
        """Number of messages that are not delivered yet."""
        self._second = _Second()
        # Deletions of messages in later seconds whose units are not in the wheel yet.
        self._cancelled: dict[int, set[str]] = {}

    def add(self, arrival: TimerArrival, *, skip_before: int = 0) -> TimerUnit | None:
        """Add a message to the wheel; return its unit, or None if its second is before `skip_before`.

        Raises StoreError if the files are full (`TimerFiles.is_full`).
        """
        time_ms, roll = time_in_wheel(arrival.due_ms, arrival.stored_ms, self._window_s)
        if time_ms // MS_PER_SECOND < skip_before:
            return None
        is_late = time_ms // MS_PER_SECOND < self.read_second
        if is_late:
            time_ms = self.read_second * MS_PER_SECOND
        stored_ms = min(max(arrival.stored_ms, time_ms - _DELAY_MAX_MS), time_ms + _DELAY_MAX_MS)
        stored_ms = stored_ms // MS_PER_SECOND * MS_PER_SECOND
        magic = NORMAL | roll | (DELETE if arrival.is_delete else 0)
        unit = TimerUnit(
            NO_POSITION, magic, stored_ms, time_ms - stored_ms, arrival.physical_offset,
            arrival.record_bytes, arrival.topic_hash,
        )  # fmt: skip
        second = self._second
        if is_late and not second.has_begun:
            # The wall clock was set back, or the message comes after its time: do not wait for the second.
            self._begin_second(is_ahead=True)
        position = self._files.append(unit)
        self.pending += -1 if arrival.is_delete else 1
        if unit.second == self.read_second and second.has_begun:
            second.arrived(position, unit, arrival.due_ms if is_late else unit.time_ms + 1)
        return unit

    def may_add(self, now_ms: int) -> bool:
        """Return False while slots of the wheel that are not read yet could be needed for new messages."""
        last_second = max(now_ms // MS_PER_SECOND, self.read_second) + self._window_s
        return last_second - self.read_second < SLOTS

    def load(self, now_ms: int, limit: int) -> bool:
        """Prepare the messages of the present second, at most `limit` units per call.

        Returns True if the call has done everything that can be done at `now_ms`.
        """
        for _ in range(_SECONDS_PER_LOAD):
            second = self._second
            if not second.has_begun:
                now_second = now_ms // MS_PER_SECOND
                if not self._cancelled and self.read_second < now_second:
                    skipped_to = min(now_second, self.read_second + _SECONDS_PER_LOAD)
                    self.read_second = self._files.next_second(self.read_second, skipped_to)
                self._begin_second(is_ahead=self.read_second > now_second)
            limit -= self._walk(limit)
            if second.next_position != NO_POSITION:
                return False
            second.sort()
            if second.is_busy or now_ms < (self.read_second + 1) * MS_PER_SECOND:
                return True
            self._end_second()
        return False

    @property
    def unread_deletes(self) -> Sequence[TimerUnit]:
        """The units of deletions in the present second whose messages the caller must pass to `delete`."""
        return self._second.unread_deletes

    def deletes_read(self) -> None:
        """Record that the messages of all `unread_deletes` were passed to `delete`."""
        self._second.unread_deletes.clear()

    def delete(self, second: int, key: str, *, is_in_wheel: bool) -> None:
        """Record that the message with a key, which is due in `second`, must not be delivered.

        Args:
            second: The second of its TIMER_OUT_MS.
            key: Its topic, "+" and its UNIQ_KEY.
            is_in_wheel: True if the wheel has the deletion, so that it need not be remembered here.
        """
        if second <= self.read_second:
            self._second.deleted.add(key)
        elif not is_in_wheel:
            self._cancelled.setdefault(second, set()).add(key)
        else:
            waiting = self._cancelled.get(second, set())
            waiting.discard(key)
            if not waiting:
                self._cancelled.pop(second, None)

    def is_deleted(self, key: str) -> bool:
        """Return True if the message with this key, of the present second, was deleted."""
        return key in self._second.deleted

    def take(self, now_ms: int, limit: int) -> list[TimerEntry]:
        """Return up to `limit` messages that are due at `now_ms`, in the order in which they became due.

        The caller passes each to `finish` or `put_back`. Empty until `load` has returned True.
        """
        second = self._second
        if not second.is_loaded or second.unread_deletes:
            return []
        taken: list[TimerEntry] = []
        while len(taken) < limit and second.next_due_ms <= now_ms:
            position = second.pop()
            try:
                taken.append(TimerEntry(position, self._files.unit_at(position)))
            except StoreError as error:
                _log.error("timer_unit_unreadable", position=position, error=str(error))
        second.in_flight += len(taken)
        return taken

    def put_back(self, entry: TimerEntry, due_ms: int) -> None:
        """Return a taken message to the schedule: it is due at `due_ms`."""
        self._second.in_flight -= 1
        self._second.push(due_ms, entry.position)

    def finish(self, entry: TimerEntry, *, is_deleted: bool = False) -> None:
        """Record that a taken message is delivered, rolled, deleted or skipped."""
        self._second.in_flight -= 1
        self._second.finished += 1
        if is_deleted:
            self._second.matched += 1
        else:
            self.pending -= -1 if entry.unit.magic & DELETE else 1

    def next_ms(self) -> int:
        """Return the time at which there is something to do next, in ms since the epoch."""
        if not self._second.has_begun:
            return self.read_second * MS_PER_SECOND
        return min(self._second.next_due_ms, (self.read_second + 1) * MS_PER_SECOND)

    @property
    def needs_compaction(self) -> bool:
        """True if the present second has delivered messages, which a restart would deliver again."""
        return self._second.is_loaded and self._second.finished > 0

    def compact(self) -> None:
        """Replace the units of the present second by those that are still pending.

        Does nothing if they do not fit into the last file of the log.
        """
        second = self._second
        positions = second.pending_positions()
        if len(positions) > self._files.room:
            return
        units = [self._files.unit_at(position) for position in positions]
        self._files.clear(self.read_second)
        for unit in units:
            self._files.append(unit)
        second.finished = 0

    def _begin_second(self, *, is_ahead: bool) -> None:
        """Begin to load the present second.

        If `is_ahead`, because the wall clock was set back, messages of earlier seconds may be in this one
        (see `add`): the caller has to read them to find when they are due.
        """
        last = self._files.last_position(self.read_second)
        self._second.begin(last, self._cancelled.pop(self.read_second, set()), is_ahead=is_ahead)

    def _end_second(self) -> None:
        # A deletion that has matched no message has decreased `pending` too much.
        self.pending += self._second.delete_units - self._second.matched
        self.read_second += 1
        self._second = _Second()

    def _walk(self, limit: int) -> int:
        """Follow the chain of the present second for up to `limit` units; return the number of steps."""
        second, steps = self._second, 0
        while second.next_position != NO_POSITION and steps < limit:
            position = second.next_position
            try:
                unit = self._files.unit_at(position)
            except StoreError as error:
                _log.error("timer_unit_unreadable", position=position, error=str(error))
                second.next_position = NO_POSITION
                break
            due_ms = 0 if second.is_ahead else unit.time_ms + 1
            second.arrived(position, unit, due_ms, is_loading=True)
            second.next_position = unit.previous
            steps += 1
        return steps


class _Second:
    """The messages of one second."""

    def __init__(self) -> None:
        self.has_begun = self.is_ahead = self.is_loaded = False
        self.next_position = NO_POSITION
        self.in_flight = self.finished = self.matched = self.delete_units = 0
        self.deleted: set[str] = set()
        self.unread_deletes: list[TimerUnit] = []
        self._delete_positions: list[int] = []
        # Loaded from the wheel: sorted by due time, from `_next` on.
        self._loading = (array("q"), array("q"))
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.empty(0, np.int64),) * 2
        self._next = 0
        self._arrived: list[tuple[int, int]] = []

    def begin(self, last_position: int, deleted: set[str], *, is_ahead: bool) -> None:
        self.has_begun, self.is_ahead = True, is_ahead
        self.next_position = last_position
        self.deleted |= deleted

    def arrived(self, position: int, unit: TimerUnit, due_ms: int, *, is_loading: bool = False) -> None:
        if unit.is_delete:
            self.delete_units += 1
            self._delete_positions.append(position)
            if is_loading:
                self.unread_deletes.append(unit)
        elif is_loading:
            dues, positions = self._loading
            dues.append(due_ms)
            positions.append(position)
        else:
            self.push(due_ms, position)

    def sort(self) -> None:
        """Sort the loaded messages by due time, then by arrival."""
        if self.is_loaded:
            return
        dues, positions = (np.array(each, np.int64)[::-1] for each in self._loading)
        order = np.argsort(dues, kind="stable")
        self._sorted = (dues[order], positions[order])
        self._loading = (array("q"), array("q"))
        self.is_loaded = True

    @property
    def is_busy(self) -> bool:
        return bool(
            self.in_flight or self._arrived or self.unread_deletes or self._next < len(self._sorted[0])
        )

    @property
    def next_due_ms(self) -> int:
        dues = self._sorted[0]
        first = int(dues[self._next]) if self._next < len(dues) else 2**63 - 1
        return min(first, self._arrived[0][0]) if self._arrived else first

    def push(self, due_ms: int, position: int) -> None:
        heapq.heappush(self._arrived, (due_ms, position))

    def pop(self) -> int:
        """Remove the message that is due next, and return its position."""
        dues, positions = self._sorted
        if self._arrived and (self._next >= len(dues) or self._arrived[0][0] < dues[self._next]):
            return heapq.heappop(self._arrived)[1]
        self._next += 1
        return int(positions[self._next - 1])

    def pending_positions(self) -> list[int]:
        """Return the positions of all pending messages and deletions, in the order of the log."""
        pending = self._sorted[1][self._next :].tolist()
        return sorted([*pending, *(position for _, position in self._arrived), *self._delete_positions])
