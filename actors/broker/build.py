"""Builds one broker: creates all objects and passes each its dependencies.

    store → loop (server, turns, reads) → tables → groups → sending, reading, admin → request table

If two objects need each other, the first one gets a function that uses the second one when it is called.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from actors.broker.admin.broker_info import BrokerInfo
from actors.broker.admin.cleaning import Cleaning
from actors.broker.admin.client_admin import ClientAdmin
from actors.broker.admin.group_admin import GroupAdmin
from actors.broker.admin.offset_admin import OffsetAdmin
from actors.broker.admin.progress_requests import ProgressRequests
from actors.broker.admin.queue_removal import QueueRemoval
from actors.broker.admin.replica_requests import ReplicaRequests
from actors.broker.admin.runtime_info import RuntimeInfo, delay_figures, lag_figures, send_figures
from actors.broker.admin.topic_admin import TopicAdmin
from actors.broker.admission import Admission
from actors.broker.auth.access import BrokerAccess, build_access
from actors.broker.auth.access_requests import AccessRequests
from actors.broker.broker_settings import BrokerSettings
from actors.broker.broker_settings_text import as_properties, by_field
from actors.broker.compat.new_topics import NewTopics
from actors.broker.drain import BrokerDrain
from actors.broker.group.assignments import Assignments
from actors.broker.group.client_requests import ClientRequests
from actors.broker.group.clients import Clients
from actors.broker.group.offset_requests import OffsetRequests
from actors.broker.group.queue_locks import QueueLocks
from actors.broker.group.rebalancer_link import RebalancerLink
from actors.broker.handle_api import HandleApi
from actors.broker.identity import BrokerIdentity
from actors.broker.loop.flusher import Flusher
from actors.broker.loop.off_loop import OffLoop
from actors.broker.loop.reads import Reads
from actors.broker.loop.turns import TurnLoop, Turns
from actors.broker.loop.wait_registry import WaitRegistry
from actors.broker.metadata.tables import BrokerTables
from actors.broker.reading.pull import Puller
from actors.broker.reading.queues import QueueQueries
from actors.broker.registration import Registration
from actors.broker.role import BrokerRole, Role, RoleService, periodic
from actors.broker.sending.acks import Acks
from actors.broker.sending.bulk_send import BulkSender
from actors.broker.sending.delays import Delays
from actors.broker.sending.interceptors import DeadLetters, SendInterceptor
from actors.broker.sending.replies import Replies
from actors.broker.sending.responses import SendResponses
from actors.broker.sending.send import Sender
from actors.broker.sending.send_back import SendBack
from actors.broker.sending.stored_properties import PropertyWriter
from actors.broker.sending.targets import SendTargets
from actors.broker.stats import BrokerStats
from actors.broker.transactions.checks import TransactionChecks
from actors.broker.transactions.end_transaction import EndTransaction
from actors.broker.transactions.half_messages import HalfMessages
from actors.broker.transactions.op_messages import OpWriter
from actors.broker.transactions.transaction_log import TransactionLog
from actors.host.descriptors import connections_that_fit
from actors.host.loop_lag import LoopLag
from actors.host.settings_requests import SettingsRequests
from actors.host.supervisor import Supervisor
from actors.remoting.chain import Step
from actors.remoting.client import RemotingClient, client_for
from actors.remoting.codes import RequestCode
from actors.remoting.connection import Connection
from actors.remoting.counters import RequestCounters
from actors.remoting.headers import RegisterBrokerHeader
from actors.remoting.limits import RemotingLimits
from actors.remoting.request import RequestRow
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from actors.remoting.targets import Action, on_cluster
from store.clock import Clock
from store.live_settings import LiveSettings
from store.message.message_id import UniqKeyGenerator
from store.message_store import Arrival, MessageStore

OTHER_DESCRIPTORS = 256
DELIVERY_INTERVAL_MS = 100
TRANSACTION_PROGRESS_MS = 1000


@dataclass(frozen=True, slots=True)
class BrokerLoop:
    """The parts of a broker that its request handlers use: store, server, turns, reads and counters."""

    store: MessageStore
    requests: RequestTable
    counters: RequestCounters
    server: RemotingServer
    admission: Admission
    stats: BrokerStats
    lag: LoopLag
    held: WaitRegistry[Arrival]
    acks: Acks
    flusher: Flusher
    turns: Turns
    off_loop: OffLoop
    reads: Reads


@dataclass(frozen=True, slots=True)
class BrokerGroups:
    """The clients and consumer groups of one broker, and the handlers of their requests."""

    clients: Clients[Connection]
    locks: QueueLocks
    requests: ClientRequests
    assignments: Assignments


@dataclass(frozen=True, slots=True)
class Broker:
    """The objects of one broker. `BrokerService` starts and stops them."""

    identity: BrokerIdentity
    access: BrokerAccess
    loop: BrokerLoop
    tables: BrokerTables
    groups: BrokerGroups
    remoting_client: RemotingClient
    registration: Registration
    delays: Delays
    transactions: TransactionLog
    role: BrokerRole
    drain: BrokerDrain
    handle: HandleApi
    describe: Callable[[], dict[str, object]]


def build_broker(
    live: LiveSettings[BrokerSettings],
    clock: Clock,
    rng: random.Random,
    identity: BrokerIdentity,
    store: MessageStore,
    supervisor: Supervisor,
    interceptors: Sequence[SendInterceptor] = (),
) -> Broker:
    """Build a broker on an open store.

    Args:
        live: the settings; those marked LIVE may change while the broker runs.
        clock: for all time-outs, leases and timestamps.
        rng: source of random numbers, for the choice of queues and for unique keys.
        identity: the names and addresses that the broker registers.
        interceptors: called for each message, before the broker's own interceptors.

    Raises:
        StoreError: a metadata table and its backup are damaged, or a file with users is invalid.
    """
    settings = live.settings
    access = build_access(settings)
    loop = _build_loop(live, clock, store, access.steps)
    from_rebalancers = RequestTable()
    client = client_for(clock, access.signer, from_rebalancers)
    tables, registration, new_topics = _build_metadata(settings, clock, identity, store, client, supervisor)
    live.on_change(lambda changes: registration.changed())
    groups = _build_groups(settings, clock, client, tables, registration)
    from_rebalancers.add_rows(groups.requests.rebalancer_rows())
    delays = Delays(store, clock, tables.delay_offsets, loop.reads.load_pages)
    transactions, checks = _build_transactions(settings, clock, identity, loop, tables, groups, supervisor)
    role = BrokerRole((*checks, *_role_services(loop, registration, delays, supervisor)))
    drain = BrokerDrain(store, loop.reads, tables, groups.clients, loop.stats, clock)
    properties = PropertyWriter(settings, UniqKeyGenerator(identity.host.ip, os.getpid(), clock, rng))
    handle = HandleApi(loop.server, identity.host.packed, properties.next_uniq_key, access.signer)
    describe = partial(
        _description, settings, identity, loop, tables, role, drain, delays, transactions, supervisor
    )
    targets = SendTargets(settings, tables.topics, rng)
    responses = SendResponses(loop.acks, new_topics, properties.added_fields, identity.host.packed)
    steps = (*interceptors, DeadLetters(tables, groups.locks), HalfMessages(properties), delays)
    sender = Sender(store, targets, steps, properties, responses, loop.stats)
    for rows in (
        sender.rows(),
        BulkSender(settings, store, targets, properties.added, responses, loop.stats, clock).rows(),
        Replies(sender, groups.clients, clock, identity.address, properties.added_fields).rows(),
        SendBack(store, loop.reads, tables, delays, loop.acks, loop.stats, access.may_read).rows(),
        _transaction_rows(loop, tables, transactions, access),
        _reading_rows(settings, identity, loop, tables, groups, access),
        _group_rows(settings, loop, tables, groups),
        _admin_rows(clock, identity, loop, tables, groups, registration),
        _broker_rows(live, clock, loop, tables, groups, describe, access),
    ):
        loop.requests.add_rows(rows)
    return Broker(
        identity, access, loop, tables, groups, client, registration, delays, transactions, role, drain,
        handle, describe,
    )  # fmt: skip


def _build_loop(
    live: LiveSettings[BrokerSettings], clock: Clock, store: MessageStore, access_steps: Sequence[Step]
) -> BrokerLoop:
    settings = live.settings
    requests, counters = RequestTable(), RequestCounters()
    admission = Admission(settings, store, clock)

    def end_turn() -> None:
        turns.tick()
        admission.end_turn()

    steps: Sequence[Step] = (*access_steps, admission)
    server = RemotingServer(requests, clock, _limits(settings), end_turn, steps, (counters,))
    live.on_change(lambda _: server.hub.change_limits(max_unread_bytes=_max_unread_bytes(settings)))
    held = WaitRegistry[Arrival](clock, settings.max_held_pulls)
    stats = BrokerStats(clock)
    is_sync = settings.store.flush == "sync"
    flusher = Flusher(
        store,
        clock,
        server.request_tick,
        flushes_each_tick=is_sync,
        flush_interval_ms=settings.store.flush_interval_ms,
    )
    turns = Turns(
        store,
        flusher,
        held,
        clock,
        TurnLoop(server.request_tick, server.hub.flush, server.hub.resume),
        stats.put_times,
        settings.wait_in_pull_queue_ms,
    )
    off_loop = OffLoop(
        clock, settings.cold_read_threads, settings.pull_queue_capacity, settings.wait_in_pull_queue_ms
    )
    return BrokerLoop(
        store,
        requests,
        counters,
        server,
        admission,
        stats,
        LoopLag(clock, admission.note_lag),
        held,
        Acks(store, clock, settings.sync_flush_timeout_ms, may_wait=is_sync),
        flusher,
        turns,
        off_loop,
        Reads(store, off_loop, admission.admit_response, turns),
    )


def _build_transactions(
    settings: BrokerSettings,
    clock: Clock,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    supervisor: Supervisor,
) -> tuple[TransactionLog, Sequence[RoleService]]:
    store = loop.store
    ops = OpWriter(store, loop.acks, clock, identity.host.packed, loop.server.request_tick)
    transactions = TransactionLog(store, loop.reads, tables.topics, tables.offsets, ops)
    checks = TransactionChecks(settings, store, transactions, tables.topics, groups.clients, clock)
    master, check_ms = frozenset({Role.MASTER}), settings.transaction_check_interval_ms
    save = transactions.save_progress
    return transactions, (
        RoleService("transactions", master, transactions.load, transactions.stop),
        periodic(supervisor, "transaction-progress", master, TRANSACTION_PROGRESS_MS, save),
        periodic(supervisor, "transaction-checks", master, check_ms, checks.check),
    )


def _role_services(
    loop: BrokerLoop, registration: Registration, delays: Delays, supervisor: Supervisor
) -> Sequence[RoleService]:
    def deliver() -> None:
        delays.deliver()
        loop.server.request_tick()

    async def unregister() -> None:
        # If another process has taken over the store, it has registered under the same name.
        await registration.stop(leave_routes=not loop.store.is_superseded)

    master = frozenset({Role.MASTER})
    return (
        periodic(supervisor, "delayed-delivery", master, DELIVERY_INTERVAL_MS, deliver),
        RoleService("registration", master, registration.start, unregister),
    )


def _max_unread_bytes(settings: BrokerSettings) -> int:
    return 2 * settings.max_unread_bytes  # `Admission` refuses pulls at half of this


def _limits(settings: BrokerSettings) -> RemotingLimits:
    return RemotingLimits(
        busy_poll_us=settings.busy_poll_us,
        max_unread_bytes=_max_unread_bytes(settings),
        unread_ms=settings.unread_timeout_ms,
        idle_ms=settings.idle_timeout_ms,
        max_connections=connections_that_fit(
            settings.max_connections, 2 * settings.store.max_open_files + OTHER_DESCRIPTORS
        ),
    )


def _build_metadata(
    settings: BrokerSettings,
    clock: Clock,
    identity: BrokerIdentity,
    store: MessageStore,
    client: RemotingClient,
    supervisor: Supervisor,
) -> tuple[BrokerTables, Registration, NewTopics]:
    new_topics = NewTopics(lambda call: registration.when_registered(call))
    tables = BrokerTables(settings, store, clock, lambda: registration.changed(), new_topics.add)
    registration = Registration(
        client,
        settings.nameservers,
        settings.register_interval_ms,
        RegisterBrokerHeader(identity.name, identity.address, identity.cluster, identity.broker_id).to_ext(),
        tables.register_body,
        tables.topics.mark_ordered,
        supervisor,
    )
    tables.adopt_queues(store)
    return tables, registration, new_topics


def _build_groups(
    settings: BrokerSettings,
    clock: Clock,
    client: RemotingClient,
    tables: BrokerTables,
    registration: Registration,
) -> BrokerGroups:
    clients: Clients[Connection] = Clients(clock, settings.client_expiry_ms)
    rebalancers = RebalancerLink(
        client, settings.rebalancers, settings.broker_name, settings.rebalancer_timeout_ms, clock
    )
    requests = ClientRequests(
        settings.broker_name, clients, tables, rebalancers, registration.when_registered
    )
    assignments = Assignments(client, settings.nameservers, requests.find_members)
    return BrokerGroups(clients, QueueLocks(clock), requests, assignments)


def _reading_rows(
    settings: BrokerSettings,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    access: BrokerAccess,
) -> Iterable[RequestRow]:
    store, reads = loop.store, loop.reads
    queries = QueueQueries(settings, store, reads, tables.topics, identity.address, access.may_read)
    puller = Puller(settings, store, reads, tables, groups.clients, loop.held, loop.stats)
    return (*puller.rows(), *queries.rows())


def _transaction_rows(
    loop: BrokerLoop, tables: BrokerTables, transactions: TransactionLog, access: BrokerAccess
) -> Iterable[RequestRow]:
    store, reads, topics = loop.store, loop.reads, tables.topics
    return EndTransaction(store, reads, transactions, topics, loop.acks, loop.stats, access.may_send).rows()


def _group_rows(
    settings: BrokerSettings, loop: BrokerLoop, tables: BrokerTables, groups: BrokerGroups
) -> Iterable[RequestRow]:
    return (
        *groups.requests.rows(),
        *groups.assignments.rows(),
        *groups.locks.rows(),
        *OffsetRequests(settings, loop.store, loop.reads, tables).rows(),
        *tables.request_modes.rows(),
    )


def _admin_rows(
    clock: Clock,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    registration: Registration,
) -> Iterable[RequestRow]:
    store, reads, stats, clients = loop.store, loop.reads, loop.stats, groups.clients
    wake = loop.turns.wake
    removal = QueueRemoval(store, reads, tables.topics, loop.server.request_tick)
    return (
        *TopicAdmin(tables, stats, removal.remove, wake, registration.when_registered).rows(),
        *GroupAdmin(tables, stats).rows(),
        *Cleaning(store, tables, removal.remove).rows(),
        *OffsetAdmin(identity.name, store, reads, tables, clients, wake).rows(),
        *ProgressRequests(identity, store, reads, tables, clients, stats, clock).rows(),
        *ClientAdmin(identity.name, clients, store, reads, clock).rows(),
        *ReplicaRequests(store, tables).rows(),
    )


def _broker_rows(
    live: LiveSettings[BrokerSettings],
    clock: Clock,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    describe: Callable[[], dict[str, object]],
    access: BrokerAccess,
) -> Iterable[RequestRow]:
    settings, store, reads, stats = live.settings, loop.store, loop.reads, loop.stats
    config = SettingsRequests(live, as_properties, by_field, clock)
    figures = (
        partial(lag_figures, loop.lag),
        partial(delay_figures, tables.delay_offsets, store),
        partial(send_figures, loop.requests, loop.counters),
    )
    get, update = on_cluster(Action.GET), on_cluster(Action.UPDATE)
    return (
        *AccessRequests(access.control).rows(),
        *RuntimeInfo(settings, store, reads, loop.held, stats, figures).rows(),
        *BrokerInfo(settings.cluster_name, store, reads, groups.clients, stats, describe).rows(),
        RequestRow(RequestCode.GET_BROKER_CONFIG, config.get, None, get),
        RequestRow(RequestCode.UPDATE_BROKER_CONFIG, config.update, None, update),
    )


def _description(
    settings: BrokerSettings,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    role: BrokerRole,
    drain: BrokerDrain,
    delays: Delays,
    transactions: TransactionLog,
    supervisor: Supervisor,
) -> dict[str, object]:
    """Return the fields of DESCRIBE_BROKER."""
    store, positions = loop.store, loop.store.positions
    return {
        "cluster": identity.cluster,
        "broker": identity.name,
        "broker_id": identity.broker_id,
        "replica": settings.replica,
        "address": identity.address,
        "pid": os.getpid(),
        "flush": settings.store.flush,
        "store_root": str(settings.store_root.resolve()),
        "store_id": store.identity.store_id,
        "epoch": store.epoch,
        "min_position": positions.min,
        "written": positions.written,
        "flushed": positions.flushed,
        "confirmed": positions.confirmed,
        "dispatched": positions.dispatched,
        "write_refusal": store.write_refusal or "",
        "role": str(role.role),
        "drain_state": str(drain.state),
        "topics": len(tables.topics.table.topics),
        "groups": len(tables.groups.table.groups),
        "connections": len(loop.server.connections),
        "held_pulls": len(loop.held),
        "sends_waiting": positions.waiting,
        "messages_in": loop.stats.put_total.messages,
        "messages_out": loop.stats.got_total.messages,
        "flushes": loop.flusher.flushes,
        "longest_flush_us": loop.flusher.longest_flush_ns // 1000,
        "unread_bytes": loop.server.hub.unread_bytes,
        "cold_reads": loop.reads.cold,
        "log_holes": len(store.holes),
        "messages_skipped": store.skipped,
        "delayed_messages_skipped": delays.skipped,
        "open_transactions": transactions.open_count,
        "requests_refused": loop.admission.refused,
        "background_task_failures": supervisor.failures,
        **loop.lag.figures(),
    }
