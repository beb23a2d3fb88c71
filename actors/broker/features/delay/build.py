"""Builds the delay levels of a broker: redirection, delivery and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from actors.beat import pause_ms
from actors.broker.core.capability import Capability, Feature
from actors.broker.core.metadata.topics import SCHEDULE_TOPIC
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.features.delay.delay_scheduler import DelayScheduler
from actors.broker.features.delay.unconfirmed_deliveries import UnconfirmedDeliveries
from actors.host.figures import Figure, Kind, Sample
from store.message_store import MessageStore

DELIVERY_INTERVAL_MS = 100


def delay_levels(*, is_progress_replicated: bool = False) -> Feature:
    """Return the delay levels of a broker.

    Args:
        is_progress_replicated: the table of delay offsets has what the replicas of the broker have confirmed.
    """
    deliveries = UnconfirmedDeliveries()
    return Feature(partial(_build, deliveries, is_progress_replicated), sinks=lambda *_: (deliveries,))


def _build(deliveries: UnconfirmedDeliveries, is_progress_replicated: bool, parts: BrokerParts) -> Capability:
    store, tables, server = parts.loop.store, parts.tables, parts.loop.server
    delays = DelayScheduler(
        store, parts.clock, tables.delay_offsets, tables.topics, deliveries, parts.loop.reads.load_pages
    )

    def deliver() -> None:
        written = store.positions.written
        delays.deliver()
        if store.positions.written > written:
            server.request_tick()

    def pause() -> int:
        return pause_ms(delays.left_ms(), DELIVERY_INTERVAL_MS)

    async def forget_lost() -> None:
        deliveries.take_lost()  # of an earlier time as the master

    async def nothing() -> None: ...

    master = frozenset({Role.MASTER})
    services = [RoleService("delay-progress", master, forget_lost, nothing)] if is_progress_replicated else []
    services.append(periodic(parts.supervisor, "delayed-delivery", master, pause, deliver))
    return Capability(
        interceptors=(delays,),
        services=services,
        figures=delay_figures(delays, store),
    )


def delay_figures(delays: DelayScheduler, store: MessageStore) -> Sequence[Figure]:
    """Return the figures of the delay levels."""

    def offsets() -> Iterator[Sample]:
        for level, offset in list(delays.table.offsets.items()):
            yield Sample((str(level),), f"{offset},{store.max_offset(SCHEDULE_TOPIC, level - 1)}")

    return (
        Figure(
            "delayed_messages_skipped", Kind.COUNTER, "", lambda: delays.skipped,
            "Undeliverable delayed ones.", metric="raymq_delayed_messages_skipped_total",
        ),
        Figure(
            "delay_offsets", Kind.TEXT, "", offsets, "Delivered and end offset of each delay level's queue.",
            labels=("level",), runtime_names=("scheduleMessageOffset_{level}",),
        ),
    )  # fmt: skip
