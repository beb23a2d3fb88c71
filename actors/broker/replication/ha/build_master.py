"""Builds what a broker needs as a master: the HA port, and what is shown about its slaves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from actors.broker.broker_settings import SLAVE
from actors.broker.core.capability import Capability
from actors.broker.core.loop.turn import TurnStep
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.replication.ha.ha_connection import HaLoop
from actors.broker.replication.ha.ha_requests import HaRequests
from actors.broker.replication.ha.ha_server import SWEEP_MS, HaServer, SlaveState
from actors.broker.replication.held_acks import HeldAcks
from actors.broker.replication.progress_log import SNAPSHOT_MS, ProgressLog
from actors.broker.replication.tables.table_specs import ACKED_TABLES, entries_of
from actors.host.cluster_tls import peer_tls
from actors.host.figures import Figure, Kind
from actors.transport.tls.contexts import RELOAD_MS
from actors.transport.tls.gate import TlsGate


def build_master(parts: BrokerParts) -> Capability:
    """Build the HA port of a broker; without `replication` there are only its rows and figures.

    Raises StoreError if `ha_tls` is set and a certificate is invalid.
    """
    settings, loop, role = parts.settings, parts.loop, parts.role
    address = parts.identity.ha_address
    offsets, kinds = parts.tables.offsets, entries_of(ACKED_TABLES, parts)
    progress = None if settings.role == SLAVE else ProgressLog(loop.store, offsets, kinds)

    def master() -> str | None:
        return parts.registration.master.ha_server_addr

    if not settings.replication:
        return Capability(
            rows=tuple(HaRequests(loop.store, lambda: role.role, master, _no_slaves, address).rows()),
            figures=_figures(None),
        )
    hub, is_master = loop.server.hub, frozenset({Role.MASTER})
    tls = peer_tls(settings) if settings.ha_tls else None
    server = HaServer(
        settings,
        parts.identity.ha_port,
        loop.store,
        parts.clock,
        HaLoop(hub.enqueue, loop.reads.load_pages),
        loop.server.request_tick,
        loop.server.ports,
        None if tls is None else partial(TlsGate, hub, tls),
    )
    every = partial(periodic, parts.supervisor, roles=is_master, needs_end=False)  # slaves confirm the log
    reload = () if tls is None else (every("ha-tls", interval_ms=RELOAD_MS, act=tls.reload),)
    acks: tuple[HeldAcks, ...] = ()
    progress_services: tuple[RoleService, ...] = ()
    push = server.push
    if progress is not None and settings.logs_progress:
        acks = (HeldAcks(loop, progress, offsets.acked, lambda: role.role is Role.MASTER),)
        push = acks[0].before(push)
        progress_services = (
            RoleService("progress-log", is_master, _nothing, progress.stop),
            every("progress-snapshots", interval_ms=SNAPSHOT_MS, act=progress.snapshot),
        )
    return Capability(
        rows=tuple(HaRequests(loop.store, lambda: role.role, master, server.slaves, address).rows()),
        steps=acks,
        steps_skip_sends=True,
        turn_steps=(TurnStep("replicate", push, follows="flush"),),
        services=(
            RoleService("ha-port", is_master, server.start, server.stop, needs_end=False),
            every("ha-sweep", interval_ms=SWEEP_MS, act=server.sweep),
            *reload,
            *progress_services,
        ),
        figures=(
            Figure("replication", Kind.TEXT, "", lambda: settings.replication, "How slaves get the log."),
            *_figures(server),
        ),
        keepers=(server,),
    )


async def _nothing() -> None:
    """Start nothing."""


def _no_slaves() -> Sequence[SlaveState]:
    return ()


def _figures(server: HaServer | None) -> Sequence[Figure]:
    """Return the figures of the slaves; they are described only if there is an HA port."""
    is_described = server is not None
    slaves = _no_slaves if server is None else server.slaves

    def in_sync() -> int:
        return 1 if server is None else server.in_sync

    return (
        Figure(
            "in_sync_replicas", Kind.GAUGE, "", in_sync,
            "Replicas that lack little of the log, the master included.",
            is_described=is_described,
            metric="raymq_in_sync_replicas",
        ),
        Figure(
            "slaves", Kind.TEXT, "", lambda: " ".join(each.address for each in slaves()),
            "Addresses of the connected slaves.", is_described=is_described,
        ),
        Figure(
            "slave_connections", Kind.GAUGE, "", lambda: 0 if server is None else server.connections,
            "Open connections of the HA port.", is_described=is_described,
            metric="raymq_slave_connections",
        ),
        Figure(
            "slave_lag_bytes", Kind.GAUGE, "bytes",
            lambda: max((each.lag_bytes for each in slaves()), default=0),
            "Bytes of the log that the slave that is furthest behind lacks.",
            is_described=is_described,
            metric="raymq_slave_lag_bytes",
        ),
        Figure(
            "slave_lag_s", Kind.GAUGE, "s", lambda: max((each.lag_s for each in slaves()), default=0),
            "Age of the oldest record that this slave lacks.",
            is_described=is_described,
            metric="raymq_slave_lag_seconds",
        ),
    )  # fmt: skip
