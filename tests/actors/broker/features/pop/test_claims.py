"""Claims of popped messages: acks, expiry, commit offsets; also a model with crashes, resets, clock steps."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.broker.features.pop.claims import DONE, IDLE_MS, STAY_MS, Claim, ClaimQueue, Claims
from tests.conftest import ClockAtRest

QUEUE = ClaimQueue("T", "G", 0)


class Commits(dict[ClaimQueue, int]):
    """The commit offsets, and the number of open messages of stored claims."""

    safe = 0

    def commit(self, queue: ClaimQueue, offset: int) -> None:
        self[queue] = offset

    def done(self, queue: ClaimQueue, offset: int) -> None:
        assert self[queue] <= offset

    def skip(self, queue: ClaimQueue, offset: int) -> None:
        raise AssertionError

    def count_safe(self, queue: ClaimQueue, change: int) -> None:
        assert queue == QUEUE
        self.safe += change


def claims_of(clock: ClockAtRest, commits: Commits) -> Claims:
    return Claims(clock, commits)


def pop(claims: Claims, offsets: list[int], invisible_ms: int = 60_000, pop_ms: int = 1) -> Claim:
    claim = claims.claim(QUEUE, offsets, offsets[-1] + 1, offsets[0], pop_ms, invisible_ms, 0)
    assert claim is not None
    return claim


def test_commit_offset_waits_for_the_oldest_open_message() -> None:
    commits = Commits()
    claims = claims_of(ClockAtRest(), commits)
    first, second = pop(claims, [0, 1]), pop(claims, [2, 3])
    for claim, offset, committed in ((second, 2, 0), (first, 1, 0), (first, 0, 3), (second, 3, 4)):
        assert claims.finish(claim, offset)
        assert commits[QUEUE] == committed
    assert not claims.finish(second, 3)  # acked twice
    assert claims.in_flight == 0


def test_changed_message_keeps_its_place_and_gets_a_new_time() -> None:
    clock, commits = ClockAtRest(), Commits()
    claims = claims_of(clock, commits)
    claim = pop(claims, [0, 1], 1_000)
    changed = claims.change(claim, 0, claims.free_time(QUEUE, 0, 1), 5_000)
    assert claims.find(changed.key) is changed
    assert (changed.key.start_offset, claims.find(claim.key)) == (0, claim)
    again = claims.change(changed, 0, claims.free_time(QUEUE, 0, changed.key.pop_ms), 5_000)
    assert again.key.pop_ms > changed.key.pop_ms
    assert claims.finish(claim, 1)
    assert commits[QUEUE] == 0
    clock.advance(4_999)
    assert claims.take_due() == []
    clock.advance(1)
    assert claims.take_due() == [again]


def test_old_claim_is_stored_once_and_its_acks_are_recorded() -> None:
    clock, commits = ClockAtRest(), Commits()
    claims = claims_of(clock, commits)
    claim, soon_due = pop(claims, [0, 1, 2]), pop(claims, [3], STAY_MS + 1_000)
    claims.finish(claim, 0)
    clock.advance(STAY_MS)
    assert claims.take_old() == [claim]
    assert claims.take_old() == []
    point = claim.check_point()
    assert point.offsets == (1, 2)
    claims.finish(claim, 1)  # while the check point is written
    claims.stored(claim, point.offsets)
    assert (commits[QUEUE], commits.safe) == (3, 1)
    claims.finish(claim, 2)
    assert commits.safe == 0
    assert claims.take_unrecorded() == [(claim, [1, 2])]
    assert claims.take_unrecorded() == []
    claims.finish(soon_due, 3)
    assert (commits[QUEUE], claims.take_all()) == (4, [])


def test_reset_drops_claims_and_moves_the_next_pop() -> None:
    clock, commits = ClockAtRest(), Commits()
    claims = claims_of(clock, commits)
    claim = pop(claims, [5, 6], 1_000)
    claims.reset(QUEUE, 2)
    assert (claims.next_offset(QUEUE, 2), claims.in_flight) == (2, 0)
    assert not claims.finish(claim, 5)
    clock.advance(1_000)
    assert claims.take_due() == []


def test_higher_committed_offset_moves_the_next_pop() -> None:
    claims = claims_of(ClockAtRest(), Commits())
    assert claims.next_offset(QUEUE, 7) == 7
    pop(claims, [7, 8])
    assert claims.next_offset(QUEUE, 7) == 9
    assert claims.next_offset(QUEUE, 20) == 20


def test_idle_queue_is_dropped() -> None:
    clock = ClockAtRest()
    claims = claims_of(clock, Commits())
    claim = pop(claims, [0])
    clock.advance(IDLE_MS + 1)
    claims.expire()
    assert claims.find(claim.key) is claim  # it has a claim
    claims.finish(claim, 0)
    clock.advance(IDLE_MS + 1)
    claims.expire()
    assert claims.next_offset(QUEUE, 0) == 0


def test_claims_done_early_take_no_memory() -> None:
    clock, commits = ClockAtRest(), Commits()
    claims = claims_of(clock, commits)
    kept, used = pop(claims, [0], 50), []
    for offset in range(1, 20_000):
        claim = pop(claims, [offset])
        used.append(claims.bounds()[0].read() or 0)
        claims.finish(claim, offset)
    assert max(used) == DONE.limit
    clock.advance(60)
    assert claims.take_due() == [kept]


class PopMachine(RuleBasedStateMachine):
    """A queue with a log of check points and retries that survives crashes, as the broker uses `Claims`."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ClockAtRest()
        self.commits = Commits()
        self.claims = claims_of(self.clock, self.commits)
        self.end = 0
        self.acked: set[int] = set()
        self.retried: set[int] = set()
        self.safe: set[int] = set()  # open messages of stored check points
        self.skipped: set[int] = set()  # before the offset of a reset
        self.due_ms: dict[int, int] = {}  # when the message must be visible again, by offset
        self.open: list[tuple[Claim, int]] = []

    @property
    def committed(self) -> int:
        return self.commits.get(QUEUE, 0)

    @rule(count=st.integers(1, 8))
    def send(self, count: int) -> None:
        self.end += count

    @rule(count=st.integers(1, 5), invisible_ms=st.sampled_from([10, 1_000, 20_000, 60_000]))
    def pop(self, count: int, invisible_ms: int) -> None:
        start = self.claims.next_offset(QUEUE, self.committed)
        offsets = list(range(start, min(start + count, self.end)))
        if not offsets:
            return
        claim = self.claims.claim(
            QUEUE, offsets, offsets[-1] + 1, start, self.clock.wall_ms(), invisible_ms, 0
        )
        if claim is None:  # after a step of the wall clock: the same key
            return
        self.open += [(claim, offset) for offset in offsets]
        self.due_ms |= dict.fromkeys(offsets, self.now_ms + invisible_ms)

    @property
    def now_ms(self) -> int:
        return self.clock.monotonic_ns() // 1_000_000

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        claim, offset = data.draw(st.sampled_from(self.open))
        if self.claims.finish(claim, offset):
            assert offset not in self.acked or offset in self.due_ms
            self.acked.add(offset)
            self.due_ms.pop(offset, None)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), invisible_ms=st.sampled_from([10, 30_000]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        claim, offset = data.draw(st.sampled_from(self.open))
        if claim.is_dropped or offset not in claim.open:
            return
        pop_ms = self.claims.free_time(QUEUE, offset, self.clock.wall_ms())
        changed = self.claims.change(claim, offset, pop_ms, invisible_ms)
        if claim.is_stored:
            self.safe.add(offset)
            self.claims.stored(changed, changed.check_point().offsets)
        self.open.append((changed, offset))
        self.due_ms[offset] = self.now_ms + invisible_ms

    @rule(ms=st.sampled_from([1, 500, 11_000, 70_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.integers(-100_000, 100_000))
    def step_wall_clock(self, ms: int) -> None:
        self.clock.set_wall_ms(self.clock.wall_ms() + ms)

    @rule(fails=st.booleans())
    def tick(self, fails: bool) -> None:
        for claim in self.claims.take_old():
            point = claim.check_point()
            self.safe |= set(point.offsets)
            self.claims.stored(claim, point.offsets)
        for claim in self.claims.take_due():
            if fails:
                self.claims.put_back(claim, 0)
                continue
            for offset in list(claim.open):
                self.retried.add(offset)
                self.due_ms.pop(offset, None)
                assert self.claims.finish(claim, offset)
        for claim, offsets in self.claims.take_unrecorded():
            assert claim.is_stored
            assert not set(offsets) & set(claim.open)
        if not fails:  # all that is due is visible again
            assert all(due > self.now_ms for due in self.due_ms.values())

    @rule()
    def crash(self) -> None:
        """Only the commit offset and the stored check points remain, of which the next process takes care."""
        self.retried |= self.safe - self.acked
        self.safe.clear()
        self.commits.safe = 0
        self.claims = claims_of(self.clock, self.commits)
        self.open.clear()
        self.due_ms.clear()

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        self.commits[QUEUE] = offset
        self.claims.reset(QUEUE, offset)
        self.open.clear()
        self.due_ms.clear()
        self.skipped |= set(range(offset))

    @invariant()
    def no_message_is_lost(self) -> None:
        """Each message before the commit offset is acked, retried, safe, or was skipped by a reset."""
        lost = set(range(self.committed)) - self.acked - self.retried - self.safe - self.skipped
        assert not lost, (lost, self.committed)

    @invariant()
    def in_flight_is_the_number_of_open_messages(self) -> None:
        assert self.claims.in_flight == len(self.due_ms)
        assert self.commits.safe == len(
            {offset for claim, offset in self.open if self.is_safe(claim, offset)}
        )

    @staticmethod
    def is_safe(claim: Claim, offset: int) -> bool:
        return claim.is_stored and not claim.is_dropped and offset in claim.open


TestPopMachine = PopMachine.TestCase
TestPopMachine.settings = settings(max_examples=60, stateful_step_count=40)
