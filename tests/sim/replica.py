"""SimReplica: executes the effects of one RaftNode on a simulated log, disk and network."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.raft import effects as do
from actors.raft.effects import SavedTerm
from actors.raft.members import Member
from actors.raft.messages import Ack, FetchRequest
from actors.raft.node import (
    Appended,
    Damaged,
    Flushed,
    GroupRecordAppended,
    RaftNode,
    Repaired,
    Tick,
    Trimmed,
)
from actors.raft.state import Role
from tests.sim.checks import Violation

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


HEARTBEATS = (FetchRequest, Ack)


class Crash(Exception):
    """The process of `replica` ends at this step."""

    def __init__(self, replica: SimReplica) -> None:
        super().__init__(replica)
        self.replica = replica


class SimReplica:
    """One replica: a process that may be down, and a disk that survives it."""

    def __init__(self, sim: Simulation, number: int, saved: SavedTerm) -> None:
        self.sim = sim
        self.number = number
        self.stores = 0
        self.node: Any = None  # None while the process is down
        self.life = 0  # counts the processes
        self.skew_ms = 0
        self.wall_skew_ms = 0
        self.flush_ms = 0  # 0: fast
        self.is_paused = False
        self.inbox: list[Any] = []
        self.heard: dict[int, float] = {}  # time of the last message of each other replica
        self.led_since = 0.0
        self.waiting: list[tuple[int, int]] = []  # end offset and value of unacknowledged sends
        self.steps_to_crash = -1
        self.last_group_record_end = 0
        self.log_min = 0
        self._timer = 0
        self.replace_disk(saved)
        self._do: dict[type, Callable[[Any], None]] = {
            do.SaveTerm: self._save_term,
            do.Send: self._send,
            do.SendRecords: self._send_records,
            do.SendRepair: self._send_repair,
            do.Append: self._append,
            do.AppendGroupRecord: self._append_group_record,
            do.Truncate: self._truncate,
            do.Restart: self._restart_log,
            do.Trim: lambda effect: self.log.trim(effect.offset),
            do.RepairRange: self._repair,
            do.Confirm: self._confirm,
            do.BecomeLeader: self._become_leader,
            do.OpenForSends: self._open_for_sends,
            do.LoseLeadership: self._lose_leadership,
            do.Fail: self._fail,
        }

    def __str__(self) -> str:
        return f"replica {self.number}"

    # ---- process -------------------------------------------------------------------------------------------

    def replace_disk(self, saved: SavedTerm) -> None:
        """Begin with an empty store, which has another id."""
        self.member = Member(self.number, f"{self.number}.{self.stores}")
        self.stores += 1
        self.saved = saved
        self.log = self.sim.make_log(self)

    def start(self) -> None:
        if self.node is not None:
            return
        self.life += 1
        self.waiting.clear()
        self.is_paused, self.steps_to_crash = False, -1
        self.inbox.clear()
        rng = random.Random(self.sim.rng.getrandbits(32))
        state = self.log.recover()
        now = self.now
        self.node = RaftNode(self.member, self.saved, state, now=now, rng=rng, timing=self.sim.timing)
        self.last_group_record_end = 0
        self.log_min = state.min
        self._timer = 0
        self.execute(self.node.start())
        self.sim.checks.on_start(self)
        self.log.lower_bound()
        if (damage := self.log.damage) is not None:
            self.feed(Damaged(*damage))
        self._arm()

    def crash(self, *, keeps_cache: bool) -> None:
        if self.node is not None:
            self.node = None
            self.log.crash(self.sim.rng, keeps_cache=keeps_cache)

    @property
    def now(self) -> int:
        return int(self.sim.now) + self.skew_ms

    @property
    def is_leader(self) -> bool:
        return self.node is not None and self.node.role is Role.LEADER

    # ---- input ---------------------------------------------------------------------------------------------

    def feed(self, message: Any) -> None:
        """Pass one input to the node, unless the process is down or stopped."""
        if self.node is None:
            return
        if self.is_paused:
            self.inbox.append(message)
            return
        if isinstance(message, HEARTBEATS):
            self.heard[message.sender.replica] = self.sim.now
        self.execute(self.node.on(message, self.now))

    def execute(self, effects: list[Any]) -> None:
        for effect in effects:
            if self.steps_to_crash >= 0:
                self.steps_to_crash -= 1
                if self.steps_to_crash < 0:
                    if type(effect) is do.Truncate:
                        self.log.crash_in_truncate(effect.offset, self.sim.rng)
                    raise Crash(self)
            if self.sim.trace is not None:
                self.sim.note(f"{self} {effect}")
            self._do[type(effect)](effect)
        self.sim.checks.on_step(self)
        self.log.turn()
        if self.node.accepts_sends:
            self._with_tables(self.log.keep_tables)
        if self.log.min > self.log_min:
            self.log_min = self.log.min
            self.execute(self.node.on(Trimmed(self.log_min), self.now))
        self._flush()
        self._arm()

    def _arm(self) -> None:
        """Schedule the next Tick; a timer that is early enough is kept."""
        deadline = self.node.deadline - self.skew_ms
        if not self.sim.now < self._timer <= deadline:
            self._timer = max(deadline, int(self.sim.now) + 1)
            self.sim.at(self._timer, self._on_timer, self.life, self._timer)

    def _on_timer(self, life: int, timer: int) -> None:
        if life != self.life or timer != self._timer or self.node is None:
            return
        if self.now >= self.node.deadline:
            self.feed(Tick())
        if self.node is not None and not self.is_paused:
            self._arm()

    def resume(self, life: int) -> None:
        """Continue a stopped process: it finds its clock ahead, and messages that have waited."""
        if life == self.life and self.is_paused and self.node is not None:
            self.is_paused = False
            waiting, self.inbox = self.inbox, []
            if self.sim.rng.random() < 0.5:
                waiting.insert(0, Tick())
            for message in waiting:
                self.feed(message)
            if self.node is not None:
                self._timer = 0
                self._arm()

    def append_value(self, value: int) -> None:
        """Append a client's value as the broker does: the node does not take part."""
        self.sim.checks.on_append(self)
        end = self.log.append_value(self.node.term, value)
        self.waiting.append((end, value))
        self.feed(Appended(end))

    # ---- disk ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        job = self.log.begin_flush()
        if job is not None:
            self.sim.at(self.sim.now + self.sim.flush_time_ms(self), self._end_flush, self.life, job)

    def _end_flush(self, life: int, job: Any) -> None:
        if life != self.life or self.node is None:
            return
        flushed = self.log.flushed
        self.log.end_flush(job)
        if self.log.flushed > flushed:
            self.feed(Flushed(self.log.flushed))
        if self.node is not None:
            self._flush()

    def _save_term(self, effect: do.SaveTerm) -> None:
        if effect.saved.is_electable and not self.saved.is_electable:
            self.sim.checks.on_complete(self)
        self.saved = effect.saved

    def _append(self, effect: do.Append) -> None:
        self.log.append(effect.offset, effect.records)

    def _append_group_record(self, effect: do.AppendGroupRecord) -> None:
        record, end = self.log.append_group_record(effect.term, effect.members)
        if len(self.node.epochs) and self.node.epochs[-1][0] == effect.term:
            self.sim.checks.on_change(self)
        self.last_group_record_end = end
        self.execute(self.node.on(GroupRecordAppended(record, end), self.now))

    def _truncate(self, effect: do.Truncate) -> None:
        self.sim.checks.on_truncate(self, effect.offset)
        self.log.truncate(effect.offset)

    def _restart_log(self, effect: do.Restart) -> None:
        self.sim.checks.on_restart_log(self, effect.offset)
        self.log.restart(effect.offset)

    def _repair(self, effect: do.RepairRange) -> None:
        if self.log.repair(effect.offset, effect.records):
            self.execute(self.node.on(Repaired(), self.now))

    def _confirm(self, effect: do.Confirm) -> None:
        begin = self.log.confirmed
        self.sim.checks.on_confirm(self, begin, effect.offset)
        self.log.confirm(effect.offset)
        if self.sim.rng.random() < 0.2:
            self.log.checkpoint()
        while self.waiting and self.waiting[0][0] <= effect.offset:
            self.sim.checks.on_ack(self, *self.waiting.pop(0))

    # ---- network -------------------------------------------------------------------------------------------

    def _send(self, effect: do.Send) -> None:
        self.sim.checks.on_send(self, effect.to, effect.message)
        self.sim.send(self.number, effect.to.replica, effect.message)

    def _send_records(self, effect: do.SendRecords) -> None:
        records = self.log.read(effect.message.offset)
        self.sim.send(self.number, effect.to.replica, effect.message._replace(records=records))

    def _send_repair(self, effect: do.SendRepair) -> None:
        records = self.log.read_range(effect.message.offset, effect.end)
        if records is not None:
            self.sim.send(self.number, effect.to.replica, effect.message._replace(records=records))

    # ---- role ----------------------------------------------------------------------------------------------

    def _become_leader(self, effect: do.BecomeLeader) -> None:
        self.led_since = self.sim.now
        self.sim.checks.on_leader(self, effect.term)

    def _open_for_sends(self, effect: do.OpenForSends) -> None:
        self._with_tables(self.log.take_over)

    def _with_tables(self, write: Callable[[], None]) -> None:
        """Let the log write records of tables, of which the node learns as of those of clients."""
        end = self.log.end
        write()
        if self.log.end > end:
            self.execute(self.node.on(Appended(self.log.end), self.now))

    def _lose_leadership(self, effect: do.LoseLeadership) -> None:
        self.waiting.clear()
        self.log.resign()

    def _fail(self, effect: do.Fail) -> None:
        raise Violation(f"{self} stops: {effect.reason}")
