"""Waits of the driver for actors, without Ray and by a clock of the test: each ends at its time-out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from actors.host import ray_port
from actors.host.ray_port import ActorName, ActorUnavailable
from actors.host.service_host import State
from cluster.control import fleet, health
from cluster.control.kinds import BROKER
from cluster.control.specs import ActorSpec
from cluster.waiting import Waiting
from tests.conftest import ClockAtRest

SPEC = ActorSpec(BROKER, "a-1", "C", {"broker_name": "a"}, ("h", 1), ("h", 1), "r", "/s")
SLAVE = replace(SPEC, settings=SPEC.settings | {"role": "slave"})
MEMBER = replace(SPEC, settings=SPEC.settings | {"replication": "raft"})
TIMEOUT_S = 120.0


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def waiting(clock: ClockAtRest, slept: list[float]) -> Waiting:
    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(int(seconds * 1000))

    return Waiting(clock, sleep)


def respond(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Make all actors respond with the result of `call`."""
    monkeypatch.setattr(fleet, "observe", lambda _: [])
    monkeypatch.setattr(ray_port, "call", lambda *_, **__: call())


@pytest.mark.parametrize(
    ("wait", "spec", "details", "reason"),
    [
        (
            fleet.wait_in_sync,
            SLAVE,
            {"replication_state": "connecting", "written": 9},
            "connecting, its log ends at 9",
        ),
        (
            fleet.wait_in_sync,
            MEMBER,
            {"raft_state": "candidate", "confirmed": 9},
            "candidate, it has confirmed 9 of 0 bytes",
        ),
        (fleet.wait_leading, MEMBER, {"raft_state": "follower"}, "follower, it may lack records"),
    ],
    ids=["in sync", "caught up", "leading"],
)
def test_wait_for_a_replica_ends_with_its_state(
    monkeypatch: pytest.MonkeyPatch,
    waiting: Waiting,
    slept: list[float],
    wait: Callable[..., str],
    spec: ActorSpec,
    details: dict[str, object],
    reason: str,
) -> None:
    respond(monkeypatch, lambda: {"spec": spec.to_json(), "state": "serving", "details": details})
    assert reason in wait("raymq", spec, TIMEOUT_S, waiting)
    assert sum(slept) >= TIMEOUT_S


def test_wait_for_starting_actors_yields_each_result(
    monkeypatch: pytest.MonkeyPatch, waiting: Waiting, slept: list[float]
) -> None:
    status = {"state": State.STARTING, "reason": "recovers", "code_version": "1"}
    respond(monkeypatch, lambda: status)
    assert [each.reason for each in fleet.wait_serving("raymq", [SPEC], TIMEOUT_S, waiting)] == [
        "not serving after 120 s: recovers"
    ]
    assert sum(slept) >= TIMEOUT_S
    status["state"] = State.SERVING
    assert [each.reason for each in fleet.wait_serving("raymq", [SPEC], TIMEOUT_S, waiting)] == [""]


def test_wait_for_actors_that_compile_ends_a_time_out_after_their_last_progress(
    monkeypatch: pytest.MonkeyPatch, waiting: Waiting, slept: list[float]
) -> None:
    def call() -> object:
        count = min(int(sum(slept) / TIMEOUT_S * 2), 44)
        progress = f"compiling {count} of 44 kernels"
        return {"state": State.STARTING, "reason": progress, "progress": progress}

    respond(monkeypatch, call)
    reports: list[str] = []
    results = list(fleet.wait_serving("raymq", [SPEC], TIMEOUT_S, waiting, reports.append))

    assert [each.reason for each in results] == ["not serving after 120 s: compiling 44 of 44 kernels"]
    assert reports == [f"compiling {count} of 44 kernels" for count in range(45)]
    assert 23 * TIMEOUT_S <= sum(slept) < 24 * TIMEOUT_S


def test_status_of_an_unavailable_actor_is_requested_until_the_time_out(
    monkeypatch: pytest.MonkeyPatch, waiting: Waiting, slept: list[float]
) -> None:
    def call() -> object:
        if len(slept) < 5 or sum(slept) > 1:
            raise ActorUnavailable("restarts")
        return {"state": "serving"}

    respond(monkeypatch, call)
    assert fleet.actor_status(ActorName("raymq", "a-1"), TIMEOUT_S, waiting) == {"state": "serving"}
    slept.append(1)
    with pytest.raises(ActorUnavailable, match="restarts"):
        fleet.actor_status(ActorName("raymq", "a-1"), TIMEOUT_S, waiting)
    assert sum(slept) >= TIMEOUT_S


def test_health_checks_are_repeated_until_the_time_out(
    monkeypatch: pytest.MonkeyPatch, waiting: Waiting, slept: list[float]
) -> None:
    monkeypatch.setattr(health, "probe", lambda *_: "refused" if len(slept) < 3 else "")
    assert health.wait_until_healthy([SPEC], TIMEOUT_S, waiting) == {}
    monkeypatch.setattr(health, "probe", lambda *_: "refused")
    assert health.wait_until_healthy([SPEC], TIMEOUT_S, waiting) == {"a-1": "refused"}
    assert sum(slept) >= TIMEOUT_S
