"""WaitRegistry: arrivals, deadlines and closed connections release requests; their number is limited."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.broker.core.loop.wait_registry import (
    DEADLINE_SPAN_NS,
    HeldRequest,
    Key,
    WaitRegistry,
    suspend_ms,
)
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS
from tests.conftest import ClockAtRest

QUEUE: Key = ("T", 0)


class Request(HeldRequest[int]):
    """Waits for an arrival that is larger than its number."""

    def __init__(self, context: RequestContext, key: Key, number: int) -> None:
        super().__init__(context, key)
        self.number = number

    def is_satisfied(self, arrival: int) -> bool:
        return arrival > self.number

    def resume(self) -> None:
        raise AssertionError("the registry must not resume requests itself")


class Peer:
    """A fake connection with the methods that the registry uses."""

    def __init__(self) -> None:
        self.refusals: list[Exception] = []
        self.is_closed = False
        self._close_callbacks: list[Callable[[Peer], None]] = []

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        if self.is_closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def close(self) -> None:
        self.is_closed = True
        for callback in self._close_callbacks:
            callback(self)

    def request(self, number: int = 10, key: Key = QUEUE) -> Request:
        return Request(SimpleNamespace(connection=self, refuse=self.refusals.append), key, number)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def held(clock: ClockAtRest) -> WaitRegistry[int]:
    return WaitRegistry(clock, 10)


WAIT_MS = 1_000


def test_arrival_releases_the_requests_that_it_satisfies(held, peer) -> None:
    mine, ahead, other_key, other_topic = (
        peer.request(),
        peer.request(11),
        peer.request(key=("T", 1)),
        peer.request(key=("U", 0)),
    )
    for request in (mine, ahead, other_key, other_topic):
        held.hold(request, WAIT_MS)
    assert set(held.keys) == {("T", 0), ("T", 1), ("U", 0)}
    assert held.arrived(QUEUE, 11) == [mine]
    assert len(held) == 3
    assert held.arrived(QUEUE, 12) == [ahead]
    assert held.arrived(QUEUE, 13) == []


def test_request_may_wait_for_a_group(held, peer) -> None:
    popped = peer.request(key=("T", "group"))
    held.hold(popped, WAIT_MS)
    assert held.arrived(QUEUE, 99) == []
    assert held.arrived(("T", "group"), 99) == [popped]


def test_request_may_wait_for_a_topic(held, peer) -> None:
    of_topic, of_queue = peer.request(key="Topic"), peer.request(key=("Topic", 1))
    for request in (of_topic, of_queue, peer.request(key="To"), peer.request(key=("Topic", 2))):
        held.hold(request, WAIT_MS)
    assert held.arrived(("Topic", 1), 11) == [of_queue, of_topic]
    assert held.arrived(("Topic", 1), 11) == []
    assert len(held.of_topic("To")) == 1
    assert len(held.of_topic("Topic")) == 1


def test_only_an_earlier_deadline_is_reported(held, peer) -> None:
    reported: list[int | None] = []
    held.on_earlier_deadline(lambda: reported.append(held.next_deadline_ns))
    for wait_ms in (500, 500, 700, 200, 300):
        held.hold(peer.request(), wait_ms)
    assert len(reported) == 2
    assert reported[0] is not None
    assert reported[1] is not None
    assert reported[1] < reported[0]


def test_requests_expire_in_order_and_once(held, peer, clock) -> None:
    late, early, also_early = (peer.request() for _ in range(3))
    begin_ns = clock.monotonic_ns()
    for request, wait_ms in ((late, 300), (early, 100), (also_early, 100)):
        held.hold(request, wait_ms)
    assert held.expired() == []
    clock.advance(100 + DEADLINE_SPAN_NS // NS_PER_MS + 1)
    assert held.expired() == [early, also_early]
    assert held.next_deadline_ns is not None
    assert 0 <= held.next_deadline_ns - begin_ns - 300 * NS_PER_MS < DEADLINE_SPAN_NS
    assert held.arrived(QUEUE, 11) == [late]
    assert held.next_deadline_ns is None
    clock.advance(1_000)
    assert held.expired() == []


@given(st.integers(0, 1 << 40), st.integers(1, 30_000))
def test_deadline_is_at_most_one_span_late(now_us: int, wait_ms: int) -> None:
    clock = ClockAtRest()
    clock.advance(us=now_us)
    now_ns = clock.monotonic_ns()
    held: WaitRegistry[int] = WaitRegistry(clock, 10)
    held.hold(Peer().request(), wait_ms)
    assert held.next_deadline_ns is not None
    assert 0 <= held.next_deadline_ns - now_ns - wait_ms * NS_PER_MS < DEADLINE_SPAN_NS


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "arrive", "expire", "close", "delete"]),
            st.integers(0, 3), st.integers(0, 3), st.integers(0, 20),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_each_request_is_released_once(steps: list[tuple[str, int, int, int]]) -> None:
    clock = ClockAtRest()
    held: WaitRegistry[int] = WaitRegistry(clock, 1000)
    peers = [Peer() for _ in range(4)]
    waiting: dict[Request, int] = {}
    for step, queue_id, owner, number in steps:
        if step == "hold":
            request = peers[owner].request(number, ("T", queue_id))
            held.hold(request, number)
            waiting[request] = clock.monotonic_ns() + number * NS_PER_MS
            continue
        if step == "arrive":
            wanted = {each for each in waiting if each.key == ("T", queue_id) and each.number < number}
            released = held.arrived(("T", queue_id), number)
        elif step == "expire":
            clock.advance(number)
            latest_ns = clock.monotonic_ns() // DEADLINE_SPAN_NS * DEADLINE_SPAN_NS
            wanted = {each for each, deadline_ns in waiting.items() if deadline_ns <= latest_ns}
            released = held.expired()
        elif step == "close":
            wanted = {each for each in waiting if each.context.connection is peers[owner]}
            peers[owner].close()
            peers[owner] = Peer()
            released = list(wanted)
        else:
            wanted = set(waiting)
            released = held.of_topic("T")
        assert len(released) == len(wanted)
        assert set(released) == wanted
        for each in wanted:
            del waiting[each]
        assert len(held) == len(waiting)
        assert set(held.keys) == {each.key for each in waiting}


def test_closed_connection_drops_its_requests(held, peer, clock) -> None:
    gone = Peer()
    held.hold(gone.request(), WAIT_MS)
    kept = peer.request()
    held.hold(kept, WAIT_MS)
    gone.close()
    assert held.arrived(QUEUE, 11) == [kept]
    held.hold(gone.request(), WAIT_MS)  # its connection is already closed
    assert len(held) == 0


def test_selected_requests_of_a_connection_are_released(held, peer, clock) -> None:
    mine, not_chosen = peer.request(1), peer.request(2)
    for request in (mine, not_chosen, Peer().request(1)):
        held.hold(request, WAIT_MS)
    assert held.of_connection(peer, Request, lambda request: request.number == 1) == [mine]
    assert len(held) == 2


def test_deleted_topic_releases_all_of_its_requests(held, peer) -> None:
    for key in (("T", 0), ("T", 1), ("U", 0)):
        held.hold(peer.request(key=key), WAIT_MS)
    assert len(held.of_topic("T")) == 2
    assert len(held) == 1


def test_one_request_too_many_is_refused_with_the_limit(peer, clock) -> None:
    held: WaitRegistry[int] = WaitRegistry(clock, 1)
    held.hold(peer.request(), WAIT_MS)
    with pytest.raises(Refused, match="max_held_pulls is 1") as refused:
        held.hold(peer.request(), WAIT_MS)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


def test_closed_registry_refuses_held_and_further_requests(held, peer) -> None:
    held.hold(peer.request(), WAIT_MS)
    held.close()
    assert [refusal.code for refusal in peer.refusals] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    with pytest.raises(Refused, match="shutting down") as refused:
        held.hold(peer.request(), WAIT_MS)
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len(held) == 0


def test_released_requests_leave_no_state(held, peer, clock) -> None:
    for number in range(10_000):
        held.hold(peer.request(number), number % 100)
        held.arrived(QUEUE, number + 1)
        clock.advance(1)
    assert (len(held), list(held.keys), held.next_deadline_ns) == (0, [], None)


@pytest.mark.parametrize(
    ("requested_ms", "max_hold_ms", "held_ms"),
    [
        (0, 20_000, 0),
        (4_999, 20_000, 4_999),
        (5_000, 20_000, 10_000),
        (10_000, 20_000, 15_000),
        (15_000, 20_000, 20_000),  # RocketMQ's broker, which checks every 5 s, may hold it as long
        (60_000, 20_000, 20_000),
        (3_000, 1_000, 1_000),
    ],
)
def test_hold_time_follows_rocketmq_within_the_limit(
    requested_ms: int, max_hold_ms: int, held_ms: int
) -> None:
    assert suspend_ms(requested_ms, max_hold_ms) == held_ms
