"""Builds the replication of a broker: what it does while it is a slave, or a former master."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from actors.broker.broker_settings import SLAVE, BrokerSettings
from actors.broker.core.capability import Capability, OpenStore
from actors.broker.core.loop.log_history import LogHistory, PastPositions
from actors.broker.core.parts import BrokerParts
from actors.broker.core.registration import Registration
from actors.broker.core.role import BrokerRole, Role, RoleService
from actors.broker.replication.ha.ha_client import HaClient
from actors.broker.replication.ha.metadata_sync import MetadataSync
from actors.broker.replication.ha.slave_requests import SlaveRequests
from actors.broker.replication.promotion_epochs import EpochRequests, PromotionEpochs
from actors.broker.replication.raft.forwarding import Forwarder
from actors.broker.replication.raft.member_requests import MemberRequests
from actors.broker.replication.raft.raft_requests import RaftRequests
from actors.broker.replication.raft.transfers import refuse_transfer, transfer_row
from actors.broker.replication.tables.table_specs import copies_of
from actors.host.cluster_tls import check_peer_ca
from actors.host.figures import Figure, Kind
from actors.raft.conversion import refuse_member
from actors.supervisor import Supervisor
from actors.transport.request import RequestContext
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerResponse
from store.commitlog.confirm_policy import confirm_policy
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message_store import MessageStore
from store.ownership.divergence import remove_divergence
from store.ownership.first_copy import refuse_first_copy
from store.store_errors import StoreError
from store.writing.send_gate import REPLICATION, SendGate

_log = get_logger(__name__)


def open_single(
    settings: BrokerSettings, clock: Clock, rng: random.Random, open_store: OpenStore
) -> MessageStore:
    """Open the store of a single broker, or of a pair. Raises StoreError if it is one of a Raft group."""
    refuse_member(settings.store_root)
    return open_store(confirm_policy(settings.store.flush, settings.replication, settings.in_sync_replicas))


def build_replication(parts: BrokerParts) -> Capability:
    """Build the replication of a broker; the hot path of a master has no step (`steps_skip_sends`).

    A master begins its epoch here, before it listens: a former master never accepts a send.

    Raises:
        StoreError: the broker is a former master, or a slave that lacks tables of its master; or its list of
            epochs is damaged; or clients could pass for replicas, with `ha_tls`.
        OSError: the list of epochs cannot be read or written.
    """
    settings, positions = parts.settings, parts.loop.store.positions
    if settings.uses_ha_tls:
        check_peer_ca(settings)
    epochs = PromotionEpochs(settings)
    role, registration, store = parts.role, parts.registration, parts.loop.store
    step = SlaveRequests(
        settings,
        lambda: role.role,
        lambda: registration.master.master_addr,
        lambda: store.write_refusal,
        lambda: registration.is_fenced,
    )

    def handle(context: RequestContext) -> RemotingCommand | None:
        step(context)
        return context.row.handler(context)

    forwarder = Forwarder(
        parts.remoting_client,
        lambda: role.role is not Role.SLAVE or not registration.master.master_addr,
        lambda: registration.master.master_addr or "",
        parts.access.sender_of,
        parts.clock,
        serves_reads=lambda: settings.slave_read_enable,
        handle=handle,
    )
    registration.when_fenced(lambda reason: store.fail(StoreError(reason)))
    both = Capability(
        rows=(
            *EpochRequests(settings, epochs, lambda: positions.written).rows(),
            *RaftRequests(None).rows(),
            *MemberRequests(None).rows(),
            transfer_row(refuse_transfer),
        ),
        steps=(forwarder, step),
        keepers=(forwarder,),
        steps_skip_sends=True,
    )
    if settings.role == SLAVE:
        services, figures = build_slave(parts, epochs)
        return replace(both, services=services, figures=figures, past=PastPositions(store, None))
    refuse_first_copy(settings.store_root)
    epochs.begin(positions.written)
    remove_divergence(settings.store_root)
    history = LogHistory.begin(store.root, positions.written, parts.clock.wall_ms(), parts.rng)
    past = PastPositions(store, history)
    return replace(both, services=(_fence_file(registration, epochs),), past=past)


def _fence_file(registration: Registration, epochs: PromotionEpochs) -> RoleService:
    """Return the service that records that this master was fenced by a promotion."""

    async def save() -> None:
        if registration.is_fenced:
            try:
                await epochs.save_fence(registration.fenced_because)
            except OSError as error:
                _log.error("fence_not_saved", error=str(error))

    async def nothing() -> None: ...

    return RoleService("fence-file", frozenset({Role.FENCED}), save, nothing)


def build_slave(
    parts: BrokerParts, epochs: PromotionEpochs
) -> tuple[Sequence[RoleService], Sequence[Figure]]:
    """Build what a broker does while it is a slave."""
    registration, loop = parts.registration, parts.loop
    client, clock = parts.remoting_client, parts.clock
    sync = MetadataSync(client, clock, loop.store, copies_of(parts), lambda: ha_client.joined)

    def find_master() -> RegisterBrokerResponse:
        registration.changed()  # the response names the master that is registered now
        return registration.master

    ha_client = HaClient(
        loop.store, loop.reads, clock, client, find_master, loop.server.request_tick, sync.request,
        epochs, client.tls if parts.settings.ha_tls else None,
    )  # fmt: skip
    services = (
        _closed_gate(loop.store.gate, parts.role),
        _task(parts.supervisor, "ha-client", ha_client.run),
        _task(parts.supervisor, "metadata-sync", sync.run),
    )
    return services, _figures(ha_client, sync)


def _closed_gate(gate: SendGate, role: BrokerRole) -> RoleService:
    """Close the gate, and return the service that opens it when the slave becomes the master."""
    gate.close(REPLICATION, "a slave appends nothing: send to the master")

    async def start() -> None: ...

    async def stop() -> None:
        if role.role is Role.MASTER:
            gate.open(REPLICATION)

    return RoleService("closed-gate", frozenset({Role.SLAVE}), start, stop)


def _task(supervisor: Supervisor, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> RoleService:
    tasks: list[asyncio.Task[None]] = []

    async def start() -> None:
        tasks.append(supervisor.start(name, run))

    async def stop() -> None:
        task = tasks.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return RoleService(name, frozenset({Role.SLAVE}), start, stop)


def _figures(ha_client: HaClient, sync: MetadataSync) -> Sequence[Figure]:
    return (
        Figure("replication_state", Kind.TEXT, "", lambda: ha_client.state, "Whether the slave follows."),
        Figure("missing_tables", Kind.TEXT, "", lambda: sync.missing, "Tables of the master to be copied."),
        Figure("master_address", Kind.TEXT, "", lambda: ha_client.master, "Master that the slave follows."),
        Figure(
            "replication_bytes_received", Kind.COUNTER, "bytes", lambda: ha_client.bytes_received,
            "Bytes received from masters.", metric="raymq_replication_received_bytes_total",
        ),
    )  # fmt: skip
