"""No broker goes while clients may not know that another is back, whoever restarted that one."""

from __future__ import annotations

from typing import Any

from cluster.driver.plan import ActorSpec, Kind, Running
from cluster.driver.returns import Returns

WALL_MS, NOW_S = 1_800_000_000_000, 500.0
ROUTE_REFRESH_S = 30.0
KNOWN_S = 31.0  # and a second in which a client does look


def broker(name: str, ago_s: float, **changes: Any) -> Running:
    spec = ActorSpec(Kind.BROKER, name, "c", {}, ("127.0.0.1", 1), ("127.0.0.1", 1), "node", None)
    told = {"state": "serving", "serving_ms": WALL_MS - int(ago_s * 1000), "details": {"epoch": 2}}
    return Running("raymq", name, spec=spec, **{**told, **changes})


def wait_s(name: str, *running: Running) -> float:
    return returns_of(*running).wait_s(name, NOW_S)


def returns_of(*running: Running, route_refresh_s: float = ROUTE_REFRESH_S) -> Returns:
    return Returns.of(running, route_refresh_s=route_refresh_s, wall_ms=WALL_MS, now_s=NOW_S)


def test_a_broker_waits_for_the_last_of_the_others_that_came_back() -> None:
    both = broker("broker-a-0", 10), broker("broker-b-0", 20)
    assert wait_s("broker-b-0", *both) == KNOWN_S - 10
    assert wait_s("broker-a-0", *both) == KNOWN_S - 20
    assert wait_s("broker-c-0", *both) == KNOWN_S - 10
    assert wait_s("broker-b-0", broker("broker-a-0", 31)) == 0
    assert returns_of(*both, route_refresh_s=15).wait_s("broker-b-0", NOW_S) == 6


def test_nobody_waits_for_itself_for_what_is_new_or_for_what_does_not_serve() -> None:
    assert wait_s("broker-a-0", broker("broker-a-0", 1)) == 0
    assert wait_s("broker-b-0", broker("broker-a-0", 1, details={"epoch": 1})) == 0
    assert wait_s("broker-b-0", broker("broker-a-0", 1, state="starting", details={})) == 0
    assert wait_s("broker-b-0", Running("raymq", "broker-a-0")) == 0


def test_what_this_run_restarts_counts_and_a_clock_that_is_ahead_makes_nobody_wait_longer() -> None:
    returns = returns_of(broker("broker-a-0", -3600))
    assert returns.wait_s("broker-b-0", NOW_S) == KNOWN_S
    returns.restarted("broker-b-0", NOW_S + 40)
    assert returns.wait_s("broker-a-0", NOW_S + 41) == KNOWN_S - 1
    assert returns.wait_s("broker-b-0", NOW_S + 41) == 0
