"""Builds one broker: creates all objects and passes each its dependencies.

    store → loop (server, reads) → tables → groups → features → sending, reading, admin → request table

If two objects need each other, the first one gets a function that uses the second one when it is called.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from actors.bounds import Keeper
from actors.broker.admin.broker_figures import broker_figures
from actors.broker.admin.broker_info import BrokerInfo
from actors.broker.admin.cleaning import Cleaning
from actors.broker.admin.client_admin import ClientAdmin
from actors.broker.admin.drain_requests import DrainRequests
from actors.broker.admin.group_admin import GroupAdminRequests
from actors.broker.admin.offset_admin import OffsetAdminRequests
from actors.broker.admin.progress_requests import ProgressRequests
from actors.broker.admin.queue_file_requests import QueueFileRequests
from actors.broker.admin.replica_requests import ReplicaRequests
from actors.broker.admin.restart_requests import Restart, RestartRequests
from actors.broker.admin.topic_admin import TopicAdmin
from actors.broker.broker_settings import BrokerSettings, broker_id_of, raft_member
from actors.broker.broker_settings_text import as_properties, by_field
from actors.broker.build_loop import BrokerLoop, build_loop
from actors.broker.core.auth.access_requests import AccessRequests
from actors.broker.core.auth.build_access import BrokerAccess, build_access
from actors.broker.core.capability import Capability, Feature
from actors.broker.core.compat.new_topics import NewTopics
from actors.broker.core.drain import BrokerDrain
from actors.broker.core.group.assignments import Assignments
from actors.broker.core.group.client_requests import ClientRequests
from actors.broker.core.group.clients import Clients
from actors.broker.core.group.group_progress import GroupProgress
from actors.broker.core.group.offset_requests import OffsetRequests
from actors.broker.core.group.popping_groups import PoppingGroups
from actors.broker.core.group.queue_locks import LockFile, QueueLocks
from actors.broker.core.group.rebalancer_link import RebalancerLink
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.loop.log_history import PastPositions
from actors.broker.core.loop.queue_removal import QueueRemoval
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metadata.topics import has_records_of_all
from actors.broker.core.parts import BrokerGroups, BrokerParts
from actors.broker.core.reading.pull import Puller
from actors.broker.core.reading.queue_ends import EndResponses
from actors.broker.core.reading.queue_reader import QueueReader
from actors.broker.core.reading.queues import QueueQueries
from actors.broker.core.reading.replica_choice import ReplicaChoice
from actors.broker.core.registration import Registration
from actors.broker.core.role import BrokerRole, Role, RoleService
from actors.broker.core.sending.bulk_send import BulkSender
from actors.broker.core.sending.gate_check import with_gate_check
from actors.broker.core.sending.outstanding_requests import OtherBrokers, OutstandingRequests
from actors.broker.core.sending.plain_sends import PlainSends
from actors.broker.core.sending.replies import Replies
from actors.broker.core.sending.responses import SendResponses
from actors.broker.core.sending.send import Sender
from actors.broker.core.sending.send_checks import SendChecks
from actors.broker.core.sending.stored_properties import PropertyWriter
from actors.broker.core.table_spec import TableSpec
from actors.broker.handle_api import HandleApi
from actors.broker.replication.tables.table_specs import TABLES, versions_of
from actors.host.cluster_access import PROVE_ROW, cluster_client
from actors.host.figures import Figure
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.host.settings_requests import SettingsRequests
from actors.supervisor import Supervisor
from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers
from actors.transport.connection import Connection
from actors.transport.request import OnSlave, RequestRow, UserOf
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode
from actors.wire.headers import RegisterBrokerHeader
from actors.wire.targets import Action, on_cluster
from store.common.clock import Clock
from store.common.live_settings import Difference, LiveSettings
from store.message.message_id import UniqKeyGenerator
from store.message.message_queue import MessageQueue
from store.message_store import MessageStore

FOLLOWER_REGISTERS_MS = 1_000
"""Time after which a former leader of a Raft group registers as a follower, if it does not lead again."""
ROUTE_TIMEOUT_MS = 3_000
"""Limit of one route request to a nameserver."""


@dataclass(frozen=True, slots=True)
class BuiltBroker:
    """The objects of one broker. `BrokerService` starts and stops them."""

    identity: BrokerIdentity
    access: BrokerAccess
    loop: BrokerLoop
    tables: BrokerTables
    groups: BrokerGroups
    remoting_client: RemotingClient
    leave: Sequence[Callable[[], Awaitable[None]]]
    """Awaited in turn when the broker is being stopped, while it still serves all requests."""
    registration: Registration
    role: BrokerRole
    is_elected: bool
    """True if the replicas of the broker elect their master."""
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
    features: Sequence[Feature],
    restart: Restart | None,
) -> BuiltBroker:
    """Build a broker on an open store.

    Args:
        live: the settings; those marked LIVE may change while the broker runs.
        clock: for all time-outs, leases and timestamps.
        rng: source of random numbers, for the choice of queues and for unique keys.
        identity: the names and addresses that the broker registers.
        features: what is added to the broker; their interceptors are called in this order.
        restart: restarts the broker; None if nothing would start it again.

    Raises:
        StoreError: a metadata table and its backup, a file of users or a certificate is invalid.
        ValueError: two features handle the same request code, or declare the same figure.
    """
    settings, access = live.settings, _build_access(live.settings, clock, identity)
    requests = OutstandingRequests(clock, access.user_of, is_enforced=access.control is not None)
    loop = build_loop(live, clock, store, (*access.steps, *requests.steps))
    from_rebalancers, role = RequestTable(), BrokerRole(is_end_known=lambda: store.positions.is_end_known)
    client = cluster_client(settings, access.signer, clock, settings.nameservers, from_rebalancers)
    tables, registration, new_topics = _build_metadata(live, clock, identity, store, client, role, supervisor)
    groups = _build_groups(settings, clock, store, client, tables, registration, access.user_of)
    from_rebalancers.add_rows(groups.requests.rebalancer_rows())
    properties = PropertyWriter(settings, UniqKeyGenerator(identity.host.ip, os.getpid(), clock, rng))
    popping = PoppingGroups(settings, clock)
    reader = QueueReader(store, loop.reads, tables, groups.clients, loop.stats, popping)
    drain = BrokerDrain(store, loop.reads, tables, groups.clients, groups.progress, loop.stats, clock)
    parts = BrokerParts(
        live, clock, rng, identity, access, loop, tables, _specs(tables, features), groups, drain, popping,
        reader, properties, role, registration, client, supervisor,
    )  # fmt: skip
    capabilities = [feature.build(parts) for feature in features]
    _add_capabilities(parts, capabilities)
    past = next(each.past for each in capabilities if each.past)
    handle = HandleApi(loop.server, identity.host.packed, properties.next_uniq_key, access.steps, role, clock)
    figures, puller = _figures(parts, drain, capabilities), _puller(parts, past)
    sending_rows, plain = _sending(parts, new_topics, capabilities, _replies(parts, requests))
    for rows in (
        sending_rows,
        _feature_rows(features, capabilities),
        _reading_rows(parts, puller, past),
        _group_rows(parts, past),
        _admin_rows(parts, capabilities),
        _broker_rows(parts, figures, restart, drain),
    ):
        loop.requests.add_rows(with_gate_check(row, store.gate) for row in rows)
    return BuiltBroker(
        identity, access, loop, tables, groups, client, [each.leave for each in capabilities if each.leave],
        registration, role, any(each.is_elected for each in capabilities), drain, handle, figures,
        _metrics(parts, figures, (requests, puller, *plain), capabilities),
    )  # fmt: skip


def _specs(tables: BrokerTables, features: Sequence[Feature]) -> Mapping[str, TableSpec]:
    """Return all replicated tables by name, after loading those of features.

    Raises ValueError if two have one name, and StoreError if a file is damaged.
    """
    specs = dict(TABLES)
    for table in chain.from_iterable(each.tables for each in features):
        if table.spec.name in specs:
            raise ValueError(f"table {table.spec.name} is declared twice: each needs its own name")
        table.keep_in(tables.files)
        specs[table.spec.name] = table.spec
    return specs


def _feature_rows(features: Sequence[Feature], capabilities: Sequence[Capability]) -> Iterable[RequestRow]:
    tables = chain.from_iterable(each.tables for each in features)
    return (*(table.row for table in tables), *chain.from_iterable(each.rows for each in capabilities))


def _build_access(settings: BrokerSettings, clock: Clock, identity: BrokerIdentity) -> BrokerAccess:
    own = [raft_member(each)[1] for each in settings.raft_members[settings.replica : settings.replica + 1]]
    needs_name = partial(has_records_of_all, cluster_name=settings.cluster_name)
    return build_access(settings, clock, (identity.address, *own), needs_name)


def _apply_changes(tables: BrokerTables, changes: Sequence[Difference]) -> None:
    """Apply changed settings that are not read at their use."""
    names = {each.name for each in changes}
    if "permission" in names:
        tables.topics.register_again()
    if names & {"auto_create_topics", "default_topic_queues"}:
        tables.topics.update_default_topic()


def _add_capabilities(parts: BrokerParts, capabilities: Sequence[Capability]) -> None:
    """Add the steps, observers and services of the features; the broker registers after all have started.

    Raises ValueError if a turn step follows one that no turn has.
    """
    registration, store, role = parts.registration, parts.loop.store, parts.role
    is_elected = any(each.is_elected for each in capabilities)

    def is_deposed() -> bool:
        return is_elected and role.role is Role.SLAVE and registration.is_master

    async def register(broker_id: int) -> None:
        await registration.start(broker_id, FOLLOWER_REGISTERS_MS if is_deposed() else 0)

    async def unregister() -> None:
        # If another process has taken over the store, it has registered under the same name. A former leader
        # stays in the routes until the next one has registered: without a master, clients would fail.
        await registration.stop(leave_routes=not (store.is_superseded or is_deposed()))

    def registers_as(each: Role) -> RoleService:
        # One for each role: a change of role unregisters the former id and registers the new one.
        start = partial(register, broker_id_of(each, parts.settings.replica))
        return RoleService("registration", frozenset({each}), start, unregister, needs_end=False)

    parts.loop.server.chain.extend(
        chain.from_iterable(each.steps for each in capabilities),
        chain.from_iterable(each.observers for each in capabilities),
    )
    for step in chain.from_iterable(each.turn_steps for each in capabilities):
        parts.loop.turn.add(step)
    parts.role.add_services(chain.from_iterable(each.services for each in capabilities))
    parts.role.add_services(map(registers_as, (Role.MASTER, Role.SLAVE)))


def _figures(parts: BrokerParts, drain: BrokerDrain, capabilities: Sequence[Capability]) -> Sequence[Figure]:
    """Return all figures of the broker. Raises ValueError if two have the same name."""
    loop, tables = parts.loop, parts.tables
    figures = (
        *broker_figures(parts.settings, parts.identity, loop, tables, parts.role, drain, parts.supervisor),
        *chain.from_iterable(each.figures for each in capabilities),
    )
    for name, count in Counter(each.name for each in figures).items():
        if count > 1:
            raise ValueError(f"figure {name} is declared {count} times: each figure needs its own name")
    return figures


def _metrics(
    parts: BrokerParts,
    figures: Sequence[Figure],
    keepers: Sequence[Keeper],
    capabilities: Sequence[Capability],
) -> MetricsEndpoint:
    """Return the endpoint that serves the figures, and the bounds of what peers can fill."""
    server, groups = parts.loop.server, parts.groups
    own: tuple[Keeper, ...] = (
        server, server.hub.account, parts.loop.held, parts.loop.stats, parts.tables, groups.clients,
        groups.locks, groups.requests, parts.popping, *keepers,
    )  # fmt: skip
    all_keepers = (*own, *chain.from_iterable(each.keepers for each in capabilities))
    return MetricsEndpoint(parts.settings, figures, parts.identity.labels, server.ports, all_keepers)


def _build_metadata(
    live: LiveSettings[BrokerSettings],
    clock: Clock,
    identity: BrokerIdentity,
    store: MessageStore,
    client: RemotingClient,
    role: BrokerRole,
    supervisor: Supervisor,
) -> tuple[BrokerTables, Registration, NewTopics]:
    def header(broker_id: int) -> RegisterBrokerHeader:
        return RegisterBrokerHeader(
            identity.name, identity.address, identity.cluster, broker_id, identity.ha_address
        )

    settings = live.settings
    new_topics = NewTopics(lambda call: registration.when_registered(call))
    tables = BrokerTables(
        settings, store, clock, lambda topic: registration.changed(topic), new_topics.add,
        lambda: role.state_version,
    )  # fmt: skip
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
    store: MessageStore,
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
    assignments = Assignments(_nameservers(settings, client), requests.find_members, tables.request_modes)

    def is_known(group: str, queue: MessageQueue) -> bool:
        return group in tables.groups.table.groups and tables.topics.has_queue(queue)

    locks = QueueLocks(clock, user_of, is_known)
    locks.replace_all(LockFile(settings.store_root, clock).load())
    progress = GroupProgress(settings, store, tables, clients)
    return BrokerGroups(clients, progress, locks, requests, assignments)


def _nameservers(settings: BrokerSettings, client: RemotingClient) -> Nameservers:
    return Nameservers(client, lambda: settings.nameservers, ROUTE_TIMEOUT_MS)


def _replies(parts: BrokerParts, requests: OutstandingRequests) -> Callable[[Sender], Replies]:
    client, address = parts.remoting_client, parts.identity.address
    return partial(
        Replies,
        clients=parts.groups.clients,
        clock=parts.clock,
        address=address,
        added_fields=parts.properties.added_fields,
        requests=requests,
        others=OtherBrokers(client, _nameservers(parts.settings, client), address),
    )


def _sending(
    parts: BrokerParts,
    new_topics: NewTopics,
    capabilities: Sequence[Capability],
    replies: Callable[[Sender], Replies],
) -> tuple[Iterable[RequestRow], Sequence[PlainSends]]:
    """Return the requests that send, and the compiled path, if it may be used."""
    settings, loop, properties = parts.settings, parts.loop, parts.properties
    store, stats = loop.store, loop.stats
    interceptors = tuple(chain.from_iterable(each.interceptors for each in capabilities))
    checks = SendChecks(settings, parts.tables.topics, parts.rng)
    responses = SendResponses(loop.acks, new_topics, properties.added_fields, parts.identity.host.packed)
    plain = None
    needs_all = any(each.needs_all_sends for each in capabilities)
    if not needs_all and PlainSends.may_be_used(settings, parts.identity, interceptors):
        names = (
            *properties.property_names,
            *chain.from_iterable(each.property_names or () for each in interceptors),
        )
        lite = next((each.lite for each in capabilities if each.lite is not None), None)
        plain = PlainSends(
            store, parts.tables.topics, loop.admission, responses, loop.acks, stats, loop.counters,
            parts.clock, properties.added, names, lite,
        )  # fmt: skip
    sender = Sender(store, checks, interceptors, properties, responses, stats, plain)
    bulk = BulkSender(settings, store, checks, properties.added, responses, stats, parts.clock)
    return (*sender.rows(), *bulk.rows(), *replies(sender).rows()), () if plain is None else (plain,)


def _puller(parts: BrokerParts, past: PastPositions) -> Puller:
    settings, loop, tables, clients = parts.settings, parts.loop, parts.tables, parts.groups.clients
    ends = EndResponses(loop.store)
    replicas = ReplicaChoice(settings, loop.store, tables.groups, lambda: parts.role.role)
    return Puller(
        settings, parts.reader, loop.reads, ends, tables.offsets, clients, loop.held, replicas, past
    )


def _reading_rows(parts: BrokerParts, puller: Puller, past: PastPositions) -> Iterable[RequestRow]:
    settings, loop, topics, may_read = parts.settings, parts.loop, parts.tables.topics, parts.access.may_read
    queries = QueueQueries(settings, loop.store, loop.reads, topics, parts.identity, may_read, past)
    return (*puller.rows(), *queries.rows())


def _group_rows(parts: BrokerParts, past: PastPositions) -> Iterable[RequestRow]:
    groups, loop = parts.groups, parts.loop
    return (
        *groups.requests.rows(),
        *groups.assignments.rows(),
        *groups.locks.rows(),
        *OffsetRequests(parts.settings, loop.store, loop.reads, parts.tables, groups.progress, past).rows(),
        *parts.tables.request_modes.rows(),
    )


def _admin_rows(parts: BrokerParts, capabilities: Sequence[Capability]) -> Iterable[RequestRow]:
    clock, identity, loop, tables = parts.clock, parts.identity, parts.loop, parts.tables
    store, reads, stats, clients = loop.store, loop.reads, loop.stats, parts.groups.clients
    wake, may_read, permits = loop.end_of_turn.wake, parts.access.may_read, parts.access.permits
    forget = next((each.forget_topic for each in capabilities if each.forget_topic), None)
    removal = QueueRemoval(
        store, reads, tables.topics, loop.server.request_tick, forget or store.forget_topic
    )
    return (
        *TopicAdmin(tables, stats, removal.remove, wake, parts.registration.when_registered).rows(),
        *GroupAdminRequests(tables, stats).rows(),
        *Cleaning(
            store,
            tables,
            removal.remove,
            reads.caught_up,
            lambda: parts.role.role,
            keeps_queues=forget is not None,
        ).rows(),
        *OffsetAdminRequests(identity.name, store, reads, tables, clients, wake, may_read).rows(),
        *ProgressRequests(identity, loop, tables, parts.groups, clock, permits).rows(),
        *ClientAdmin(identity.name, clients, store, reads, clock, may_read, permits).rows(),
        *ReplicaRequests(store, tables, partial(versions_of, parts)).rows(),
        *QueueFileRequests(store).rows(),
    )


def _broker_rows(
    parts: BrokerParts, figures: Sequence[Figure], restart: Restart | None, drain: BrokerDrain
) -> Iterable[RequestRow]:
    loop, clients = parts.loop, parts.groups.clients
    config = SettingsRequests(parts.live, as_properties, by_field, parts.clock)
    get, update = on_cluster(Action.GET), on_cluster(Action.UPDATE)
    return (
        *AccessRequests(parts.access.control, is_replicated=bool(parts.settings.replication)).rows(),
        *RestartRequests(parts.settings.broker_name, restart).rows(),
        *DrainRequests(drain).rows(),
        PROVE_ROW,
        *BrokerInfo(parts.settings.cluster_name, loop.store, loop.reads, clients, loop.stats, figures).rows(),
        RequestRow(RequestCode.GET_BROKER_CONFIG, config.get, None, get, on_slave=OnSlave.SERVED),
        RequestRow(RequestCode.UPDATE_BROKER_CONFIG, config.update, None, update, on_slave=OnSlave.SERVED),
    )
