"""Held pulls: woken by what they wait for, at their deadline, or forgotten with their connection; never more
than allowed.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.broker.group.subscriptions import compile_filter
from actors.broker.loop.held_pulls import DEADLINE_SPAN_NS, HeldPull, HeldPulls, deadline_of, wait_ms_of
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.message.tags import tags_code


def a_pull(
    offset: int = 10,
    *,
    topic: str = "T",
    queue_id: int = 0,
    tags: str = "*",
    deadline_ns: int = 100,
    owner: str = "c",
) -> HeldPull:
    pull = HeldPull()
    pull.topic, pull.queue_id, pull.offset = topic, queue_id, offset
    pull.wanted = compile_filter(tags)
    pull.deadline_ns, pull.owner, pull.on_resume = deadline_ns, owner, lambda _: None
    return pull


def test_an_arrival_wakes_the_pulls_of_its_queue_and_no_others() -> None:
    held = HeldPulls(10)
    mine, ahead, other_queue, other_topic = a_pull(), a_pull(11), a_pull(queue_id=1), a_pull(topic="U")
    for pull in (mine, ahead, other_queue, other_topic):
        held.hold(pull)
    assert held.arrived("T", 0, 11, {7}) == [mine]
    assert len(held) == 3
    assert held.arrived("T", 0, 12, {7}) == [ahead]
    assert held.arrived("T", 0, 13, {7}) == []


def test_a_pull_with_tags_sleeps_through_other_tags() -> None:
    held = HeldPulls(10)
    pull = a_pull(tags="a || b")
    held.hold(pull)
    assert held.arrived("T", 0, 11, {tags_code("c")}) == []
    assert held.arrived("T", 0, 12, {tags_code("c"), tags_code("b")}) == [pull]


def test_an_arrival_of_unknown_tags_wakes_everyone() -> None:
    held = HeldPulls(10)
    held.hold(a_pull(tags="a"))
    assert len(held.arrived("T", 0, 11, None)) == 1


def test_a_sooner_deadline_is_told_and_no_other() -> None:
    held = HeldPulls(10)
    told: list[int | None] = []
    held.on_sooner(lambda: told.append(held.next_deadline_ns))
    span = DEADLINE_SPAN_NS
    for deadline_ns in (5 * span, 5 * span + 1, 7 * span, 2 * span, 3 * span):
        held.hold(a_pull(deadline_ns=deadline_ns))
    assert told == [6 * span, 3 * span]


def test_deadlines_come_in_order_and_only_once() -> None:
    held = HeldPulls(10)
    span = DEADLINE_SPAN_NS
    late, early, also_early = (a_pull(deadline_ns=at) for at in (3 * span, span, 2 * span - 1))
    for pull in (late, early, also_early):
        held.hold(pull)
    assert held.next_deadline_ns == 2 * span
    assert held.expired(2 * span - 1) == []
    assert held.expired(2 * span) == [early, also_early]
    assert held.next_deadline_ns == 4 * span
    held.arrived("T", 0, 11, None)
    assert held.next_deadline_ns is None
    assert held.expired(99 * span) == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "arrive", "expire", "close", "delete"]),
            st.integers(0, 3), st.integers(0, 3), st.integers(0, 20),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_whatever_happens_each_pull_is_released_once(steps: list[tuple[str, int, int, int]]) -> None:
    held = HeldPulls(1000)
    waiting: set[HeldPull] = set()
    for step, queue_id, owner, number in steps:
        if step == "hold":
            deadline_ns = number * DEADLINE_SPAN_NS // 4
            pull = a_pull(number, queue_id=queue_id, owner=str(owner), deadline_ns=deadline_ns)
            held.hold(pull)
            waiting.add(pull)
            continue
        if step == "arrive":
            wanted = {pull for pull in waiting if pull.queue_id == queue_id and pull.offset < number}
            woken = held.arrived("T", queue_id, number, None)
        elif step == "expire":
            now_ns = number * DEADLINE_SPAN_NS
            wanted = {pull for pull in waiting if pull.deadline_ns // DEADLINE_SPAN_NS < number}
            woken = held.expired(now_ns)
        elif step == "close":
            wanted = {pull for pull in waiting if pull.owner == str(owner)}
            held.forget(str(owner))
            woken = list(wanted)
        else:
            wanted = set(waiting)
            woken = held.of_topic("T")
        assert len(woken) == len(wanted)
        assert set(woken) == wanted
        waiting -= wanted
        assert len(held) == len(waiting)


def test_a_closed_connection_takes_its_pulls_along() -> None:
    held = HeldPulls(10)
    held.hold(a_pull(owner="gone"))
    kept = a_pull(owner="here")
    held.hold(kept)
    held.forget("gone")
    assert held.arrived("T", 0, 11, None) == [kept]
    held.forget("never seen")


def test_a_deleted_topic_releases_all_of_its_pulls() -> None:
    held = HeldPulls(10)
    held.hold(a_pull(queue_id=0))
    held.hold(a_pull(queue_id=1))
    held.hold(a_pull(topic="U"))
    assert len(held.of_topic("T")) == 2
    assert len(held) == 1


def test_one_pull_too_many_is_refused_by_name_of_the_limit() -> None:
    held = HeldPulls(1)
    held.hold(a_pull())
    with pytest.raises(Refused, match="max_held_pulls is 1") as refused:
        held.hold(a_pull())
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


def test_who_comes_when_the_broker_goes_is_told_so_and_not_kept() -> None:
    held = HeldPulls(10)
    held.hold(a_pull())
    held.end_all()
    with pytest.raises(Refused, match="shutting down") as refused:
        held.hold(a_pull())
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(held) == 0


def test_answered_pulls_leave_nothing_behind() -> None:
    held = HeldPulls(10)
    for offset in range(10_000):
        held.hold(a_pull(offset, deadline_ns=offset // 100 * DEADLINE_SPAN_NS))
        held.arrived("T", 0, offset + 1, None)
    assert (held._by_queue, held._by_owner, held._by_span) == ({}, {}, {})
    assert held.next_deadline_ns is None
    assert not held._spans


@given(st.integers(0, 1 << 50), st.integers(1, 30_000))
def test_short_waits_end_at_their_time_and_long_ones_together_soon_after(now_ns: int, wait_ms: int) -> None:
    asked_ns = now_ns + wait_ms * 1_000_000
    deadline_ns = deadline_of(now_ns, wait_ms)
    if wait_ms < 5_000:
        assert deadline_ns == asked_ns
    else:
        assert 0 <= deadline_ns - asked_ns < 4 * DEADLINE_SPAN_NS
        assert deadline_of(now_ns + deadline_ns - asked_ns, wait_ms) == deadline_ns


@pytest.mark.parametrize(
    ("asked_ms", "most_ms", "waits_ms"),
    [
        (0, 20_000, 0),
        (4_999, 20_000, 4_999),
        (5_000, 20_000, 10_000),
        (10_000, 20_000, 15_000),
        (15_000, 20_000, 20_000),  # as long as RocketMQ's broker may hold it, which looks every 5 s
        (60_000, 20_000, 20_000),
        (3_000, 1_000, 1_000),
    ],
)
def test_a_long_wait_is_as_long_as_rocketmqs_and_never_over_the_limit(
    asked_ms: int, most_ms: int, waits_ms: int
) -> None:
    assert wait_ms_of(asked_ms, most_ms) == waits_ms
