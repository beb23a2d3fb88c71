"""A generated timer: adds, deletions, time, restarts, kills and power failures in any order.

The CommitLog is a list. What the timer has saved must suffice to deliver each message of the flushed part of
the list, never before its time, and after a clean restart never twice.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from benchmarks.experiments.history.checks import early
from benchmarks.experiments.history.events import Recorder
from store.timer.timer_files import TimerFiles, TimerProgress
from store.timer.timer_schedule import TimerArrival, TimerSchedule, time_in_wheel
from store.timer.timer_wheel import SLOT_BYTES, SLOTS

START_MS = 1_700_000_000_000
WINDOW_S = 10
RECORD_BYTES = 100
LOG_FILE_BYTES = 20 * 52 + 16


class Record(NamedTuple):
    """A record of the CommitLog: a message or deletion in the timer topic, or a delivered message."""

    kind: str
    value: str
    due_ms: int
    stored_ms: int


class TimerMachine(RuleBasedStateMachine):
    """A timer over a list of records; its files are real."""

    @initialize()
    def open_empty(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.now_ms = START_MS
        self.log: list[Record] = []
        self.flushed = 0
        self.recorder = Recorder()
        self.sent = 0
        self.may_repeat: set[str] = set()
        self.deleted: set[str] = set()
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.files.close()
            shutil.rmtree(self.root)

    # ---- the timer, as `TimerService` runs it --------------------------------------------------------------

    def open(self) -> None:
        self.files = TimerFiles(self.root, LOG_FILE_BYTES)
        self.progress = self.files.recover(self.now_ms, len(self.log) * RECORD_BYTES)
        self.queue_offset = self.progress.queue_offset
        last = self.files.last_unit() if not self.progress.rebuilt_to else None
        if last is not None:
            resumed = self.timer_records().index(last.physical_offset // RECORD_BYTES) + 1
            self.queue_offset = max(self.queue_offset, resumed)
        self.queue_offset = min(self.queue_offset, len(self.timer_records()))
        self.schedule = TimerSchedule(self.files, self.progress.read_second, WINDOW_S)
        self.unsaved: tuple[TimerProgress, int, int] | None = None
        self.remember_pages()

    def timer_records(self) -> list[int]:
        return [place for place, record in enumerate(self.log) if record.kind != "delivered"]

    def run_timer(self) -> None:
        """Add all new records before each batch of deliveries: it may have rolled some."""
        more = True
        while more:
            self.add_new()
            more = not self.schedule.load(self.now_ms, 7)
            for unit in self.schedule.unread_deletes:
                value = self.log[unit.physical_offset // RECORD_BYTES].value
                self.schedule.delete(self.schedule.read_second, value, is_in_wheel=True)
            self.schedule.deletes_read()
            for entry in self.schedule.take(self.now_ms, 3):
                more = True
                record = self.log[entry.unit.physical_offset // RECORD_BYTES]
                if entry.unit.is_roll:
                    self.log.append(record._replace(stored_ms=self.now_ms))
                elif record.due_ms > self.now_ms:
                    self.schedule.put_back(entry, record.due_ms)
                    continue
                elif self.schedule.is_deleted(record.value):
                    self.schedule.finish(entry, is_deleted=True)
                    continue
                else:
                    self.deliver(record)
                self.schedule.finish(entry)

    def add_new(self) -> None:
        for place in self.timer_records()[self.queue_offset :]:
            record = self.log[place]
            while self.files.is_full:
                self.files.allocate()
            is_delete = record.kind == "delete"
            arrival = TimerArrival(
                record.due_ms, record.stored_ms, place * RECORD_BYTES, RECORD_BYTES, 0, is_delete
            )
            self.schedule.add(arrival)
            if is_delete:
                second = (record.due_ms - 1) // 1000
                self.schedule.delete(second, record.value, is_in_wheel=True)
            self.queue_offset += 1

    def deliver(self, record: Record) -> None:
        delivered = [each.value for each in self.log if each.kind == "delivered"]
        assert record.value not in self.deleted
        assert record.value not in delivered or record.value in self.may_repeat
        self.recorder.read("c", "G", "T", 0, len(delivered), record.value, self.now_ms)
        self.log.append(record._replace(kind="delivered"))

    def save(self, progress: TimerProgress, log_end: int) -> None:
        if self.files.exist:
            self.files.save(progress, log_end, self.now_ms)
            self.remember_pages()

    def remember_pages(self) -> None:
        """Keep the content that is on disk for sure: all that was flushed."""
        self.pages = {path: path.read_bytes() for path in (self.root / "timerlog").glob("*")}
        self.slots = self.wheel_part()

    def wheel_part(self, content: bytes | None = None) -> bytes:
        """Read, or replace, the slots of the seconds that the test uses."""
        path = self.root / "timerwheel"
        if not path.exists():
            return b""
        place = (START_MS // 1000 - 10) % SLOTS * SLOT_BYTES
        with path.open("r+b") as file:
            file.seek(place)
            if content is not None:
                file.write(content or bytes(1000 * SLOT_BYTES))
            return file.read(1000 * SLOT_BYTES)

    # ---- what may happen -----------------------------------------------------------------------------------

    @rule(delays=st.lists(st.integers(1, 25_000), min_size=1, max_size=4))
    def send(self, delays: list[int]) -> None:
        for delay_ms in delays:
            self.sent += 1
            value = f"v{self.sent}"
            due_ms = self.now_ms + delay_ms
            self.recorder.send("p", "T", value, queue=0, time_ms=due_ms).info()
            self.log.append(Record("timer", value, due_ms, self.now_ms))

    @rule(number=st.integers(0, 5))
    def delete(self, number: int) -> None:
        waiting = [
            record
            for record in self.log
            if record.kind == "timer" and record.due_ms > self.now_ms and record.value not in self.deleted
        ]
        if number < len(waiting):
            record = waiting[number]
            self.deleted.add(record.value)
            self.log.append(record._replace(kind="delete", stored_ms=self.now_ms))
            second = (record.due_ms - 1) // 1000
            self.schedule.delete(second, record.value, is_in_wheel=False)

    @rule(ms=st.sampled_from([1, 7, 300, 999, 1000, 1001, 4_500, 12_000]))
    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.run_timer()

    @rule()
    def flush(self) -> None:
        self.flushed = len(self.log)

    @rule()
    def save_progress(self) -> None:
        """As `TimerSaving.save`."""
        if self.unsaved is not None and self.flushed >= self.unsaved[2]:
            self.save(self.unsaved[0], self.unsaved[1])
            self.unsaved = None
        if self.unsaved is None:
            progress = TimerProgress(self.queue_offset, self.schedule.read_second)
            self.unsaved = (progress, self.files.end, len(self.log))

    @rule()
    def restart(self) -> None:
        self.flush()
        if self.schedule.needs_compaction:
            self.schedule.compact()
        is_compact = not self.schedule.needs_compaction
        self.save(TimerProgress(self.queue_offset, self.schedule.read_second), self.files.end)
        if not is_compact:  # no room in the last file of the log
            self.repeat_from(self.schedule.read_second)
        self.files.close()
        self.open()

    @rule()
    def kill(self) -> None:
        self.files.close()
        self.open()
        self.repeat_from(self.schedule.read_second)

    @rule(log_survives=st.booleans(), wheel_survives=st.booleans())
    def fail_power(self, log_survives: bool, wheel_survives: bool) -> None:
        """Lose what was not flushed: records, and any of the pages that were written since the last save."""
        self.files.close()
        del self.log[self.flushed :]
        self.deleted &= {record.value for record in self.log if record.kind == "delete"}  # or its rolled copy
        for path in (self.root / "timerlog").glob("*"):
            if not log_survives:
                path.write_bytes(self.pages.get(path, bytes(LOG_FILE_BYTES)))
        if not wheel_survives:
            self.wheel_part(self.slots)
        self.open()
        self.repeat_from(self.schedule.read_second)

    def repeat_from(self, second: int) -> None:
        """Allow that messages which were due, or rolled, from `second` on are delivered again."""
        for record in self.log:
            time_ms, _ = time_in_wheel(record.due_ms, record.stored_ms, WINDOW_S)
            if record.kind != "delete" and max(time_ms, record.due_ms - 1) >= second * 1000:
                self.may_repeat.add(record.value)

    @invariant()
    def no_message_was_early(self) -> None:
        if hasattr(self, "recorder"):
            assert not list(early(self.recorder.events))

    @rule()
    def run_until_all_are_delivered(self) -> None:
        for _ in range(40):
            self.now_ms += 1000
            self.run_timer()
        sent = {record.value for record in self.log if record.kind == "timer"}
        delivered = {record.value for record in self.log if record.kind == "delivered"}
        assert sent - self.deleted <= delivered
        assert not self.schedule.take(self.now_ms, 1)


TimerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_timer_survives_any_sequence_of_faults = TimerMachine.TestCase
