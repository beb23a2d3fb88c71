"""Lite subscriptions: actions, quotas, takeover, offset options; also a model in which no session hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.broker.features.lite import subscriptions as module
from actors.broker.features.lite.lite_orders import OffsetOption, Start
from actors.broker.features.lite.subscriptions import QUOTA_TOLERANCE
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from tests.actors.broker.features.lite.lite_world import (
    GROUP,
    INVISIBLE_MS,
    Delivery,
    LiteWorld,
    names_of,
)

EXCLUSIVE = GROUP._replace(is_exclusive=True)


def subscribed(world: LiteWorld, client_id: str) -> set[str]:
    return set(world.client(client_id).names)


def refused(call: Callable[[], None]) -> ResponseCode:
    with pytest.raises(Refused) as caught:
        call()
    assert "limit" in str(caught.value) or caught.value.code != ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    return ResponseCode(caught.value.code)


def test_actions_change_the_set_of_a_client() -> None:
    world = LiteWorld()
    world.add("a", "x", "y", "x")
    world.add("b", "y")
    world.remove("a", "x", "unknown")
    assert subscribed(world, "a") == {"y"}
    world.replace("a", "y", "z", "z")
    assert (subscribed(world, "a"), world.sessions.subscriptions.count) == ({"y", "z"}, 3)
    world.sessions.remove_client("G", "a")
    assert world.sessions.subscriptions.client("G", "a") is None
    assert world.sessions.subscriptions.count == 1
    world.send("x", "y", "z")
    assert world.sessions.events.count == 1


def test_exclusive_group_has_one_holder_and_notifies_the_other_once() -> None:
    world = LiteWorld(EXCLUSIVE)
    world.add("a", "x", "y")
    world.add("a", "x")  # again: no notice for itself
    assert world.notices == []
    world.add("b", "x")
    assert world.notices == [("a", "x")]
    assert (subscribed(world, "a"), subscribed(world, "b")) == ({"y"}, {"x"})


def test_loser_that_missed_its_notice_is_notified_at_its_next_sync() -> None:
    world = LiteWorld(EXCLUSIVE)
    world.add("a", "x", "y")
    world.add("b", "x")
    world.notices.clear()
    world.replace("a", "x", "y")
    assert world.notices == [("a", "x")]
    assert (subscribed(world, "a"), subscribed(world, "b")) == ({"y"}, {"x"})


@pytest.mark.parametrize("attribute", ["resets_on_takeover", "resets_on_removal", ""])
def test_attributes_reset_the_offset(attribute: str) -> None:
    group = EXCLUSIVE._replace(**{attribute: True}) if attribute else EXCLUSIVE
    world = LiteWorld(group)
    world.add("a", "x")
    world.send("x", "x")
    world.ack(world.pop("a", 1)[0])
    if attribute == "resets_on_removal":
        world.remove("a", "x")
    world.add("b", "x")
    assert names_of(world.pop("b")) == [("x", 0), ("x", 1)] if attribute else [("x", 1)]


@pytest.mark.parametrize(
    ("option", "consumed", "first"),
    [
        (None, 6, 6),
        (OffsetOption(Start.MIN), 6, 1),
        (OffsetOption(Start.MAX), 6, 10),
        (OffsetOption(Start.OFFSET, 4), 6, 4),
        (OffsetOption(Start.OFFSET, 99), 6, 10),
        (OffsetOption(Start.OFFSET, 0), 6, 1),
        (OffsetOption(Start.TAIL, 3), 6, 3),
        (OffsetOption(Start.TAIL, 30), 6, 1),
        (OffsetOption(Start.TAIL, 3), 0, 7),  # from the end, for a group without an offset
        (OffsetOption(Start.TIME, 5_000), 6, 5),
        (OffsetOption(Start.TIME, 0), 6, 0),
        (OffsetOption(Start.TIME, 99_000), 6, 10),
    ],
)
def test_offset_option_moves_the_group(option: OffsetOption | None, consumed: int, first: int) -> None:
    """Ten messages, one per second; the group has consumed some, and the first was deleted."""
    world = LiteWorld()
    world.clock.set_wall_ms(0)
    for _ in range(10):
        world.send("x")
        world.clock.advance(1_000)
    if consumed:
        world.add("a", "x")
        world.ack(*world.pop("a", consumed))
    world.first["T", "x"] = 1
    world.add("a", "x", option=option)
    assert [each.offset for each in world.pop("a")] == list(range(max(first, 1), 10))


def test_reset_makes_acks_of_the_batch_in_flight_ineffective() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x")
    batch = world.pop("a")
    world.clock.advance(1)
    world.add("a", "x", option=OffsetOption(Start.MAX))
    world.ack(*batch)
    assert world.committed("x") == 2
    world.send("x")
    assert names_of(world.pop("a")) == [("x", 2)]


def test_lite_subscriptions_have_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    world = LiteWorld(GROUP._replace(client_quota=2))
    names = [f"n{number}" for number in range(QUOTA_TOLERANCE + 2)]
    world.add("a", *names)
    assert refused(lambda: world.add("a", "x")) is quota
    assert refused(lambda: world.replace("a", *names, "x")) is quota
    world.replace("a", *names[1:], "x")
    world.max_lite_subscriptions = 303
    assert refused(lambda: world.add("b", "x", "y")) is quota
    world.add("b", "x")
    monkeypatch.setattr(module, "CLIENTS", replace(module.CLIENTS, limit=2))
    assert refused(lambda: world.replace("c")) is quota
    assert [use.read() for use in world.sessions.bounds()] == [303, 2]


def test_wildcard_group_refuses_single_lite_topics() -> None:
    world = LiteWorld(GROUP._replace(is_wildcard=True))
    assert refused(lambda: world.add("a", "x")) is ResponseCode.ILLEGAL_OPERATION


def test_group_that_is_bound_to_another_topic_begins_again() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.group = GROUP._replace(topic="U")
    world.replace("a", "y")
    assert (world.client("a").topic, subscribed(world, "a")) == ("U", {"y"})
    world.send("x")
    assert world.sessions.events.count == 0


def test_retained_start_of_a_lite_topic_is_skipped() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x", "x")
    world.first["T", "x"] = 2
    assert (names_of(world.pop("a")), world.committed("x")) == ([("x", 2)], 2)


def test_acked_batch_is_forgotten() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x")
    batch = world.pop("a")
    world.ack(batch[0])
    assert world.sessions.orders.batches == 1
    world.ack(batch[1])
    world.ack(batch[1])  # a second ack has no effect
    world.sessions.orders.expire()
    assert (world.sessions.orders.batches, world.committed("x")) == (0, 2)


CLIENTS = ["a", "b", "c"]
NAMES = ["w", "x", "y", "z"]


class LiteMachine(RuleBasedStateMachine):
    """Clients subscribe, pop, ack, change, stop and return; the broker restarts. No session hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.world = LiteWorld(GROUP._replace(events_max=3))
        self.in_flight: list[Delivery] = []
        self.sent = dict.fromkeys(NAMES, 0)
        self.acked: dict[str, set[int]] = {name: set() for name in NAMES}

    @rule(flags=st.tuples(st.booleans(), st.booleans()))
    @precondition(lambda self: not self.world.sessions.subscriptions.clients)
    def configure(self, flags: tuple[bool, bool]) -> None:
        self.world.group = self.world.group._replace(is_exclusive=flags[0], is_wildcard=flags[1])

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3))
    def send(self, name: str, count: int) -> None:
        self.sent[name] += count
        self.world.send(*[name] * count)

    @rule(client=st.sampled_from(CLIENTS), names=st.sets(st.sampled_from(NAMES)), complete=st.booleans())
    def sync(self, client: str, names: set[str], complete: bool) -> None:
        if complete or self.world.group.is_wildcard:
            self.world.replace(client, *names)
        else:
            self.world.add(client, *names)

    @rule(client=st.sampled_from(CLIENTS), names=st.sets(st.sampled_from(NAMES)))
    def unsubscribe(self, client: str, names: set[str]) -> None:
        self.world.remove(client, *names)

    @rule(client=st.sampled_from(CLIENTS))
    def leave(self, client: str) -> None:
        self.world.sessions.remove_client("G", client)

    @rule(
        client=st.sampled_from(CLIENTS), messages=st.integers(1, 4), attempt=st.sampled_from(["", "1", "2"])
    )
    def pop(self, client: str, messages: int, attempt: str) -> None:
        before = {name: self.world.committed(name) or 0 for name in NAMES}
        got = self.world.pop(client, messages, attempt_id=attempt)
        known = self.world.sessions.subscriptions.client("G", client)
        for name in NAMES:
            offsets = [each.offset for each in got if each.name == name]
            assert offsets == list(range(before[name], before[name] + len(offsets)))  # in order, none skipped
            if offsets and known is not None and not attempt:
                assert known.is_wildcard or name in known.names
        if not got:
            self.world.wait(client)
        self.in_flight += got

    @rule(data=st.data())
    @precondition(lambda self: self.in_flight)
    def ack(self, data: st.DataObject) -> None:
        message = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        self.world.ack(message)
        self.acked[message.name].add(message.offset)

    @rule(data=st.data(), invisible_ms=st.integers(1, 90_000), is_suspension=st.booleans())
    @precondition(lambda self: self.in_flight)
    def change(self, data: st.DataObject, invisible_ms: int, is_suspension: bool) -> None:
        message = data.draw(st.sampled_from(self.in_flight))
        self.world.change(message, invisible_ms, is_suspension=is_suspension)

    @rule(ms=st.sampled_from([1, 3_000, 30_000, 61_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @invariant()
    def committed_offset_is_below_the_first_unacked(self) -> None:
        for name in NAMES:
            committed = self.world.committed(name) or 0
            assert set(range(committed)) <= self.acked[name], name

    @invariant()
    def ready_session_has_an_event(self) -> None:
        world = self.world
        for name in NAMES:
            clients = world.sessions.subscriptions.clients_of("G", "T", name)
            if clients and world.sessions.orders.is_ready("G", "T", name):
                has_event = any(name in each.events for each in clients)
                assert has_event or any(each.is_behind or each.cursor is not None for each in clients), name
        for client in world.sessions.subscriptions.clients:
            assert len(client.events) <= client.events_max
            if client.client_id in world.waiting:
                assert not client.events, client.client_id

    def teardown(self) -> None:
        """One client is left; within the invisible time it gets all messages."""
        for client in CLIENTS:
            self.world.sessions.remove_client("G", client)
        self.world.replace("z", *NAMES)
        for _ in range(8):
            while got := self.world.pop("z"):
                self.world.ack(*got)
            self.world.tick()
            self.world.pass_time(INVISIBLE_MS // 2)
            self.world.replace("z", *NAMES)
        assert {name: self.world.committed(name) or 0 for name in NAMES} == self.sent


LiteMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_lite_sessions_never_hang = LiteMachine.TestCase
