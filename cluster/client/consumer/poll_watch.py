"""PollWatch: takes the queues of a consumer that does not poll, until it polls again.

polling ── no poll for `max_poll_interval_ms` ──→ idle: all queues are released, the member leaves
   ↑                                               │
   └──────────── a poll: the member rejoins ───────┘
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.client.config import ConsumerConfig
from cluster.client.consumer.deliveries import Deliveries, PulledQueue
from cluster.client.group.group_session import GroupSession
from cluster.client.transport.instance import ClientInstance
from store.common.logs import get_logger

_log = get_logger(__name__)

CHECK_MAX_MS = 1_000


class PollWatch:
    """Watches the polls of one pull consumer, on its event loop."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ConsumerConfig,
        session: GroupSession,
        deliveries: Deliveries,
        release: Callable[[list[PulledQueue]], None],
    ) -> None:
        """`release` commits the acknowledged offsets of queues and releases them to the group."""
        self._instance = instance
        self._config = config
        self._session = session
        self._deliveries = deliveries
        self._release = release
        self._is_idle = False
        self._polls = 0
        self._polled_ms = instance.now_ms()
        check_ms = min(max(config.max_poll_interval_ms // 4, 1), CHECK_MAX_MS)
        instance.supervisor.every("poll-interval", lambda: check_ms, self._check)

    async def _check(self) -> None:
        now_ms, polls = self._instance.now_ms(), self._deliveries.polls
        if polls != self._polls or self._deliveries.is_waiting:
            self._polls, self._polled_ms = polls, now_ms
            if self._is_idle:
                _log.info("group_rejoined", group=self._config.group)
                self._is_idle = False
                self._session.rejoin()
        elif not self._is_idle and now_ms - self._polled_ms >= self._config.max_poll_interval_ms:
            self._is_idle = True
            states = list(self._deliveries.states.values())
            _log.warning(
                "max_poll_interval_exceeded",
                group=self._config.group,
                queues=len(states),
                max_poll_interval_ms=self._config.max_poll_interval_ms,
                effect="other members get the queues until the next poll",
            )
            self._session.stand_by()
            self._release(states)
