"""RestartSpacing: computes how long the driver must wait between the restarts of two brokers.

A RocketMQ client refreshes its routes every 30 s (pollNameServerInterval), but not when a send fails. If it
refreshed them while broker A was down, the client knows only broker B. If B is stopped before the next
refresh, all retries of the client fail. Therefore the driver does not stop B until every client has had time
to refresh its routes after the restart of A.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from actors.host.service_host import State
from cluster.control.kinds import BROKER
from cluster.control.plan import Running

REFRESH_DURATION_S = 1.0
"""Time that a client may take to refresh its routes, in addition to the refresh interval."""

FIRST_EPOCH = 1
"""Epoch of a new store. Its broker has not restarted yet, so no client can have missed it."""


class RestartSpacing:
    """The restart times of the brokers. All `now_s` arguments are seconds of the caller's monotonic clock."""

    def __init__(self, route_refresh_s: float) -> None:
        """Create it without restarts.

        Args:
            route_refresh_s: The longest route refresh interval of any client.
        """
        self._known_after_s = route_refresh_s + REFRESH_DURATION_S
        self._restarted_s: dict[str, float] = {}

    @classmethod
    def of(cls, running: Iterable[Running], *, route_refresh_s: float, wall_ms: int, now_s: float) -> Self:
        """Create it with the restart times of the running brokers.

        Args:
            running: The running actors with their status.
            route_refresh_s: The longest route refresh interval of any client.
            wall_ms: Time at which the status was read, in ms since the epoch, by the clock of this machine.
            now_s: The same time on the monotonic clock.
        """
        spacing = cls(route_refresh_s)
        for actor in running:
            is_broker = actor.spec is not None and actor.spec.kind is BROKER
            if is_broker and actor.state == State.SERVING and actor.details.get("epoch", 0) > FIRST_EPOCH:
                # max(): the clock of the broker's machine may be ahead of this one.
                spacing._restarted_s[actor.name] = now_s - max(0, wall_ms - actor.serving_ms) / 1000
        return spacing

    def record_restart(self, broker: str, now_s: float) -> None:
        """Record that `broker` has restarted and has registered with the nameservers."""
        self._restarted_s[broker] = now_s

    def wait_s(self, broker: str, now_s: float) -> float:
        """Return the seconds to wait before `broker` may be stopped; 0 if it may be stopped now."""
        others = [restarted_s for name, restarted_s in self._restarted_s.items() if name != broker]
        return max(0.0, max(others) + self._known_after_s - now_s) if others else 0.0
