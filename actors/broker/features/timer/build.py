"""Builds the timer of a broker: timer messages, their delivery, and the requests about them."""

from __future__ import annotations

import asyncio

from actors.broker.core.capability import Capability
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.features.timer.recall import Recall
from actors.broker.features.timer.timer_counts import TimerCounts
from actors.broker.features.timer.timer_figures import TIMER_DISABLED, timer_figures, timer_metrics
from actors.broker.features.timer.timer_messages import TimerMessages
from actors.broker.features.timer.timer_requests import TimerRequests
from actors.broker.features.timer.timer_service import TimerService
from actors.supervisor import Supervisor

SAMPLE_MS = 1000


def build_timer(parts: BrokerParts) -> Capability:
    """Build the timer of a broker; if `timer_wheel_enable` is false, its requests are only refused."""
    settings, clock, loop, topics = parts.settings, parts.clock, parts.loop, parts.tables.topics
    supervisor = parts.supervisor
    messages = TimerMessages(settings, clock, parts.properties, lambda: timer.announce())
    if not settings.timer_wheel_enable:
        return Capability(
            rows=tuple(TimerRequests(None, None).rows()), interceptors=(messages,), figures=TIMER_DISABLED
        )
    counts = TimerCounts(settings.store_root, clock)
    timer = TimerService(settings, loop.store, loop.reads, clock, counts, topics, loop.server.request_tick)
    recall = Recall(settings, loop.store, timer, topics, loop.acks, clock)
    requests = TimerRequests(lambda: timer.checkpoint, counts.by_topic)
    master, flush_ms = frozenset({Role.MASTER}), settings.timer_flush_interval_ms
    return Capability(
        rows=(*recall.rows(), *requests.rows()),
        interceptors=(messages,),
        services=(
            RoleService("timer", master, timer.start, timer.stop),
            _task(supervisor, timer),
            periodic(supervisor, "timer-progress", master, flush_ms, timer.save_progress),
            periodic(supervisor, "timer-rates", master, SAMPLE_MS, counts.sample),
        ),
        figures=(*timer_figures(timer, counts, loop.log_end), *timer_metrics(timer, counts, topics, clock)),
    )


def _task(supervisor: Supervisor, timer: TimerService) -> RoleService:
    """Return the service that runs the rounds of the timer; `stop` waits for the end of the last one."""
    tasks: list[asyncio.Task[None]] = []

    async def start() -> None:
        tasks.append(supervisor.start("timer", timer.run))

    async def stop() -> None:
        task = tasks.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return RoleService("timer-task", frozenset({Role.MASTER}), start, stop)
