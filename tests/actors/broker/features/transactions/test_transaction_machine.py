"""Generated transactions: sends, ends, checks, restarts, kills and power failures in any order.

A step may crash before any of its appends. The model knows what a client knows: the responses, and how far
the log was flushed when the power failed. After a crash it does not know whether the last steps took effect,
so a transaction may have several possible states; what the broker then does must fit to one of them.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.broker.features.transactions.open_transactions import HalfPlace
from actors.broker.service import BrokerService, warm_up_once
from actors.wire.codes import ResponseCode
from actors.wire.headers import CheckTransactionStateHeader
from benchmarks.experiments.history.checks import not_atomic
from store.message.message import MessageExt
from store.message_store import MessageStore
from tests.actors.broker.brokers import A_DAY_MS, Peer, run_now
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    DISCARDED,
    HALF,
    ROLLBACK,
    TIMEOUT_MS,
    UNKNOWN,
    Producer,
    begin,
    check,
    copy_store,
    end_at,
    every,
    manual,
    place_of,
    settled,
)
from tests.checkers import Recorder
from tests.conftest import ClockAtRest
from tests.faults.power import PowerLossDisk

T = TypeVar("T")
CHECKS_MAX = 2
STORE = {"commit_log_file_bytes": 1 << 18, "flush_interval_ms": A_DAY_MS}
OUTCOMES = {COMMIT: "commit", ROLLBACK: "rollback"}


class State(StrEnum):
    """State of a transaction."""

    ABSENT = "absent"
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DISCARDED = "discarded"


class Crash(NamedTuple):
    """A crash before an append of a step; after the step, if it has fewer appends."""

    append: int
    is_power_failure: bool


class Image(NamedTuple):
    """The files that a crash leaves; effects of steps that ended before `kept` are certain."""

    root: Path
    kept: int


@dataclass
class Transaction:
    """What a client knows about a transaction."""

    key: str
    places: list[HalfPlace]
    """The half message and its copies, by the response of the send and the received checks."""
    history: list[tuple[int, frozenset[State]]] = field(default_factory=list)
    """The possible states after each change, with the end of the log at that time."""
    check_ends: list[int] = field(default_factory=list)
    """The end of the log at each check that certainly or possibly happened."""
    certain_checks: int = 0

    @property
    def states(self) -> frozenset[State]:
        return self.history[-1][1]

    @property
    def is_open(self) -> bool:
        return self.states == {State.OPEN}

    def become(self, log_end: int, *states: State) -> None:
        assert states, f"transaction {self.key} is lost: it was {sorted(self.states)}"
        self.history.append((log_end, frozenset(states)))

    def exclude(self, state: State) -> None:
        self.become(self.history[-1][0], *(self.states - {state}))

    def crash(self, kept: int) -> None:
        """Forget which of the steps after `kept` took effect."""
        certain = max((n for n, (log_end, _) in enumerate(self.history) if log_end <= kept), default=0)
        possible = frozenset[State]().union(*(states for _, states in self.history[certain:]))
        self.history = [(0, possible)]
        self.certain_checks = min(self.certain_checks, sum(each <= kept for each in self.check_ends))


# Most often between the first two appends: those of a committed message and its op message.
crashes = st.none() | st.builds(Crash, st.sampled_from([1, 0, 1, 2]), st.booleans())


class TransactionMachine(RuleBasedStateMachine):
    """A broker and a producer."""

    @initialize(index=st.booleans(), flush=st.sampled_from(["async", "sync"]), seed=st.integers(0, 1 << 32))
    def open_empty(self, index: bool, flush: str, seed: int) -> None:
        warm_up_once()
        self.directory = Path(tempfile.mkdtemp())
        self.images = 0
        self.clock = ClockAtRest()
        self.loop = uvloop.new_event_loop()
        self.settings = {**STORE, "index": index, "flush": flush}
        self.random = random.Random(seed)
        self.transactions: list[Transaction] = []
        self.recorder = Recorder()
        self.crash: Crash | None = None
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(MessageStore, "append", self.append_or_crash(MessageStore.append))
        self.start(self.directory / "first")

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.stop()
            self.patches.undo()
            self.loop.close()
            shutil.rmtree(self.directory)
            assert not list(not_atomic(self.recorder.events))

    # ---- the broker --------------------------------------------------------------------------------------

    def run(self, act: Awaitable[T]) -> T:
        return self.loop.run_until_complete(act)

    def start(self, root: Path) -> None:
        self.root = root
        (root / "store").mkdir(parents=True, exist_ok=True)
        self.disk_patches = pytest.MonkeyPatch()
        self.disk = PowerLossDisk(root / "store", self.random, self.disk_patches)
        self.image: Image | None = None
        self.broker = BrokerService(
            manual(root, store=self.settings, transaction_check_max=CHECKS_MAX), self.clock
        )
        self.run(self.broker.start())
        self.peer = Peer(self.broker)
        self.producer = Producer(self.peer)
        self.run(self.producer.peer.heartbeat("p", "unused"))
        self.run(settled(self.peer))

    def stop(self) -> None:
        self.disk_patches.undo()  # a clean stop needs no tracking
        self.run(self.peer.client.close())
        self.run(self.producer.peer.client.close())
        self.run(self.broker.stop())
        self.disk.close()  # last: a thread may still be in a patched call

    @property
    def store(self) -> MessageStore:
        return self.broker.graph.loop.store

    @property
    def log_end(self) -> int:
        return self.store.positions.written

    def append_or_crash(self, append: Any) -> Any:
        def patched(store: MessageStore, draft: Any) -> Any:
            if self.crash is not None and self.image is None and self.appends == self.crash.append:
                self.take_image(self.crash)
            self.appends += 1
            return append(store, draft)

        return patched

    def take_image(self, crash: Crash) -> None:
        root = self.directory / str(self.images)
        self.images += 1
        if crash.is_power_failure:
            root.mkdir()
            self.disk.cut(root / "store")
        else:
            copy_store(self.root / "store", root)
        positions = self.store.positions
        self.image = Image(root, positions.flushed if crash.is_power_failure else positions.written)

    def step(self, act: Awaitable[T], crash: Crash | None) -> T:
        """Run a step to its end; `restart_from_image` then continues with the files at the crash."""
        self.crash, self.appends = crash, 0
        result = self.run(act)
        self.run(settled(self.peer))
        return result

    def restart_from_image(self) -> None:
        if self.crash is None:
            return
        if self.image is None:
            self.take_image(self.crash)
        root, kept = self.image
        self.crash = None
        self.stop()
        self.start(root)
        stored = {_key(half) for half in self.run(every(self.peer, HALF))}
        visible = self.visible()
        for each in self.transactions:
            before = each.states
            each.crash(kept)
            if each.states != before:
                self.recorder.end_transaction("info", "p", "T", each.key)
            if each.key in visible:
                assert State.COMMITTED in each.states
                each.become(0, State.COMMITTED)
                continue
            each.exclude(State.COMMITTED)
            each.exclude(State.ABSENT if each.key in stored else State.OPEN)

    def visible(self) -> list[str]:
        return [_key(message) for message in self.run(every(self.peer, "T"))]

    # ---- what may happen ---------------------------------------------------------------------------------

    @rule(size=st.sampled_from([1, 500, 4000]), crash=crashes)
    def send(self, size: int, crash: Crash | None) -> None:
        key = f"K{len(self.transactions)}"
        properties = f"UNIQ_KEY\x01{key}\x02"
        half = self.step(begin(self.peer, b"x" * size, properties=properties), crash)
        self.recorder.begin_transaction("p", "T", key)
        transaction = Transaction(key, [place_of(half)], [(0, frozenset({State.ABSENT}))])
        transaction.become(self.log_end, State.OPEN)
        self.transactions.append(transaction)
        self.restart_from_image()

    @precondition(lambda self: self.transactions)
    @rule(data=st.data(), outcome=st.sampled_from([COMMIT, ROLLBACK, COMMIT, UNKNOWN]), crash=crashes)
    def end(self, data: st.DataObject, outcome: int, crash: Crash | None) -> None:
        """End a transaction, finished ones included, with the response of the send or any received check."""
        transaction = data.draw(st.sampled_from(self.transactions))
        self.end_one(transaction, data.draw(st.sampled_from(transaction.places)), outcome, crash)
        self.restart_from_image()

    def end_one(self, transaction: Transaction, place: HalfPlace, outcome: int, crash: Crash | None) -> None:
        halves = self.run(every(self.peer, HALF))
        is_stored = (transaction.key, place) in [
            (_key(half), HalfPlace(half.queue_offset, half.commit_log_offset)) for half in halves
        ]
        name = OUTCOMES.get(outcome)
        if name is not None:
            self.recorder.end_transaction("invoke", "p", "T", transaction.key, name)
        code = self.step(end_at(self.peer, place, transaction.key, outcome), crash).code
        if outcome == UNKNOWN:
            assert code == ResponseCode.SUCCESS
        elif code == ResponseCode.SUCCESS:
            assert is_stored
            assert State.OPEN in transaction.states
            transaction.become(self.log_end, State.COMMITTED if outcome == COMMIT else State.ROLLED_BACK)
            self.recorder.end_transaction("ok", "p", "T", transaction.key, name)
        elif is_stored:
            assert code == ResponseCode.ILLEGAL_OPERATION
            transaction.exclude(State.OPEN)

    @precondition(lambda self: self.transactions)
    @rule(ms=st.sampled_from([TIMEOUT_MS - 1, TIMEOUT_MS]), crash=crashes)
    def check(self, ms: int, crash: Crash | None) -> None:
        discarded = self.discarded()
        known = len(self.producer.received)
        self.clock.advance(ms)
        self.step(check(self.peer), crash)
        self.run(self.producer.peer.heartbeat("p", "unused"))  # its response follows all checks
        checked = {}
        for request in self.producer.received[known:]:
            header = CheckTransactionStateHeader.from_ext(request.ext)
            assert header.transaction_id not in checked
            checked[header.transaction_id] = header
        discarded = self.discarded() - discarded
        for each in self.transactions:
            if each.key in checked:
                self.checked(each, checked[each.key])
            elif each.key in discarded:
                assert State.OPEN in each.states
                assert len(each.check_ends) >= CHECKS_MAX
                each.become(self.log_end, State.DISCARDED)
            elif ms == TIMEOUT_MS:  # no half message is immune any more
                each.exclude(State.OPEN)
        self.restart_from_image()

    def checked(self, transaction: Transaction, header: CheckTransactionStateHeader) -> None:
        assert State.OPEN in transaction.states
        place = HalfPlace(header.tran_state_table_offset, header.commit_log_offset)
        halves = self.run(every(self.peer, HALF))
        [copy] = [half for half in halves if half.commit_log_offset == place.position]
        times = int(copy.properties["TRANSACTION_CHECK_TIMES"])
        assert transaction.certain_checks < times <= min(len(transaction.check_ends) + 1, CHECKS_MAX)
        transaction.check_ends[times - 1 :] = [self.log_end]
        transaction.certain_checks = times
        transaction.become(self.log_end, State.OPEN)
        transaction.places.append(place)

    def discarded(self) -> Counter[str]:
        return Counter(_key(message) for message in self.run(every(self.peer, DISCARDED)))

    @precondition(lambda self: self.transactions)
    @rule(is_complete=st.booleans())
    def write_back(self, is_complete: bool) -> None:
        """Flush the store, or let the kernel write some pages."""
        if is_complete:
            self.store.flush_now()
        else:
            self.disk.write_back_some()

    @precondition(lambda self: self.transactions)
    @rule()
    def save_progress(self) -> None:
        self.run(run_now(self.broker, "transaction-progress"))
        self.run(settled(self.peer))
        self.run(self.broker.graph.tables.save_offsets())

    @precondition(lambda self: self.transactions)
    @rule()
    def restart(self) -> None:
        self.stop()
        self.start(self.root)

    @precondition(lambda self: self.transactions)
    @rule(outcome=st.sampled_from([COMMIT, ROLLBACK]))
    def end_all(self, outcome: int) -> None:
        """End each transaction through the newest half message."""
        newest = {
            _key(half): HalfPlace(half.queue_offset, half.commit_log_offset)
            for half in self.run(every(self.peer, HALF))
        }
        for each in self.transactions:
            if each.key in newest:
                self.end_one(each, newest[each.key], outcome, None)
        assert self.broker.describe()["open_transactions"] == 0

    # ---- what must hold ----------------------------------------------------------------------------------

    @invariant()
    def exactly_the_committed_messages_are_visible_once(self) -> None:
        if hasattr(self, "broker"):
            visible = self.visible()
            for number, key in enumerate(visible):
                self.recorder.read("c", "G", "T", 0, number, key)
            committed = [each.key for each in self.transactions if each.states == {State.COMMITTED}]
            assert sorted(visible) == sorted(committed)

    @invariant()
    def open_transactions_are_counted(self) -> None:
        if hasattr(self, "broker"):
            certain = sum(each.is_open for each in self.transactions)
            possible = sum(State.OPEN in each.states for each in self.transactions)
            assert certain <= self.broker.describe()["open_transactions"] <= possible


def _key(message: MessageExt) -> str:
    return message.properties["UNIQ_KEY"]


TransactionMachine.TestCase.settings = settings(max_examples=4, stateful_step_count=20, deadline=None)
test_transactions_survive_any_sequence_of_faults = TransactionMachine.TestCase


def test_transaction_that_was_given_up_is_not_open_again_after_a_crash():
    machine = TransactionMachine()
    machine.open_empty(index=False, flush="async", seed=0)
    machine.send(size=1, crash=None)
    for _ in range(CHECKS_MAX):
        machine.check(ms=TIMEOUT_MS, crash=None)
    machine.check(ms=TIMEOUT_MS, crash=Crash(2, is_power_failure=False))
    assert [each.states for each in machine.transactions] == [{State.DISCARDED}]
    machine.open_transactions_are_counted()
    machine.teardown()
