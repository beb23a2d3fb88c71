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
from itertools import chain

from actors.broker.admin.broker_figures import broker_figures, delay_figures
from actors.broker.admin.broker_info import BrokerInfo
from actors.broker.admin.cleaning import Cleaning
from actors.broker.admin.client_admin import ClientAdmin
from actors.broker.admin.group_admin import GroupAdmin
from actors.broker.admin.offset_admin import OffsetAdmin
from actors.broker.admin.progress_requests import ProgressRequests
from actors.broker.admin.queue_file_requests import QueueFileRequests
from actors.broker.admin.queue_removal import QueueRemoval
from actors.broker.admin.replica_requests import ReplicaRequests
from actors.broker.admin.retry_state import build_retry_state
from actors.broker.admin.topic_admin import TopicAdmin
from actors.broker.auth.access import BrokerAccess, build_access
from actors.broker.auth.access_requests import AccessRequests
from actors.broker.broker_settings import SLAVE, BrokerSettings, broker_id_of
from actors.broker.broker_settings_text import as_properties, by_field
from actors.broker.build_loop import BrokerLoop, build_loop
from actors.broker.capability import Capability
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
from actors.broker.metadata.tables import BrokerTables
from actors.broker.metadata.topics import has_records_of_all
from actors.broker.metrics.build import build_metrics
from actors.broker.reading.pull import Puller
from actors.broker.reading.queue_ends import QueueEnds
from actors.broker.reading.queue_reader import QueueReader
from actors.broker.reading.queues import QueueQueries
from actors.broker.registration import Registration
from actors.broker.replication.slave_requests import SlaveRequests
from actors.broker.role import BrokerRole, Role, RoleService, periodic
from actors.broker.sending.bulk_send import BulkSender
from actors.broker.sending.delays import Delays
from actors.broker.sending.interceptors import DeadLetters, SendInterceptor
from actors.broker.sending.outstanding_requests import OtherBrokers, OutstandingRequests
from actors.broker.sending.plain_sends import PlainSends
from actors.broker.sending.replies import Replies
from actors.broker.sending.responses import SendResponses
from actors.broker.sending.send import Sender
from actors.broker.sending.send_back import SendBack
from actors.broker.sending.stored_properties import PropertyWriter
from actors.broker.sending.targets import SendTargets
from actors.broker.timer.build import build_timer
from actors.broker.transactions.build import build_transactions
from actors.broker.transactions.transaction_log import TransactionLog
from actors.host.cluster_tls import client_tls
from actors.host.figures import Figure
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.host.settings_requests import SettingsRequests
from actors.remoting.chain import Step
from actors.remoting.client import RemotingClient, client_for
from actors.remoting.clients.nameservers import Nameservers
from actors.remoting.codes import RequestCode
from actors.remoting.connection import Connection
from actors.remoting.headers import RegisterBrokerHeader
from actors.remoting.request import OnSlave, RequestRow, UserOf
from actors.remoting.table import RequestTable
from actors.remoting.targets import Action, on_cluster
from actors.supervisor import Supervisor
from store.clock import Clock
from store.live_settings import Difference, LiveSettings
from store.message.message_id import UniqKeyGenerator
from store.message.message_queue import MessageQueue
from store.message_store import MessageStore

DELIVERY_INTERVAL_MS = 100
ROUTE_TIMEOUT_MS = 3_000
"""Limit of one route request to a nameserver."""


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
    figures: Sequence[Figure]
    metrics: MetricsEndpoint


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
        StoreError: a metadata table and its backup, a file of users or a certificate is invalid.
    """
    settings = live.settings
    access = build_access(settings, clock, partial(has_records_of_all, cluster_name=settings.cluster_name))
    requests = OutstandingRequests(clock, access.user_of, is_enforced=access.control is not None)
    of_slave = _slave_steps(settings, lambda: role.role, lambda: registration.master.master_addr)
    loop = build_loop(live, clock, store, (*access.steps, *of_slave, *requests.steps))
    from_rebalancers = RequestTable()
    client = client_for(clock, access.signer, client_tls(settings), from_rebalancers)
    tables, registration, new_topics = _build_metadata(live, clock, identity, store, client, supervisor)
    groups = _build_groups(settings, clock, client, tables, registration, access.user_of)
    from_rebalancers.add_rows(groups.requests.rebalancer_rows())
    delays = Delays(store, clock, tables.delay_offsets, tables.topics, loop.reads.load_pages)
    properties = PropertyWriter(settings, UniqKeyGenerator(identity.host.ip, os.getpid(), clock, rng))
    transactions, transaction_parts = build_transactions(
        settings, clock, identity, loop, tables, groups.clients, properties, access, supervisor
    )
    timer = build_timer(settings, clock, loop, tables, properties, supervisor)
    reports = _reports(settings, clock, loop, tables, groups, delays)
    capabilities = (transaction_parts, timer, *reports)
    role = BrokerRole(_role_services(settings, loop, registration, delays, capabilities, supervisor))
    drain = BrokerDrain(store, loop.reads, tables, groups.clients, loop.stats, clock)
    handle = HandleApi(loop.server, identity.host.packed, properties.next_uniq_key, access.steps, clock)
    own_figures = broker_figures(settings, identity, loop, tables, role, drain, supervisor)
    figures = (*own_figures, *chain.from_iterable(each.figures for each in capabilities))
    replies = _replies(settings, clock, identity, client, groups, properties, requests)
    steps = (*interceptors, DeadLetters(tables, groups.locks, loop.stats), *_redirects(capabilities), delays)
    for rows in (
        _sending_rows(live, clock, rng, identity, loop, tables, new_topics, steps, properties, replies, role),
        SendBack(store, loop.reads, tables, delays, loop.acks, loop.stats, access.may_read).rows(),
        *(each.rows for each in capabilities),
        _reading_rows(settings, identity, loop, tables, groups, access),
        _group_rows(settings, loop, tables, groups),
        _admin_rows(clock, identity, loop, tables, groups, registration, access),
        _broker_rows(live, clock, loop, tables, groups, figures, access),
    ):
        loop.requests.add_rows(rows)
    return Broker(
        identity, access, loop, tables, groups, client, registration, delays, transactions, role, drain,
        handle, figures, MetricsEndpoint(settings, figures, identity.labels),
    )  # fmt: skip


def _reports(
    settings: BrokerSettings,
    clock: Clock,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    delays: Delays,
) -> Sequence[Capability]:
    """Return the capabilities that only add figures."""
    return (
        Capability(figures=delay_figures(delays, tables, loop.store)),
        build_retry_state(tables, loop.store, loop.stats),
        build_metrics(settings, clock, loop, tables, groups.clients),
    )


def _slave_steps(
    settings: BrokerSettings, role: Callable[[], Role], master: Callable[[], str | None]
) -> Sequence[Step]:
    # A broker that starts as a master has no step on its hot path.
    return (SlaveRequests(settings, role, master),) if settings.role == SLAVE else ()


def _apply_changes(tables: BrokerTables, changes: Sequence[Difference]) -> None:
    """Apply changed settings that are not read at their use."""
    names = {each.name for each in changes}
    if "permission" in names:
        tables.topics.register_again()
    if names & {"auto_create_topics", "default_topic_queues"}:
        tables.topics.update_default_topic()


def _redirects(capabilities: Sequence[Capability]) -> Iterable[SendInterceptor]:
    return chain.from_iterable(each.interceptors for each in capabilities)


def _role_services(
    settings: BrokerSettings,
    loop: BrokerLoop,
    registration: Registration,
    delays: Delays,
    capabilities: Sequence[Capability],
    supervisor: Supervisor,
) -> Sequence[RoleService]:
    def deliver() -> None:
        delays.deliver()
        loop.server.request_tick()

    async def unregister() -> None:
        # If another process has taken over the store, it has registered under the same name.
        await registration.stop(leave_routes=not loop.store.is_superseded)

    def registers_as(role: Role) -> RoleService:
        # One for each role: a change of role unregisters the former id and registers the new one.
        broker_id = broker_id_of(role, settings.replica)
        return RoleService(
            "registration", frozenset({role}), partial(registration.start, broker_id), unregister
        )

    master = frozenset({Role.MASTER})
    return (
        *chain.from_iterable(each.services for each in capabilities),
        periodic(supervisor, "delayed-delivery", master, DELIVERY_INTERVAL_MS, deliver),
        *map(registers_as, (Role.MASTER, Role.SLAVE)),
    )


def _build_metadata(
    live: LiveSettings[BrokerSettings],
    clock: Clock,
    identity: BrokerIdentity,
    store: MessageStore,
    client: RemotingClient,
    supervisor: Supervisor,
) -> tuple[BrokerTables, Registration, NewTopics]:
    def header(broker_id: int) -> RegisterBrokerHeader:
        return RegisterBrokerHeader(identity.name, identity.address, identity.cluster, broker_id)

    settings = live.settings
    new_topics = NewTopics(lambda call: registration.when_registered(call))
    tables = BrokerTables(settings, store, clock, lambda: registration.changed(), new_topics.add)
    registration = Registration(
        client,
        settings.nameservers,
        settings.register_interval_ms,
        header,
        tables.register_body,
        tables.topics.mark_ordered,
        supervisor,
    )
    tables.adopt_queues(store)
    live.on_change(partial(_apply_changes, tables))
    return tables, registration, new_topics


def _build_groups(
    settings: BrokerSettings,
    clock: Clock,
    client: RemotingClient,
    tables: BrokerTables,
    registration: Registration,
    user_of: UserOf,
) -> BrokerGroups:
    clients: Clients[Connection] = Clients(clock, settings.client_expiry_ms)
    rebalancers = RebalancerLink(
        client, settings.rebalancers, settings.broker_name, settings.rebalancer_timeout_ms, clock
    )
    requests = ClientRequests(
        settings.broker_name, clients, tables, rebalancers, registration.when_registered, user_of
    )
    assignments = Assignments(_nameservers(settings, client), requests.find_members)

    def is_known(group: str, queue: MessageQueue) -> bool:
        return group in tables.groups.table.groups and tables.topics.has_queue(queue)

    return BrokerGroups(clients, QueueLocks(clock, user_of, is_known), requests, assignments)


def _nameservers(settings: BrokerSettings, client: RemotingClient) -> Nameservers:
    return Nameservers(client, lambda: settings.nameservers, ROUTE_TIMEOUT_MS)


def _replies(
    settings: BrokerSettings,
    clock: Clock,
    identity: BrokerIdentity,
    client: RemotingClient,
    groups: BrokerGroups,
    properties: PropertyWriter,
    requests: OutstandingRequests,
) -> Callable[[Sender], Replies]:
    return partial(
        Replies,
        clients=groups.clients,
        clock=clock,
        address=identity.address,
        added_fields=properties.added_fields,
        requests=requests,
        others=OtherBrokers(client, _nameservers(settings, client), identity.address),
    )


def _sending_rows(
    live: LiveSettings[BrokerSettings],
    clock: Clock,
    rng: random.Random,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    new_topics: NewTopics,
    steps: Sequence[SendInterceptor],
    properties: PropertyWriter,
    replies: Callable[[Sender], Replies],
    role: BrokerRole,
) -> Iterable[RequestRow]:
    settings, store, stats = live.settings, loop.store, loop.stats
    targets = SendTargets(settings, tables.topics, rng)
    responses = SendResponses(loop.acks, new_topics, properties.added_fields, identity.host.packed)
    plain = None
    if PlainSends.may_be_used(settings, identity, steps):
        names = (
            *properties.property_names,
            *chain.from_iterable(each.property_names or () for each in steps),
        )
        plain = PlainSends(
            store, tables.topics, loop.admission, responses, loop.acks, stats, loop.counters, clock,
            properties.added, names, lambda: role.role,
        )  # fmt: skip
    sender = Sender(store, targets, steps, properties, responses, stats, plain)
    bulk = BulkSender(settings, store, targets, properties.added, responses, stats, clock)
    return (*sender.rows(), *bulk.rows(), *replies(sender).rows())


def _reading_rows(
    settings: BrokerSettings,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    access: BrokerAccess,
) -> Iterable[RequestRow]:
    store, reads = loop.store, loop.reads
    queries = QueueQueries(settings, store, reads, tables.topics, identity, access.may_read)
    reader = QueueReader(store, reads, tables, groups.clients, loop.stats)
    puller = Puller(settings, reader, reads, QueueEnds(store), tables.offsets, groups.clients, loop.held)
    return (*puller.rows(), *queries.rows())


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
    access: BrokerAccess,
) -> Iterable[RequestRow]:
    store, reads, stats, clients = loop.store, loop.reads, loop.stats, groups.clients
    wake = loop.turns.wake
    removal = QueueRemoval(store, reads, tables.topics, loop.server.request_tick)
    return (
        *TopicAdmin(tables, stats, removal.remove, wake, registration.when_registered).rows(),
        *GroupAdmin(tables, stats).rows(),
        *Cleaning(store, tables, removal.remove).rows(),
        *OffsetAdmin(identity.name, store, reads, tables, clients, wake, access.may_read).rows(),
        *ProgressRequests(identity, loop, tables, clients, clock, access.permits).rows(),
        *ClientAdmin(identity.name, clients, store, reads, clock, access.may_read, access.permits).rows(),
        *ReplicaRequests(store, tables).rows(),
        *QueueFileRequests(store).rows(),
    )


def _broker_rows(
    live: LiveSettings[BrokerSettings],
    clock: Clock,
    loop: BrokerLoop,
    tables: BrokerTables,
    groups: BrokerGroups,
    figures: Sequence[Figure],
    access: BrokerAccess,
) -> Iterable[RequestRow]:
    settings = live.settings
    config = SettingsRequests(live, as_properties, by_field, clock)
    get, update = on_cluster(Action.GET), on_cluster(Action.UPDATE)
    return (
        *AccessRequests(access.control).rows(),
        *BrokerInfo(
            settings.cluster_name, loop.store, loop.reads, groups.clients, loop.stats, figures
        ).rows(),
        RequestRow(RequestCode.GET_BROKER_CONFIG, config.get, None, get, on_slave=OnSlave.SERVED),
        RequestRow(RequestCode.UPDATE_BROKER_CONFIG, config.update, None, update, on_slave=OnSlave.SERVED),
    )
