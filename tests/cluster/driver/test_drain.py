"""When a drain refuses sends, when it takes the broker down, and when it gives up; no Ray, no waiting."""

from __future__ import annotations

import pytest

from cluster.driver.drain import HEARTBEAT_S, QUIET_S, Drain, GroupLag, Seen, Step
from cluster.driver.draining import find_broker
from cluster.driver.driver import LaunchRefused
from cluster.driver.plan import ActorSpec, Kind, Running
from cluster.launch import drain, restart
from cluster.topology.topology import Topology

TOPOLOGY = Topology.model_validate({"brokers": [{"name": "broker-a"}]})


def seen(messages_in: int, *groups: GroupLag, producers: int = 2, up_s: float = 100) -> Seen:
    return Seen(up_s, messages_in, producers, groups)


def test_sends_are_refused_when_none_came_for_a_while_and_down_it_goes_when_all_is_read() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    lag = GroupLag("reads", 1, 5)
    assert drain.step(seen(10, lag), 0.0) is Step.WAIT
    assert drain.step(seen(11, lag), QUIET_S) is Step.WAIT
    assert drain.step(seen(11, lag), 2 * QUIET_S - 0.1) is Step.WAIT
    assert drain.step(seen(11, lag), 2 * QUIET_S) is Step.CLOSE
    assert drain.step(seen(11, lag), 2 * QUIET_S) is Step.WAIT
    assert drain.step(seen(11, GroupLag("reads", 1, 0)), 2 * QUIET_S) is Step.DOWN


def test_without_producers_there_is_nothing_to_wait_for() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    assert drain.step(seen(10, producers=0), 0.0) is Step.CLOSE
    assert drain.step(seen(10, producers=0), 0.0) is Step.DOWN


def test_a_broker_that_was_just_started_does_not_know_yet_who_needs_it() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    new = seen(10, producers=0, up_s=HEARTBEAT_S - 1)
    assert drain.step(new, 0.0) is Step.WAIT
    assert drain.step(new, QUIET_S) is Step.CLOSE
    assert drain.step(new, QUIET_S) is Step.WAIT
    assert "clients tell of themselves every 30 s" in drain.remaining(new)
    assert drain.step(seen(10, producers=0, up_s=HEARTBEAT_S), QUIET_S) is Step.DOWN


def test_groups_without_members_are_not_waited_for() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    assert drain.step(seen(1, GroupLag("gone", 0, 7), producers=0), 0.0) is Step.CLOSE
    last = seen(1, GroupLag("gone", 0, 7), producers=0)
    assert drain.step(last, 0.0) is Step.DOWN
    assert [group.group for group in last.absent] == ["gone"]


def test_when_the_time_is_over_it_is_given_up_with_what_is_left() -> None:
    drain = Drain(begin_s=100, timeout_s=10)
    busy = seen(1)
    assert drain.step(busy, 100) is Step.WAIT
    assert "2 producers" in drain.remaining(busy)
    assert drain.step(seen(2), 110.1) is Step.GIVE_UP
    drain.is_closed = True
    behind = seen(2, *(GroupLag(f"g{number}", 1, number * 1000) for number in range(1, 6)))
    assert drain.step(behind, 110.1) is Step.GIVE_UP
    assert drain.remaining(behind) == "unread messages of g5: 5,000, g4: 4,000, g3: 3,000 and 2 more groups"


def test_a_broker_is_found_with_or_without_its_replica() -> None:
    spec = ActorSpec(Kind.BROKER, "broker-a-0", "C", {}, ("h", 1), ("h", 1), "r")
    running = [Running("raymq", "broker-a-0", spec=spec), Running("raymq", "nameserver-0")]
    assert find_broker(running, "broker-a").name == find_broker(running, "broker-a-0").name == "broker-a-0"
    with pytest.raises(LaunchRefused, match="no broker 'nameserver-0' runs; there are: broker-a-0"):
        find_broker(running, "nameserver-0")


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="--rolling to restart all"):
        restart(overrides=[])
    with pytest.raises(LaunchRefused, match="--timeout 0 is invalid"):
        drain(TOPOLOGY, "broker-a", timeout_s=0)
