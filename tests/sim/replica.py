"""SimReplica: one replica, whose RaftDriver runs on a simulated log, disk, network and clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.broker.replication.raft.addresses import MemberAddresses
from actors.broker.replication.raft.driver import RaftDriver
from actors.raft import effects as do
from actors.raft.effects import SavedTerm
from actors.raft.members import Member, Members
from actors.raft.messages import Ack, FetchRequest, Message
from actors.wire.remoting_errors import Refused
from tests.sim.checks import Lease, Violation
from tests.sim.driven import DrivenLog, DrivenStore, SteppedNode, address_of, number_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


HEARTBEATS = (FetchRequest, Ack)


class Crash(BaseException):
    """The process of `replica` ends at this step; no handler of errors sees it."""

    def __init__(self, replica: SimReplica) -> None:
        super().__init__(replica)
        self.replica = replica


class SimTimer:
    """A planned call of one process."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimReplica:
    """One replica: a process that may be down, and a disk that survives it."""

    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim = sim
        self.number = number
        self.stores = 0
        self.node: Any = None  # None while the process is down
        self.life = 0  # counts the processes
        self.skew_ms = 0
        self.wall_skew_ms = 0
        self.flush_ms = 0  # 0: fast
        self.is_paused = False
        self.inbox: list[Callable[[], None]] = []
        self.heard: dict[int, float] = {}  # time of the last message of each other replica
        self.led_since = 0.0
        self.opened_term = -1
        self.waiting: list[tuple[int, int]] = []  # end offset and value of unacknowledged sends
        self.steps_to_crash = -1
        self.last_group_record_end = 0
        self._restarts = False
        self.lease = Lease()
        self.replace_disk()

    def __str__(self) -> str:
        return f"replica {self.number}"

    # ---- disk ----------------------------------------------------------------------------------------------

    def replace_disk(self) -> None:
        """Begin with an empty store, which has another id."""
        self.member = Member(self.number, f"{self.number}.{self.stores}")
        self.stores += 1
        self.first_members = Members()
        self.log = self.sim.make_log(self)
        self._saved: SavedTerm | None = None

    @property
    def saved(self) -> SavedTerm:
        """What is on disk in `raymq.raft`."""
        if self._saved is None:
            self._saved = self.log.term_file().read() or SavedTerm()
        return self._saved

    def _flush(self) -> None:
        job = self.log.begin_flush()
        if job is not None:
            self.sim.at(self.sim.now + self.sim.flush_time_ms(self), self._end_flush, self.life, job)

    def _end_flush(self, life: int, job: Any) -> None:
        if life == self.life and self.node is not None:
            self.log.end_flush(job)
            self.end_turn()

    # ---- process -------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.node is not None:
            return
        self.life += 1
        self.waiting.clear()
        self.is_paused, self.steps_to_crash, self._restarts = False, -1, False
        self.inbox.clear()
        self.lease = Lease()
        rng = random.Random(self.sim.rng.getrandbits(32))
        make_node = partial(SteppedNode, on_effect=self._on_effect, timing=self.sim.timing)
        opened = self.log.open(rng, make_node)
        self._saved = None
        self.node = node = opened.node
        addresses = {self.member: address_of(self.number), **opened.addresses}
        self.addresses = MemberAddresses(addresses, lambda: node.members)
        log: Any = DrivenLog(self)
        store: Any = DrivenStore(self, self.log.store)
        self.driver = RaftDriver(node, log, store, opened.term_file, self, self.addresses, self)
        self.last_group_record_end = 0
        self.driver.start()
        self.sim.checks.on_start(self)
        self.log.lower_bound()
        self._after_turn()

    def crash(self, *, keeps_cache: bool) -> None:
        if self.node is not None:
            self.node = None
            self.log.crash(self.sim.rng, keeps_cache=keeps_cache)
            self._saved = None

    @property
    def now(self) -> int:
        return int(self.sim.now) + self.skew_ms

    def monotonic_ns(self) -> int:
        return self.now * 1_000_000

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now + self.wall_skew_ms

    @property
    def is_leader(self) -> bool:
        return self.node is not None and self.driver.is_leader

    @property
    def accepts_sends(self) -> bool:
        return self.node is not None and not self.is_paused and self.driver.accepts_sends

    # ---- input ---------------------------------------------------------------------------------------------

    def run(self, call: Callable[[], None]) -> None:
        """Let the process handle something, unless it is down or stopped."""
        if self.node is None:
            return
        if self.is_paused:
            self.inbox.append(call)
            return
        call()
        self._after_turn()

    def end_turn(self) -> None:
        """End a turn of the event loop, in which the log may have changed."""
        self.run(lambda: None)

    def _after_turn(self) -> None:
        if not self.driver.failure:
            self.log.turn()
            if self.accepts_sends:
                self.log.keep_tables()
            self.driver.end_turn()
        if self._restarts or (self.driver.failure and self.log.has_failed):
            self.crash(keeps_cache=True)
            down_ms = 1 if self._restarts else self.sim.timing.election_ms
            self.sim.at(self.sim.now + down_ms, self.start)
        elif self.driver.failure:
            raise Violation(f"{self} stops: {self.driver.failure}")
        else:
            self.sim.checks.on_step(self)
            self._flush()

    def receive(self, to: Member, message: Message, group_id: str) -> None:
        """Take a message from the network, as RaftRequests does: only what is for this store."""
        if to == self.member:
            self.run(lambda: self._receive(message, group_id))

    def _receive(self, message: Message, group_id: str) -> None:
        sender = message.sender.replica
        if isinstance(message, HEARTBEATS):
            self.heard[sender] = self.sim.now
        arrival = self.sim.checks.on_arrival(self, message)
        try:
            self.driver.receive(message, address_of(sender), group_id)
        except Refused as refused:
            self.sim.note(f"{self} refuses: {refused.remark}")
        else:
            self.sim.checks.on_accepted(self, message, arrival, group_id)

    def resume(self, life: int) -> None:
        """Continue a stopped process: it finds its clock ahead, and messages that have waited."""
        if life == self.life and self.is_paused and self.node is not None:
            self.is_paused = False
            waiting, self.inbox = self.inbox, []
            if self.sim.rng.random() < 0.5:
                waiting.reverse()
            for call in waiting:
                self.run(call)

    def append_value(self, value: int) -> None:
        """Append a client's value as the broker does: the driver learns it at the end of the turn."""
        self.sim.checks.on_append(self)
        end = self.log.append_value(self.node.term, value)
        self.waiting.append((end, value))
        self.end_turn()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> SimTimer:
        timer = SimTimer(call)
        self.sim.at(self.sim.now + delay_s * 1000, self._on_timer, self.life, timer)
        return timer

    def _on_timer(self, life: int, timer: SimTimer) -> None:
        if life == self.life and not timer.is_cancelled:
            self.run(timer.call)

    # ---- effects -------------------------------------------------------------------------------------------

    def _on_effect(self, effect: Any) -> None:
        """Check an effect before it is executed; the process may end here."""
        checks = self.sim.checks
        if self.steps_to_crash >= 0:
            self.steps_to_crash -= 1
            if self.steps_to_crash < 0:
                if type(effect) is do.Truncate:
                    self.log.crash_in_truncate(effect.offset, self.sim.rng)
                raise Crash(self)
        if self.sim.trace is not None:
            self.sim.note(f"{self} {effect}")
        if type(effect) is do.SaveTerm:
            if effect.saved.is_electable and not self.saved.is_electable:
                checks.on_complete(self)
            self._saved = None
        elif type(effect) is do.Restart:
            checks.on_restart_log(self, effect.offset)
        elif type(effect) is do.BecomeLeader:
            self.led_since = self.sim.now
            checks.on_leader(self, effect.term)

    # ---- the broker of the driver --------------------------------------------------------------------------

    def send(self, to: Member, message: Message) -> None:
        self.sim.checks.on_send(self, to, message)
        address = self.addresses.of(to)
        if address:
            self.sim.send(self.number, number_of(address), to, message, self.node.group_id)

    def open_for_sends(self, term: int) -> None:
        self.opened_term = term
        self.sim.checks.on_open(self)
        self.log.take_over()

    def lose_leadership(self) -> None:
        self.log.resign()

    def fail(self) -> None:
        """See `_after_turn`: only a restart is expected."""

    def restart(self, reason: str) -> None:
        self._restarts = True

    def request_tick(self) -> None:
        """Each input ends with a turn."""

    def await_flush(self) -> None:
        """Flushes end later."""
