"""Builds POP for a broker: claims, their revival, and the requests about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.beat import BEAT_MS, pause_ms
from actors.broker.core.capability import Capability
from actors.broker.core.group.popping_groups import PoppingGroups
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.features.pop.acks import LiteAcks, PopAcks
from actors.broker.features.pop.claim_log import ClaimLog
from actors.broker.features.pop.claimed_offsets import ClaimedOffsets
from actors.broker.features.pop.claims import Claims
from actors.broker.features.pop.orders import Orders
from actors.broker.features.pop.pop_counts import PopCounts
from actors.broker.features.pop.pop_reader import PopReader
from actors.broker.features.pop.pop_requests import PopRequests
from actors.broker.features.pop.priorities import Priorities
from actors.broker.features.pop.retries import Retries
from actors.broker.features.pop.revive_log import ReviveLog
from actors.broker.features.pop.reviver import Reviver
from actors.broker.features.pop.waiting import WaitingPops
from actors.host.figures import Figure, Kind

TICK_MS = 100
RECORD_ACKS_MS = 1000
READ_LOG_MS = 200
EXPIRE_ORDERS_MS = 60_000


def build_pop(parts: BrokerParts, lite: LiteAcks) -> Capability:
    """Build POP for a broker. Its services start after those of the timer, to which it writes.

    `lite` handles the acks of lite messages.
    """
    settings, clock, loop, tables = parts.settings, parts.clock, parts.loop, parts.tables
    store, offsets, topics, reader = loop.store, tables.offsets, tables.topics, parts.reader
    waits = WaitingPops(loop.held, topics, clock, loop.server.hub.resume)
    claims = Claims(clock, ClaimedOffsets(offsets))
    orders = Orders(tables.orders, offsets, clock, tables.order_changes.note, waits.wake)
    counts = PopCounts(topics)
    log = ClaimLog(settings, store, clock, parts.identity.host.packed, counts)
    retries = Retries(settings, store, tables, counts)
    reviver = Reviver(store, loop.reads, offsets, claims, log, retries, waits.wake, loop.server.request_tick)
    offsets.acked.before_log(reviver.record)
    revive_log = ReviveLog(settings, store, loop.reads, offsets, clock, log, reviver, waits.wake, counts)
    priorities = Priorities(settings, tables, parts.rng)
    pop_reader = PopReader(
        settings, store, reader, parts.groups.progress, topics, offsets, claims, orders, priorities, clock
    )
    requests = PopRequests(settings, reader, loop.reads, topics, pop_reader, waits, parts.popping, clock)
    acks = PopAcks(settings, store, topics, offsets, claims, orders, log, revive_log, lite, clock)

    def until(left_ms: Callable[[], int | None]) -> Callable[[], int]:
        return lambda: pause_ms(left_ms(), TICK_MS)

    def read_pause_ms() -> int:
        return READ_LOG_MS if revive_log.pending else BEAT_MS

    master, supervisor = frozenset({Role.MASTER}), parts.supervisor
    return Capability(
        rows=(*requests.rows(), *acks.rows()),
        interceptors=(priorities,),
        services=(
            RoleService("revive-log", master, revive_log.start, revive_log.stop),
            RoleService("pop-claims", master, _nothing, reviver.stop),
            periodic(supervisor, "pop-revival", master, until(claims.left_ms), reviver.tick),
            periodic(supervisor, "pop-ack-records", master, RECORD_ACKS_MS, reviver.record_acks),
            periodic(supervisor, "revive-log-read", master, read_pause_ms, revive_log.tick),
            periodic(supervisor, "pop-orders", master, until(orders.left_ms), orders.tick),
            periodic(supervisor, "pop-orders-expiry", master, EXPIRE_ORDERS_MS, orders.expire),
            RoleService("pop-acks", master, acks.start, acks.stop),
            RoleService("pops", master, requests.start, requests.stop),
        ),
        figures=(*_figures(claims, reviver, revive_log, parts.popping), *counts.figures()),
        keepers=(pop_reader, claims, revive_log),
    )


async def _nothing() -> None:
    """Start nothing."""


def _figures(
    claims: Claims, reviver: Reviver, revive_log: ReviveLog, popping: PoppingGroups
) -> Sequence[Figure]:
    counter, gauge = Kind.COUNTER, Kind.GAUGE
    return (
        Figure(
            "pop_in_flight", gauge, "", lambda: claims.in_flight, "Popped messages that are not acked yet.",
            runtime_names=("popInFlight",), metric="raymq_pop_in_flight",
        ),
        Figure(
            "pop_revived", counter, "", lambda: reviver.revived, "Popped messages not acked in time.",
            runtime_names=("popRevived",), metric="raymq_pop_revived_total",
        ),
        Figure(
            "pop_messages_deleted", counter, "", lambda: reviver.lost,
            "Popped messages that were deleted before they were acked.",
            runtime_names=("popMessagesDeleted",), metric="raymq_pop_messages_deleted_total",
        ),
        Figure(
            "pop_stored_claims", gauge, "", lambda: revive_log.pending, "Stored claims to be handled.",
            runtime_names=("popStoredClaims",),
        ),
        Figure(
            "pop_revive_lag", gauge, "", revive_log.behind,
            "Records of the revive topic that are not done (a number, in spite of RocketMQ's name).",
            ("queue_id",), metric="rocketmq_pop_revive_lag_milliseconds",
        ),
        Figure(
            "pop_revive_latency", gauge, "ms", revive_log.behind_ms,
            "Time for which the first claim in the revive topic is overdue.", ("queue_id",),
            metric="rocketmq_pop_revive_latency_milliseconds",
        ),
        Figure(
            "mixed_request_modes", counter, "", lambda: popping.mixed, "Groups that pop and pull one topic.",
            runtime_names=("mixedRequestModes",), metric="raymq_mixed_request_modes_total",
        ),
    )  # fmt: skip
