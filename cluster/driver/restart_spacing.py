"""RestartSpacing: how long to wait between the restarts of two brokers.

A RocketMQ client refreshes its routes every 30 s (pollNameServerInterval), but not when a send fails. If it
refreshed them while broker A was down, it knows only broker B. If B is then stopped before the next refresh,
all retries of the client fail. Therefore B must not be stopped until all clients know that A has restarted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from actors.host.service_host import State
from cluster.driver.plan import Kind, Running

REFRESH_DURATION_S = 1.0
"""Time allowed for one refresh of the routes."""

FIRST_EPOCH = 1
"""Epoch of a new store. No client can have refreshed its routes while such a broker was down."""


class RestartSpacing:
    """Records when brokers restarted. The caller passes the time, in monotonic seconds."""

    def __init__(self, route_refresh_s: float) -> None:
        """`route_refresh_s` is the longest route refresh interval of a client."""
        self._known_after_s = route_refresh_s + REFRESH_DURATION_S
        self._restarted_s: dict[str, float] = {}

    @classmethod
    def of(cls, running: Iterable[Running], *, route_refresh_s: float, wall_ms: int, now_s: float) -> Self:
        """Build it from the status of the running brokers, read at `wall_ms` of this machine's clock."""
        spacing = cls(route_refresh_s)
        for actor in running:
            is_broker = actor.spec is not None and actor.spec.kind is Kind.BROKER
            if is_broker and actor.state == State.SERVING and actor.details.get("epoch", 0) > FIRST_EPOCH:
                # max(): the clock of the broker's machine may be ahead of this one.
                spacing._restarted_s[actor.name] = now_s - max(0, wall_ms - actor.serving_ms) / 1000
        return spacing

    def record_restart(self, broker: str, now_s: float) -> None:
        """Record that `broker` serves again and is registered with the nameservers."""
        self._restarted_s[broker] = now_s

    def wait_s(self, broker: str, now_s: float) -> float:
        """Return the seconds to wait before `broker` may be stopped; 0 if it may be stopped now."""
        others = [restarted_s for name, restarted_s in self._restarted_s.items() if name != broker]
        return max(0.0, max(others) + self._known_after_s - now_s) if others else 0.0
