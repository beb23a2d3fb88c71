"""Simulation: replicas, network, clients and an operator on one virtual clock; one seed is one run.

schedule ─→ faults, sends ─→ replicas ─→ checks at every step ─→ peace ─→ one log everywhere
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from actors.raft.members import Member, Members, NotAllowed, next_change
from tests.sim.checks import Checks, Violation
from tests.sim.driven import address_of
from tests.sim.model_log import ModelLog
from tests.sim.replica import Crash, SimReplica
from tests.sim.schedule import LATE_ELECTIONS, LEADER, Schedule

LogFactory = Callable[[SimReplica], Any]
PEACE_ELECTIONS = 40
"""Election times after which the group must have one log and accept sends, if no faults occur any more."""


class Simulation:
    """One run of a schedule."""

    def __init__(
        self,
        schedule: Schedule,
        make_log: LogFactory = ModelLog,
        *,
        trace: list[str] | None = None,
    ) -> None:
        self.schedule = schedule
        self.make_log = make_log
        self.timing = schedule.timing
        self.rng = random.Random(schedule.seed + 1_000_003)
        self.now = 0.0
        self.checks = Checks()
        self.trace = trace
        self.events = 0
        self.steps: dict[str, int] = {}
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._loss, self._duplication = schedule.loss, schedule.duplication
        self._lateness = schedule.lateness
        self._cut: dict[tuple[int, int], int] = {}  # (from, to): number of faults that cut it
        self._goals: list[tuple[Member | None, Member | None]] = []  # (remove, add)
        self._value = 0
        self._down_ms = 5
        self.replicas = [SimReplica(self, number) for number in range(schedule.voters + 1)]
        voters = self.replicas[: schedule.voters]  # the last one is the spare replica
        for replica in voters:
            replica.first_members = Members(tuple(each.member for each in voters))

    # ---- clock and network ---------------------------------------------------------------------------------

    def at(self, time_ms: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (time_ms, self._count, call, arguments))

    def send(self, sender: int, number: int, to: Member, message: Any, group_id: str) -> None:
        rng = self.rng
        if (self._cut and self._cut.get((sender, number))) or (self._loss and rng.random() < self._loss):
            return
        lateness = self._lateness
        if lateness and type(message).__name__ in self.schedule.late_kinds:
            lateness *= 10
        is_late = lateness and rng.random() < lateness
        delay_ms = self._late_ms() if is_late else rng.choice(self.schedule.latencies_ms)
        self.at(self.now + delay_ms, self._deliver, sender, number, to, message, group_id)
        if self._duplication and rng.random() < self._duplication:
            self.at(self.now + self._late_ms(), self._deliver, sender, number, to, message, group_id)

    def _late_ms(self) -> float:
        return self.timing.election_ms * self.rng.uniform(*LATE_ELECTIONS)

    def _deliver(self, sender: int, number: int, to: Member, message: Any, group_id: str) -> None:
        if not (self._cut and self._cut.get((sender, number))):
            if self.trace is not None:
                self.note(f"replica {number} ← {message}")
            self.replicas[number].receive(to, message, group_id)

    def flush_time_ms(self, replica: SimReplica) -> float:
        if replica.flush_ms:
            return self.rng.randint(1, replica.flush_ms)
        return self.rng.choice((1, 1, 2, 30))

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:>8.0f} {text}")

    def count(self, kind: str) -> None:
        self.steps[kind] = self.steps.get(kind, 0) + 1

    # ---- run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the schedule, then heal everything and wait until the group has one log. Raises Violation."""
        schedule = self.schedule
        for replica in self.replicas:
            replica.start()
        for time_ms in schedule.sends_ms:
            self.at(time_ms, self._client)
        for fault in schedule.faults:
            self.at(fault.time_ms, self._fault, fault)
        self._run_until(schedule.duration_ms)
        self._heal()
        deadline = self.now + PEACE_ELECTIONS * self.timing.election_ms
        while not self._is_settled():
            if self.now > deadline:
                raise Violation(f"the group has not settled in peace: {self._describe()}")
            self._run_until(self.now + self.timing.hold_ms)
        acked = len(self.checks.acked)
        while len(self.checks.acked) == acked or not self._is_settled():
            if self.now > deadline + 10 * self.timing.election_ms:
                raise Violation(f"a send in peace is not acknowledged everywhere: {self._describe()}")
            if len(self.checks.acked) == acked:
                self._client()  # again: a leader may resign for a reason from before the peace
            self._run_until(self.now + self.timing.hold_ms)
        self.checks.at_end([each for each in self.replicas if self._is_member(each)])

    def _run_until(self, time_ms: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= time_ms:
            self.now, _, call, arguments = heapq.heappop(queue)
            self.events += 1
            try:
                call(*arguments)
            except Crash as crash:
                self._crashed(crash.replica)
        self.now = time_ms

    def _heal(self) -> None:
        self.note("peace")
        self._cut.clear()
        self._loss = self._duplication = self._lateness = 0
        for replica in self.replicas:
            replica.flush_ms = 0
            replica.steps_to_crash = -1
            replica.resume(replica.life)
            replica.start()
        self._operate()

    def _leader(self) -> SimReplica | None:
        """Return the leader with the greatest term."""
        leaders = [each for each in self.replicas if each.is_leader and not each.is_paused]
        return max(leaders, key=lambda each: each.node.term, default=None)

    def _is_member(self, replica: SimReplica) -> bool:
        leader = self._leader()
        return leader is not None and replica.member in leader.node.members.everyone

    def _is_settled(self) -> bool:
        leader = self._leader()
        if leader is None or not leader.accepts_sends or self._goals:
            return False
        end = leader.log.end
        return all(
            replica.node is not None
            and replica.node.confirmed == replica.log.end == end
            and replica.node.is_electable
            for replica in self.replicas
            if replica.member in leader.node.members.everyone
        )

    def _describe(self) -> str:
        lines = [
            "down"
            if each.node is None
            else f"{each.node.role.value} of term {each.node.term}, leader {each.node.leader}, "
            f"end {each.log.end}, confirmed {each.node.confirmed}, electable {each.node.is_electable}"
            for each in self.replicas
        ]
        return "; ".join(lines) + f"; to do {self._goals}"

    # ---- clients and operator ------------------------------------------------------------------------------

    def _client(self) -> None:
        for replica in self.replicas:
            if replica.accepts_sends:
                self._value += 1
                replica.append_value(self._value)

    def _operate(self) -> None:
        """Take the next step of the first change of members that was requested."""
        if not self._goals:
            return
        self.at(self.now + self.timing.hold_ms, self._operate)
        leader = self._leader()
        if leader is None or not leader.accepts_sends or not leader.node.is_settled:
            return  # try again later
        remove, add = self._goals[0]
        change = next_change(leader.node.members, remove, add)
        if change is None:
            self._goals.pop(0)
            return
        try:
            if remove == leader.member and remove not in change.voters:
                others = [each for each in leader.node.members.voters if each != remove]
                leader.driver.transfer(self.rng.choice(others))
            elif add not in change.voters or leader.node.has_caught_up(add):
                self.count("change")
                known = {} if add is None else {add: address_of(add.replica)}
                leader.driver.change_members(change.with_addresses(known))
            leader.end_turn()
        except NotAllowed as error:
            self.note(f"refused: {error}")

    # ---- faults --------------------------------------------------------------------------------------------

    def _fault(self, fault: Any) -> None:
        arguments = fault.arguments
        if arguments[0] == LEADER:
            leader = self._leader()
            if leader is None:
                return
            arguments = (leader.number, *arguments[1:])
        self.note(f"FAULT {fault.kind} {arguments}")
        self.count(fault.kind)
        getattr(self, f"_fault_{fault.kind}")(*arguments)

    def _crashed(self, replica: SimReplica) -> None:
        """End a process in the middle of a step."""
        self.note(f"CRASH {replica}")
        self._down(replica, self._down_ms, keeps_cache=self.rng.random() < 0.4)

    def _down(self, replica: SimReplica, down_ms: int, *, keeps_cache: bool) -> None:
        replica.crash(keeps_cache=keeps_cache)
        self.at(self.now + down_ms, replica.start)

    def _fault_crash(self, number: int, down_ms: int) -> None:
        self._down(self.replicas[number], down_ms, keeps_cache=self.rng.random() < 0.4)

    def _fault_crash_in_step(self, number: int, steps: int, down_ms: int) -> None:
        self.replicas[number].steps_to_crash = steps
        self._down_ms = down_ms

    def _fault_power_loss(self, replicas: int, down_ms: int) -> None:
        for replica in self.replicas:
            if replicas >> replica.number & 1:
                self._down(replica, down_ms, keeps_cache=False)

    def _fault_failed_flush(self, number: int, down_ms: int) -> None:
        self._down(self.replicas[number], down_ms, keeps_cache=False)

    def _fault_failed_write(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.node is not None:
            replica.log.fail_next_write()

    def _fault_partition(self, side: int, is_one_way: bool, heal_ms: int) -> None:
        inside = [each.number for each in self.replicas if side >> each.number & 1]
        outside = [each.number for each in self.replicas if not side >> each.number & 1]
        links = [(a, b) for a in inside for b in outside]
        self._cut_links(links if is_one_way else links + [(b, a) for a, b in links], heal_ms)

    def _fault_isolate(self, number: int, direction: str, heal_ms: int) -> None:
        others = [each.number for each in self.replicas if each.number != number]
        links = [(number, each) for each in others] if direction in ("out", "both") else []
        links += [(each, number) for each in others] if direction in ("in", "both") else []
        self._cut_links(links, heal_ms)

    def _fault_cut(self, number: int, other: int, heal_ms: int) -> None:
        self._cut_links([(number, other), (other, number)] if number != other else [], heal_ms)

    def _cut_links(self, links: list[tuple[int, int]], heal_ms: int) -> None:
        for link in links:
            self._cut[link] = self._cut.get(link, 0) + 1
        self.at(self.now + heal_ms, self._restore_links, links)

    def _restore_links(self, links: list[tuple[int, int]]) -> None:
        for link in links:
            if self._cut.get(link, 0) > 0:
                self._cut[link] -= 1

    def _fault_slow_disk(self, number: int, flush_ms: int, heal_ms: int) -> None:
        replica = self.replicas[number]
        replica.flush_ms = flush_ms
        self.at(self.now + heal_ms, setattr, replica, "flush_ms", 0)

    def _fault_stalled_disk(self, number: int, _: int, heal_ms: int) -> None:
        self._fault_slow_disk(number, heal_ms, heal_ms)

    def _fault_pause(self, number: int, pause_ms: int) -> None:
        replica = self.replicas[number]
        if replica.node is not None:
            replica.is_paused = True
            self.at(self.now + pause_ms, replica.resume, replica.life)

    def _fault_clock_jump(self, number: int, jump_ms: int) -> None:
        self.replicas[number].skew_ms += jump_ms
        self.replicas[number].wall_skew_ms = self.rng.choice((-3_600_000, 0, 3_600_000))

    def _fault_transfer(self, number: int) -> None:
        leader = self._leader()
        if leader is not None:
            try:
                leader.driver.transfer(self.replicas[number].member)
                leader.end_turn()
            except NotAllowed as error:
                self.note(f"refused: {error}")

    def _fault_trim(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.node is not None and not replica.is_paused and replica.log.bound > replica.log.min:
            replica.log.trim(replica.log.trim_to(self.rng))
            replica.end_turn()

    def _fault_add(self, number: int) -> None:
        self._begin(None, self.replicas[number].member)

    def _fault_remove(self, number: int) -> None:
        self._begin(self.replicas[number].member, None)

    def _fault_replace(self, number: int, successor: int) -> None:
        if number != successor:
            self._begin(self.replicas[number].member, self.replicas[successor].member)

    def _begin(self, remove: Member | None, add: Member | None) -> None:
        """Begin a change of members, unless one is under way or too few voters would be left."""
        leader = self._leader()
        if self._goals or leader is None:
            return
        voters = [each for each in leader.node.members.voters if each != remove]
        if remove is not None and (len(voters) < 2 or remove not in leader.node.members.voters):
            return
        if not self._disks_are_whole():
            return
        self._goals.append((remove, add))
        self._operate()

    # A group survives the loss of one disk at a time.

    def _may_lose_data_of(self, replica: SimReplica) -> bool:
        leader = self._leader()
        if self._goals or leader is None or len(leader.node.members.voters) < 3:
            return False
        is_up = all(each.node is not None for each in self.replicas[: self.schedule.voters])
        return is_up and self._disks_are_whole() and replica.member in leader.node.members.voters

    def _disks_are_whole(self) -> bool:
        return all(
            each.saved.is_electable and each.log.damage is None and not each.log.lost
            for each in self.replicas
        )

    def _fault_wipe(self, number: int, down_ms: int) -> None:
        replica = self.replicas[number]
        if not self._may_lose_data_of(replica):
            return
        self.count("disk lost")
        old = replica.member
        self._down(replica, down_ms, keeps_cache=True)
        replica.replace_disk()
        self._goals.append((old, replica.member))
        self._operate()

    def _fault_lose_suffix(self, number: int, down_ms: int) -> None:
        replica = self.replicas[number]
        if self._may_lose_data_of(replica) and replica.log.bound > replica.log.min:
            self.count("suffix lost")
            self._down(replica, down_ms, keeps_cache=False)
            replica.log.lose_from(self.rng)

    def _fault_damage(self, number: int) -> None:
        replica = self.replicas[number]
        if self._may_lose_data_of(replica) and replica.log.damage_range(self.rng):
            self.count("damaged")  # a replica finds it when it starts
            self._down(replica, self.timing.hold_ms, keeps_cache=True)
