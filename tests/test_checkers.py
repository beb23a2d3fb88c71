"""The checks of histories: no problem in a correct history, and each injected fault is found by its check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkers import CHECKS, Event, Recorder, assert_consistent, load, problems


class CorrectQueues:
    """Model of two correct queues: a send gets the next offset, a read returns the message at the offset."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.queues: list[list[str]] = [[], []]
        self.read_to = [0, 0]
        self.committed = [0, 0]
        self.sent = 0

    def send(self, queue: int, result: str) -> None:
        value = f"v{self.sent}"
        self.sent += 1
        operation = self.recorder.send(f"p{self.sent % 2}", "T", value, key=f"k{queue}", queue=queue)
        if result in ("ok", "stored, unknown", "stored, no response"):
            self.queues[queue].append(value)
        if result == "ok":
            operation.ok(queue, len(self.queues[queue]) - 1)
        elif result == "fail":
            operation.fail()
        elif result != "stored, no response":
            operation.info()

    def read(self, queue: int) -> None:
        if self.read_to[queue] < len(self.queues[queue]):
            offset = self.read_to[queue]
            self.recorder.read("c", "G", "T", queue, offset, self.queues[queue][offset])
            self.read_to[queue] = offset + 1

    def commit(self, queue: int) -> None:
        self.committed[queue] = self.read_to[queue]
        self.recorder.commit("c", "G", "T", queue, self.committed[queue])

    def crash(self, queue: int) -> None:
        """Let the consumer crash; another one resumes at the committed offset."""
        self.recorder.seek("c", "G", "T", queue)
        self.read_to[queue] = self.committed[queue]

    def reset(self, queue: int) -> None:
        self.read_to[queue] = self.committed[queue] = 0
        self.recorder.reset("admin", "G", "T", queue, 0)
        self.recorder.seek("c", "G", "T", queue)

    def read_to_the_end(self) -> None:
        for queue in (0, 1):
            while self.read_to[queue] < len(self.queues[queue]):
                self.read(queue)


RESULTS = ("ok", "ok", "ok", "fail", "stored, unknown", "lost, unknown", "stored, no response")
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from(RESULTS)),
    st.tuples(st.sampled_from(("read", "commit", "crash", "reset")), st.integers(0, 1)),
)


@st.composite
def correct_histories(draw: st.DrawFn) -> list[Event]:
    model = CorrectQueues()
    for name, *arguments in draw(st.lists(STEPS, max_size=30)):
        getattr(model, name)(*arguments)
    for queue in (0, 1):
        model.send(queue, "ok")
        model.send(queue, "ok")
    model.read_to_the_end()
    return model.recorder.events


@given(correct_histories())
def test_correct_history_has_no_problems(events: list[Event]) -> None:
    assert problems(events) == []


@given(correct_histories())
def test_loaded_history_ends_at_the_first_incomplete_line(events: list[Event]) -> None:
    lines = [event.line() for event in events]
    assert load(lines) == events
    assert load([*lines[:3], lines[3][:-4]]) == events[:3]


def read_of(events: list[Event], value: str) -> int:
    return max(n for n, event in enumerate(events) if event.op == "read" and event.value == value)


def last_acknowledged(events: list[Event]) -> tuple[Event, Event]:
    """The last two acknowledged sends to queue 0."""
    found = [event for event in events if (event.op, event.type, event.queue) == ("send", "ok", 0)]
    return found[-2], found[-1]


def without_reads(events: list[Event], value: str) -> list[Event]:
    return [event for event in events if event.op != "read" or event.value != value]


@given(correct_histories())
def test_acknowledged_message_that_is_never_read_is_lost(events: list[Event]) -> None:
    _, last = last_acknowledged(events)
    found = problems(without_reads(events, last.value), ignore=["commits_ahead", "not_sequential"])
    assert [problem.check for problem in found] == ["lost"]
    assert repr(last.value) in found[0].detail


@given(correct_histories(), st.sampled_from(["never sent", "failed"]))
def test_message_that_was_not_sent_or_failed_is_unexpected(events: list[Event], send_result: str) -> None:
    recorder = Recorder(events=events)
    if send_result == "failed":
        recorder.send("p", "T", "ghost", queue=1).fail()
    recorder.read("other", "H", "T", 1, 10_000, "ghost")
    assert [problem.check for problem in problems(events)] == ["unexpected"]


@given(correct_histories())
def test_message_stored_twice_is_duplicated_unless_it_was_sent_twice(events: list[Event]) -> None:
    _, last = last_acknowledged(events)
    again = Event("ok", "read", "other", "T", 0, last.value, last.offset + 1, group="H")
    assert [problem.check for problem in problems([*events, again])] == ["duplicated"]
    retried = [replace(event, attempts=2) if event == last else event for event in events]
    assert problems([*retried, again]) == []


@given(correct_histories())
def test_other_message_at_the_same_offset_is_conflicting(events: list[Event]) -> None:
    before, last = last_acknowledged(events)
    swapped = Event("ok", "read", "other", "T", 0, before.value, last.offset, group="H")
    assert "conflicting" in {problem.check for problem in problems([*events, swapped])}


@given(correct_histories())
def test_message_stored_before_an_earlier_acknowledged_one_is_reordered(
    events: list[Event],
) -> None:
    before, last = last_acknowledged(events)
    recorder = Recorder(events=events)
    recorder.send("p", "T", "late", queue=0).info()
    unread = [replace(each, offset=each.offset + 1) if each.value == last.value else each for each in events]
    found = problems(
        [*unread, Event("ok", "read", "x", "T", 0, "late", last.offset, group="H")], ignore=["not_sequential"]
    )
    assert {problem.check for problem in found} == {"reordered"}
    assert f"offset {last.offset + 1} was acknowledged" in found[0].detail
    assert before.offset < last.offset


@given(correct_histories())
def test_messages_of_a_key_read_in_another_order_are_out_of_order(events: list[Event]) -> None:
    before, last = last_acknowledged(events)
    swapped = [
        Event("ok", "read", process, "T", 0, event.value, event.offset, group="H")
        for process, event in (("x", last), ("y", before))
    ]
    assert [problem.check for problem in problems([*events, *swapped])] == ["out_of_order"]


@given(correct_histories(), st.sampled_from([-1, 1]))
def test_skipping_or_repeating_reader_is_not_sequential_without_a_seek(events: list[Event], by: int) -> None:
    _, last = last_acknowledged(events)
    recorder = Recorder(events=events)
    recorder.seek("x", "H", "T", 0)
    recorder.read("x", "H", "T", 0, last.offset, last.value)
    end = len(events)
    recorder.send("p", "T", "next", queue=0).ok(0, last.offset + 1 + by if by > 0 else last.offset + 1)
    offset = last.offset + 2 if by > 0 else last.offset
    recorder.read("x", "H", "T", 0, offset, "next" if by > 0 else last.value)
    checks = {problem.check for problem in problems(events)} - {"lost"}
    assert checks == {"not_sequential"}
    events.insert(end, Event("ok", "seek", "x", "T", 0, group="H"))
    assert {problem.check for problem in problems(events)} <= {"lost"}


@given(correct_histories())
def test_lower_commit_is_backwards_without_a_reset(events: list[Event]) -> None:
    _, last = last_acknowledged(events)
    recorder = Recorder(events=events)
    recorder.commit("c", "G", "T", 0, last.offset + 1)
    recorder.commit("c", "G", "T", 0, last.offset)
    assert [problem.check for problem in problems(events)] == ["commits_backwards"]
    events.insert(len(events) - 1, Event("ok", "reset", "admin", "T", 0, offset=last.offset, group="G"))
    assert problems(events) == []


@given(correct_histories())
def test_commit_beyond_the_read_messages_is_ahead(events: list[Event]) -> None:
    _, last = last_acknowledged(events)
    Recorder(events=events).commit("c", "G", "T", 0, last.offset + 2)
    assert [problem.check for problem in problems(events)] == ["commits_ahead"]


def calls(*steps: str) -> list[Event]:
    """Return the events of steps such as `a invoke 3` (process, event type and offset), or `a kill`."""
    recorder = Recorder()
    for step in steps:
        process, kind, *offset = step.split()
        if kind == "kill":
            recorder.kill(process)
        else:
            recorder.add(Event(kind, "consume", process, "T", 0, f"v{offset[0]}", int(offset[0]), group="G"))
    return recorder.events


def test_ordered_calls_with_retries_kills_and_redelivery_have_no_problem() -> None:
    events = calls(
        "a invoke 0", "a ok 0", "a invoke 1", "a fail 1", "a invoke 1", "a dead 1", "a invoke 2", "a kill",
        "b invoke 1", "b ok 1", "b invoke 2", "b ok 2", "b invoke 5", "b ok 5",
    )  # fmt: skip
    assert problems(events) == []


def test_call_during_a_call_of_the_same_queue_has_two_owners() -> None:
    events = calls("a invoke 0", "b invoke 0", "a ok 0", "b ok 0")
    assert [problem.check for problem in problems(events)] == ["two_owners"]
    assert problems(calls("a invoke 0", "a kill", "b invoke 0", "a ok 0", "b ok 0")) == []
    events = calls("a invoke 0", "a kill", "b invoke 0", "a ok 0", "c invoke 0", "c ok 0")
    assert [problem.check for problem in problems(events)] == ["two_owners"]


@pytest.mark.parametrize(
    "steps",
    [
        ("a invoke 0", "a fail 0", "a invoke 1"),
        ("a invoke 0", "a kill", "b invoke 1"),
        ("a invoke 1", "a ok 1", "a invoke 0"),
    ],
)
def test_message_that_passes_an_unfinished_one_has_overtaken_it(steps: tuple[str, ...]) -> None:
    assert [problem.check for problem in problems(calls(*steps))] == ["overtaken"]


def test_failure_names_case_check_and_value(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history")
    recorder.send("p", "T", "7", queue=0).ok(0, 3)
    events = load((tmp_path / "history").read_bytes().splitlines())
    assert events == recorder.events
    with pytest.raises(
        AssertionError, match=r"(?s)a kill: 1 problem.*lost: '7' was acknowledged at .*'T', 0, 3"
    ):
        assert_consistent(events, "a kill")
    assert_consistent(events, ignore=["lost"])
    assert len(CHECKS) == 13


@pytest.mark.parametrize(("delivered_ms", "checks"), [(999, ["early"]), (1_000, []), (5_000, [])])
def test_timer_message_delivered_before_its_time_is_early(delivered_ms: int, checks: list[str]) -> None:
    recorder = Recorder()
    recorder.send("p", "T", "timer", queue=0, time_ms=1_000).ok(0, 0)
    recorder.send("p", "T", "plain", queue=0).ok(0, 1)
    recorder.read("c", "G", "T", 0, 0, "timer", delivered_ms)
    recorder.read("c", "G", "T", 0, 1, "plain", 1)
    assert [problem.check for problem in problems(recorder.events)] == checks


@pytest.mark.parametrize(
    ("steps", "is_atomic"),
    [
        ("begin invoke-commit ok-commit read", True),
        ("begin invoke-commit info read", True),
        ("begin invoke-commit info", True),
        ("begin invoke-rollback ok-rollback", True),
        ("begin invoke-rollback ok-rollback info invoke-commit ok-commit read", True),
        ("begin read", False),
        ("begin invoke-rollback ok-rollback read", False),
        ("begin invoke-commit ok-commit", False),
    ],
)
def test_transaction_is_atomic_if_it_is_read_exactly_after_its_commit(steps: str, is_atomic: bool) -> None:
    recorder = Recorder()
    recorder.send("p", "T", "v").info()
    for step in steps.split():
        kind, _, outcome = step.partition("-")
        if kind == "begin":
            recorder.begin_transaction("p", "T", "v")
        elif kind == "read":
            recorder.read("c", "G", "T", 0, 0, "v")
        else:
            recorder.end_transaction(kind, "p", "T", "v", outcome)
    expected = [] if is_atomic else ["not_atomic"]
    assert [problem.check for problem in problems(recorder.events)] == expected
