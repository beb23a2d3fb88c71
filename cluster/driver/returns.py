"""Which brokers have just come back: who looked for routes while one was away knows only the others.

A RocketMQ client looks for routes every 30 s (pollNameServerInterval), and not when a send fails. A broker
that goes within that time takes the last one that such a client knows: all its tries fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from actors.host.service_host import State
from cluster.driver.plan import Kind, Running

LOOK_S = 1.0
"""How long a client may take to look for routes, when it is time to."""

FIRST_EPOCH = 1
"""A store's first: nobody can have missed a broker that was never there before."""


class Returns:
    """When each broker came back; times are monotonic seconds, given by the caller."""

    def __init__(self, route_refresh_s: float) -> None:
        """`route_refresh_s`: how often the slowest client looks for routes."""
        self._known_after_s = route_refresh_s + LOOK_S
        self._back_s: dict[str, float] = {}

    @classmethod
    def of(cls, running: Iterable[Running], *, route_refresh_s: float, wall_ms: int, now_s: float) -> Self:
        """From what brokers tell of themselves, at `wall_ms` of this machine's clock."""
        returns = cls(route_refresh_s)
        for actor in running:
            is_broker = actor.spec is not None and actor.spec.kind is Kind.BROKER
            if is_broker and actor.state == State.SERVING and actor.details.get("epoch", 0) > FIRST_EPOCH:
                # Clocks of two machines may differ: nobody came back later than now.
                returns._back_s[actor.name] = now_s - max(0, wall_ms - actor.serving_ms) / 1000
        return returns

    def restarted(self, broker: str, now_s: float) -> None:
        """A broker serves again, and the nameservers know it."""
        self._back_s[broker] = now_s

    def wait_s(self, broker: str, now_s: float) -> float:
        """How long `broker` must not go yet, for another's sake; 0 where it may."""
        others = [back_s for name, back_s in self._back_s.items() if name != broker]
        return max(0.0, max(others) + self._known_after_s - now_s) if others else 0.0
