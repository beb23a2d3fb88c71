"""Drain: when it refuses sends, stops the broker or gives up. Without Ray and without waiting."""

from __future__ import annotations

import pytest

from cluster.control import fleet
from cluster.control.drain import HEARTBEAT_S, QUIET_S, Drain, DrainProgress, DrainStep, GroupLag
from cluster.control.draining import Draining, find_broker
from cluster.control.kinds import BROKER
from cluster.control.launch_errors import LaunchRefused
from cluster.control.launch_report import PlanReport
from cluster.control.plan import Running
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import Topology
from cluster.launch import drain, restart

TOPOLOGY = Topology.model_validate({"brokers": [{"name": "broker-a"}]})


def progress(messages_in: int, *groups: GroupLag, producers: int = 2, up_s: float = 100) -> DrainProgress:
    return DrainProgress(up_s, messages_in, producers, groups)


def test_drain_closes_after_quiet_time_and_stops_when_all_is_read() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    lag = GroupLag("reads", 1, 5)
    assert drain.step(progress(10, lag), 0.0) is DrainStep.WAIT
    assert drain.step(progress(11, lag), QUIET_S) is DrainStep.WAIT
    assert drain.step(progress(11, lag), 2 * QUIET_S - 0.1) is DrainStep.WAIT
    assert drain.step(progress(11, lag), 2 * QUIET_S) is DrainStep.CLOSE
    assert drain.step(progress(11, lag), 2 * QUIET_S) is DrainStep.WAIT
    assert drain.step(progress(11, GroupLag("reads", 1, 0)), 2 * QUIET_S) is DrainStep.STOP


def test_drain_without_producers_closes_immediately() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    assert drain.step(progress(10, producers=0), 0.0) is DrainStep.CLOSE
    assert drain.step(progress(10, producers=0), 0.0) is DrainStep.STOP


def test_drain_of_a_new_broker_waits_for_heartbeats() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    new = progress(10, producers=0, up_s=HEARTBEAT_S - 1)
    assert drain.step(new, 0.0) is DrainStep.WAIT
    assert drain.step(new, QUIET_S) is DrainStep.CLOSE
    assert drain.step(new, QUIET_S) is DrainStep.WAIT
    assert "clients send heartbeats every 30 s" in drain.remaining(new)
    assert drain.step(progress(10, producers=0, up_s=HEARTBEAT_S), QUIET_S) is DrainStep.STOP


def test_drain_does_not_wait_for_groups_without_members() -> None:
    drain = Drain(begin_s=0, timeout_s=60)
    assert drain.step(progress(1, GroupLag("gone", 0, 7), producers=0), 0.0) is DrainStep.CLOSE
    last = progress(1, GroupLag("gone", 0, 7), producers=0)
    assert drain.step(last, 0.0) is DrainStep.STOP
    assert [group.group for group in last.absent] == ["gone"]


def test_drain_gives_up_after_its_timeout_and_names_the_cause() -> None:
    drain = Drain(begin_s=100, timeout_s=10)
    busy = progress(1)
    assert drain.step(busy, 100) is DrainStep.WAIT
    assert "2 producers" in drain.remaining(busy)
    assert drain.step(progress(2), 110.1) is DrainStep.GIVE_UP
    drain.is_closed = True
    behind = progress(2, *(GroupLag(f"g{number}", 1, number * 1000) for number in range(1, 6)))
    assert drain.step(behind, 110.1) is DrainStep.GIVE_UP
    assert drain.remaining(behind) == "unread messages of g5: 5,000, g4: 4,000, g3: 3,000 and 2 more groups"


def test_summary_names_the_state_and_the_command_that_stops_a_drained_broker() -> None:
    left, gone = GroupLag("reads", 1, 5), GroupLag("gone", 0, 7)
    assert progress(1, left).summary("b") == "b is not being drained"
    assert DrainProgress(100, 1, 2, [left], "draining").summary("b") == (
        "b is being drained and waits: 2 producers still sending; they refresh their routes every 30 s"
    )
    closed = DrainProgress(100, 1, 2, [gone, left], "closed")
    assert closed.summary("b") == "b is being drained and waits: unread messages of reads: 5"
    assert closed.unread == [left, gone]
    drained = DrainProgress(100, 1, 2, [gone], "closed")
    assert drained.is_drained
    assert drained.summary("b") == "b is drained: `raymq drain b` stops it and keeps its store"
    assert not DrainProgress(HEARTBEAT_S - 1, 1, 2, [], "closed").is_drained


def test_find_broker_accepts_names_without_replica_number() -> None:
    spec = ActorSpec(BROKER, "broker-a-0", "C", {}, ("h", 1), ("h", 1), "r")
    running = [Running("raymq", "broker-a-0", spec=spec), Running("raymq", "nameserver-0")]
    assert find_broker(running, "broker-a").name == find_broker(running, "broker-a-0").name == "broker-a-0"
    with pytest.raises(
        LaunchRefused, match="no broker 'nameserver-0' is running; running brokers: broker-a-0"
    ):
        find_broker(running, "nameserver-0")


def test_slave_is_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ActorSpec(BROKER, "broker-a-1", "C", {"role": "slave"}, ("h", 1), ("h", 1), "r")
    stopped: list[str] = []
    monkeypatch.setattr(fleet, "stop", lambda _, name: stopped.append(name) or "")
    report = PlanReport()
    draining = Draining("raymq", Running("raymq", spec.name, spec), report, timeout_s=1)
    draining.show()
    assert not stopped
    draining.run()  # no drain request, for which it would need Ray
    assert stopped == ["broker-a-1"]


def test_restart_and_drain_reject_invalid_arguments() -> None:
    with pytest.raises(LaunchRefused, match="--rolling to restart all"):
        restart(overrides=[])
    with pytest.raises(LaunchRefused, match="--timeout 0 is invalid"):
        drain(TOPOLOGY, "broker-a", timeout_s=0)
