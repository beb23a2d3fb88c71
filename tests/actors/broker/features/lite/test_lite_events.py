"""Every source of an event: without it, a session would wait for its next message."""

from __future__ import annotations

import pytest

from actors.broker.features.lite.events import LOOKED_AT_MAX
from actors.broker.features.lite.lite_orders import OffsetOption, Start
from tests.actors.broker.features.lite.lite_world import GROUP, INVISIBLE_MS, LiteWorld, names_of

HANG_MS = 5_000
"""No session waits longer, whatever its clients do."""


def test_arrival_resumes_the_waiting_client() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.add("b", "y")
    world.wait("a")
    world.wait("b")
    world.send("y", "unknown")
    assert world.woken == ["b"]
    assert names_of(world.pop("b")) == [("y", 0)]
    assert world.pop("a") == []


@pytest.mark.parametrize("seed", range(8))
def test_arrival_goes_to_the_client_that_waits(seed: int) -> None:
    world = LiteWorld(seed=seed)
    for client_id in ("a", "b", "c"):
        world.add(client_id, "x")
    world.wait("b")
    world.send("x")
    assert world.woken == ["b"]


def test_arrivals_of_one_batch_go_to_one_client_at_a_time() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.add("b", "x")
    world.send("x", "x")
    first = world.pop("a", 1) or world.pop("b", 1)
    assert names_of(first) == [("x", 0)]
    assert world.pop("a") + world.pop("b") == []
    world.ack(*first)
    assert names_of(world.pop("a") + world.pop("b")) == [("x", 1)]


def test_subscription_of_a_lite_topic_with_messages_resumes_the_client() -> None:
    world = LiteWorld()
    world.send_unseen("x")
    world.add("a", "other")
    world.wait("a")
    world.add("a", "x")
    assert world.woken == ["a"]
    assert names_of(world.pop("a")) == [("x", 0)]


def test_complete_sync_after_a_restart_resumes_the_client() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x")
    world.ack(world.pop("a", 1)[0])
    world.pop("a")
    world.restart()
    world.replace("a")
    world.wait("a")
    world.replace("a", "x")
    assert world.woken == ["a"]
    assert world.pop("a") == [("x", 1, world.clock.wall_ms(), 0)]


def test_last_ack_of_a_batch_resumes_the_client() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x", "x")
    first, second = world.pop("a", 2)
    world.wait("a")
    world.ack(second)
    assert world.woken == []
    world.ack(first)
    assert world.woken == ["a"]
    assert names_of(world.pop("a")) == [("x", 2)]


def test_end_of_the_invisible_time_resumes_the_client_with_the_whole_rest() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x", "x", "x")
    batch = world.pop("a", 3)
    world.ack(batch[1])
    world.wait("a")
    world.pass_time(INVISIBLE_MS - 1)
    assert world.woken == []
    world.pass_time(1)
    assert world.woken == ["a"]
    assert [each[:2] + each[3:] for each in world.pop("a")] == [
        ("x", 0, 1), ("x", 1, 1), ("x", 2, 1), ("x", 3, 0),
    ]  # fmt: skip


def test_changed_invisible_time_resumes_the_client() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x")
    (message,) = world.pop("a")
    world.wait("a")
    assert world.change(message, 1_500) == 1_500
    world.pass_time(1_499)
    assert world.woken == []
    world.pass_time(1)
    assert [each.count for each in world.pop("a")] == [1]


def test_suspended_batch_resumes_the_client_and_is_not_counted() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x")
    batch = world.pop("a")
    assert world.change(batch[0], 50_000) is not None
    assert world.change(batch[1], 1_000, is_suspension=True) == 1_000
    world.wait("a")
    world.pass_time(1_000)
    assert world.woken == ["a"]
    again = world.pop("a")
    assert [each.count for each in again] == [0, 0]
    world.pass_time(INVISIBLE_MS)
    assert [each.count for each in world.pop("a")] == [1, 1]


def test_reset_of_an_idle_lite_topic_resumes_its_client() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x")
    world.ack(*world.pop("a"))
    world.wait("a")
    world.add("a", "x", option=OffsetOption(Start.MIN))  # subscribed already: RocketMQ sends nothing
    assert world.woken == ["a"]
    assert names_of(world.pop("a")) == [("x", 0)]


def test_taken_over_session_is_handed_to_the_new_client() -> None:
    world = LiteWorld(GROUP._replace(is_exclusive=True))
    world.add("a", "x")
    world.send("x", "x")
    (in_flight,) = world.pop("a", 1)
    world.add("b", "x")
    assert world.notices == [("a", "x")]
    world.wait("b")
    world.ack(in_flight)  # the ack of the former holder is valid
    assert world.woken == ["b"]
    assert (world.pop("a"), names_of(world.pop("b"))) == ([], [("x", 1)])


def test_taken_over_session_takes_its_event_along() -> None:
    world = LiteWorld(GROUP._replace(is_exclusive=True))
    world.add("a", "x", "y")
    world.send("x", "y")
    in_flight = world.pop("a", 1, attempt_id="1")
    assert names_of(in_flight) == [("x", 0)]
    world.add("b", "x", "y")
    assert world.pop("a") + world.pop("a", attempt_id="1") == []
    assert names_of(world.pop("b")) == [("y", 0)]


def test_events_of_a_removed_client_go_to_others() -> None:
    world = LiteWorld()
    world.add("a", "x", "y")
    world.send("x", "y")
    world.add("b", "x")
    world.add("c", "y")
    world.sessions.remove_client("G", "a")
    assert names_of(world.pop("b") + world.pop("c")) == [("x", 0), ("y", 0)]


def test_event_of_an_unsubscribed_lite_topic_goes_to_others() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x")
    world.add("b", "x")
    world.remove("a", "x")
    assert names_of(world.pop("b")) == [("x", 0)]


@pytest.mark.parametrize("seed", range(4))
def test_events_of_a_silent_client_go_to_others_in_time(seed: int) -> None:
    """A client whose connection was lost keeps its subscriptions for minutes, but not its events."""
    world = LiteWorld(seed=seed)
    world.add("silent", "x", "y")
    world.send("x", "y")
    world.add("b", "x", "y")
    world.wait("b")
    world.pass_time(HANG_MS)
    assert world.woken == ["b"]
    assert sorted(names_of(world.pop("b"))) == [("x", 0), ("y", 0)]
    world.send("x", "y")
    assert world.pop("b") == []  # in flight
    world.wait("b")
    world.pass_time(INVISIBLE_MS)
    batch = world.pop("b")
    world.wait("b")
    world.pass_time(HANG_MS)
    assert sorted(names_of(batch + world.pop("b"))) == [("x", 0), ("x", 1), ("y", 0), ("y", 1)]


def test_new_client_gets_the_events_of_a_silent_one_at_once() -> None:
    world = LiteWorld()
    world.add("silent", "x")
    world.send("x")
    world.pass_time(HANG_MS)
    world.add("b", "other")
    world.wait("b")
    world.add("b", "x")
    assert world.woken == ["b"]
    assert names_of(world.pop("b")) == [("x", 0)]


def test_waiting_client_with_an_old_event_is_resumed() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x")
    world.wait("a")  # as if its response had failed
    world.pass_time(HANG_MS)
    assert world.woken == ["a"]


def test_client_that_does_not_renew_its_subscriptions_is_removed() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.add("b", "y")
    world.pass_time(170_000)
    world.replace("b", "y")
    world.pass_time(20_000)
    assert [each.client_id for each in world.sessions.subscriptions.clients] == ["b"]
    assert world.sessions.subscriptions.count == 1


def test_events_that_were_dropped_are_found_again() -> None:
    world = LiteWorld(GROUP._replace(events_max=10))
    names = [f"n{number:03}" for number in range(100)]
    world.add("a", *names)
    world.send(*names)
    assert len(world.client("a").events) == 10
    got: list[str] = []
    while batch := world.pop("a", 3):
        got += [each.name for each in batch]
        world.ack(*batch)
    assert sorted(got) == names


def test_wildcard_group_gets_the_backlog_at_once_and_new_lite_topics() -> None:
    world = LiteWorld(GROUP._replace(is_wildcard=True))
    names = [f"n{number}" for number in range(LOOKED_AT_MAX + 500)]
    world.send_unseen(*names)
    world.replace("a")
    got = 0
    while batch := world.pop("a"):
        got += len(batch)
        world.ack(*batch)
        world.sessions.events.tick()
    assert got == len(names)
    world.wait("a")
    world.send("new")
    assert world.woken == ["a"]
    assert names_of(world.pop("a")) == [("new", 0)]
    world.sessions.remove_client("G", "a")
    world.send("new")
    assert world.sessions.events.count == 0


def test_repeated_attempt_gets_the_same_batch_without_an_event() -> None:
    world = LiteWorld()
    world.add("a", "x")
    world.send("x", "x")
    first = world.pop("a", attempt_id="1")
    assert world.pop("a", attempt_id="2") == []
    again = world.pop("a", attempt_id="1")
    assert names_of(again) == names_of(first)
    assert [each.count for each in again] == [0, 0]


def test_lite_topic_without_room_in_a_response_keeps_its_event() -> None:
    world = LiteWorld()
    world.add("a", "x", "y", "z")
    world.send("x", "y", "z")
    assert names_of(world.pop("a", size_bytes=150)) == [("x", 0)]
    assert names_of(world.pop("a", 1)) == [("y", 0)]
    assert names_of(world.pop("a", size_bytes=1)) == [("z", 0)]
