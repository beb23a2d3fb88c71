"""Builds lite topics for a broker, together with POP, whose acks are also those of lite messages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from actors.beat import pause_ms
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.capability import Capability, Feature
from actors.broker.core.metadata.attributes import is_lite_topic
from actors.broker.core.metadata.config_files import TOPICS, ConfigFiles
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.features.lite.events import SCAN_MS
from actors.broker.features.lite.lite_admin import LiteAdmin
from actors.broker.features.lite.lite_expiry import LiteExpiry
from actors.broker.features.lite.lite_groups import LiteGroups
from actors.broker.features.lite.lite_lags import LiteLags
from actors.broker.features.lite.lite_pops import LitePop, LitePops, notify_unsubscribed, wait_key
from actors.broker.features.lite.lite_sends import LiteSends
from actors.broker.features.lite.lite_sessions import LiteSessions
from actors.broker.features.lite.subscriptions import LiteClient
from actors.broker.features.pop.build import EXPIRE_ORDERS_MS, TICK_MS, build_pop
from actors.broker.features.pop.waiting import WaitingPops
from store.common.clock import SystemClock
from store.dispatch.sink import DispatchSink
from store.lite.lite_index import LiteIndex
from store.metadata import TopicConfigTable


def pops_with_lite_topics() -> Feature:
    """Return POP with lite topics: the index of the store, and the requests of lite clients."""
    opened: list[LiteIndex] = []

    def sinks(root: Path, settings: BrokerSettings) -> tuple[DispatchSink]:
        opened[:] = [LiteIndex(root)]
        topics = ConfigFiles(root).load(TOPICS, partial(TopicConfigTable.from_json, clock=SystemClock()))
        for topic in filter(is_lite_topic, topics.topics.values()):
            opened[0].add_topic(topic.topic_name)
        return (opened[0],)

    return Feature(lambda parts: _build(parts, opened[0]), sinks)


def _build(parts: BrokerParts, index: LiteIndex) -> Capability:
    clock, loop, tables, supervisor = parts.clock, parts.loop, parts.tables, parts.supervisor
    waits = WaitingPops(loop.held, tables.topics, clock, loop.server.hub.resume)

    def is_waiting(client: LiteClient) -> bool:
        return waits.has(wait_key(client.topic, client.group, client.client_id))

    def wake(client: LiteClient) -> None:
        waits.wake_first(wait_key(client.topic, client.group, client.client_id), LitePop)

    def pause_of_expiry() -> int:
        return parts.settings.lite_ttl_check_interval_ms

    def pause_of_orders() -> int:
        return pause_ms(sessions.orders.left_ms(), TICK_MS)

    sessions = LiteSessions(
        index, tables.offsets, clock, parts.rng, is_waiting, wake, notify_unsubscribed, parts.settings
    )
    index.arrived = sessions.arrived
    groups = LiteGroups(tables.topics, tables.groups)
    pops = LitePops(
        parts.settings, loop.store, parts.reader, loop.reads, groups, index, sessions, waits, clock
    )
    sends = LiteSends(loop.store, loop.reads, tables.topics, index, parts.settings)
    lags = LiteLags(index, tables, clock, lambda: loop.store.positions.is_end_known)
    admin = LiteAdmin(index, sessions, groups, lags, tables, clock, parts.settings)
    expiry = LiteExpiry(index, groups, sessions, tables, clock, parts.settings, sends.is_known)
    master = frozenset({Role.MASTER})
    pop = build_pop(parts, pops)
    return replace(
        pop,
        interceptors=(*pop.interceptors, sends),
        lite=sends,
        rows=(*pop.rows, *pops.rows(), *admin.rows()),
        services=(
            *pop.services,
            periodic(supervisor, "lite-orders", master, pause_of_orders, sessions.orders.tick),
            periodic(supervisor, "lite-orders-expiry", master, EXPIRE_ORDERS_MS, sessions.orders.expire),
            periodic(supervisor, "lite-events", master, sessions.events.left_ms, sessions.events.tick),
            periodic(supervisor, "lite-scan", master, SCAN_MS, sessions.scan),
            periodic(supervisor, "lite-expiry", master, pause_of_expiry, expiry.tick),
            periodic(
                supervisor, "lite-replica-expiry", (Role.SLAVE,), pause_of_expiry, expiry.tick_of_replica
            ),
            RoleService("lite-sends", master, sends.start, sends.stop),
            RoleService("lite-takeover", master, expiry.start, expiry.stop),
            RoleService("lite-pops", master, pops.start, pops.stop),
        ),
        figures=(*pop.figures, *lags.figures()),
        keepers=(*pop.keepers, sessions),
    )
