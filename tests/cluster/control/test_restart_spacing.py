"""A broker is not stopped until all clients know that the last restarted broker serves again."""

from __future__ import annotations

from typing import Any

from cluster.control.kinds import BROKER
from cluster.control.plan import Running
from cluster.control.restart_spacing import RestartSpacing
from cluster.control.specs import ActorSpec

WALL_MS, NOW_S = 1_800_000_000_000, 500.0
ROUTE_REFRESH_S = 30.0
KNOWN_S = 31.0  # plus one second for the refresh itself


def broker(name: str, ago_s: float, **changes: Any) -> Running:
    spec = ActorSpec(BROKER, name, "c", {}, ("127.0.0.1", 1), ("127.0.0.1", 1), "node", None)
    status = {"state": "serving", "serving_ms": WALL_MS - int(ago_s * 1000), "details": {"epoch": 2}}
    return Running("raymq", name, spec=spec, **{**status, **changes})


def wait_s(name: str, *running: Running) -> float:
    return spacing_of(*running).wait_s(name, NOW_S)


def spacing_of(*running: Running, route_refresh_s: float = ROUTE_REFRESH_S) -> RestartSpacing:
    return RestartSpacing.of(running, route_refresh_s=route_refresh_s, wall_ms=WALL_MS, now_s=NOW_S)


def test_broker_waits_for_the_latest_restart_of_another() -> None:
    both = broker("broker-a-0", 10), broker("broker-b-0", 20)
    assert wait_s("broker-b-0", *both) == KNOWN_S - 10
    assert wait_s("broker-a-0", *both) == KNOWN_S - 20
    assert wait_s("broker-c-0", *both) == KNOWN_S - 10
    assert wait_s("broker-b-0", broker("broker-a-0", 31)) == 0
    assert spacing_of(*both, route_refresh_s=15).wait_s("broker-b-0", NOW_S) == 6


def test_no_wait_for_itself_new_or_stopped_brokers() -> None:
    assert wait_s("broker-a-0", broker("broker-a-0", 1)) == 0
    assert wait_s("broker-b-0", broker("broker-a-0", 1, details={"epoch": 1})) == 0
    assert wait_s("broker-b-0", broker("broker-a-0", 1, state="starting", details={})) == 0
    assert wait_s("broker-b-0", Running("raymq", "broker-a-0")) == 0


def test_recorded_restarts_count_and_clock_skew_is_ignored() -> None:
    spacing = spacing_of(broker("broker-a-0", -3600))
    assert spacing.wait_s("broker-b-0", NOW_S) == KNOWN_S
    spacing.record_restart("broker-b-0", NOW_S + 40)
    assert spacing.wait_s("broker-a-0", NOW_S + 41) == KNOWN_S - 1
    assert spacing.wait_s("broker-b-0", NOW_S + 41) == 0
