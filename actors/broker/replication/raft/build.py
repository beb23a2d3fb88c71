"""Builds what a broker does as a replica of a Raft group.

The node decides who leads, and when sends are accepted. The role of the broker follows it: MASTER, with id 0
and the term as stateVersion, while sends are accepted, else SLAVE.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.capability import Capability, Feature, OpenStore
from actors.broker.core.loop.log_history import GroupLogHistory, PastPositions
from actors.broker.core.loop.turn import TurnStep
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService
from actors.broker.replication.held_acks import HeldAcks
from actors.broker.replication.raft.addresses import MemberAddresses
from actors.broker.replication.raft.build_meta import GroupServices, build_meta
from actors.broker.replication.raft.confirmed_requests import ConfirmedRequests
from actors.broker.replication.raft.driver import RaftDriver
from actors.broker.replication.raft.forwarding import Forwarder
from actors.broker.replication.raft.group_tables import GroupTables
from actors.broker.replication.raft.member_requests import GroupOfReplica, MemberRequests
from actors.broker.replication.raft.meta_log import MetaLog
from actors.broker.replication.raft.opening import RaftReplica, open_replica
from actors.broker.replication.raft.raft_figures import raft_figures
from actors.broker.replication.raft.raft_requests import RaftPeer, RaftRequests, raft_message
from actors.broker.replication.raft.raft_step import RaftStep
from actors.broker.replication.raft.transfers import Transfers
from actors.raft.members import Member
from actors.raft.messages import Message
from store.commitlog.positions import Callback
from store.common.clock import Clock
from store.message_store import MessageStore
from store.writing.send_gate import REPLICATION

Restart = Callable[[str], None]


class RaftBroker:
    """What a RaftDriver needs of its broker."""

    def __init__(
        self,
        parts: BrokerParts,
        replica: RaftReplica,
        addresses: MemberAddresses,
        meta: MetaLog,
        restart: Restart | None,
    ) -> None:
        self._parts = parts
        self._replica = replica
        self._addresses = addresses
        self._meta = meta
        self._restart = restart
        self._wanted = (Role.SLAVE, 0)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ---- of the driver -------------------------------------------------------------------------------------

    def send(self, to: Member, message: Message) -> None:
        """Send a message, which may be lost. Raises ValueError if it is too long."""
        address = self._addresses.of(to)
        if address:
            mine, group_id = self._parts.identity.address, self._replica.node.group_id
            command = raft_message(self._replica.group, to, message, mine, group_id)
            self._parts.remoting_client.oneway(address, command)

    def open_for_sends(self, term: int) -> None:
        """Take over as the leader of `term`: create the topics of the log, and register as the master."""
        loop = self._parts.loop
        loop.store.dispatch_now()
        self._parts.tables.adopt_queues(loop.store)
        self._meta.take_over()
        self._want(Role.MASTER, term)

    def lose_leadership(self) -> None:
        """Register as a slave, with the tables that are confirmed."""
        self._meta.resign()
        self._parts.tables.offsets.forget_clients()
        self._want(Role.SLAVE, self._replica.node.term)

    def fail(self) -> None:
        """Unregister; reads are refused, too."""
        self._want(Role.FENCED, self._replica.node.term)

    def restart(self, reason: str) -> None:
        """Restart the broker, if anything would start it again."""
        if self._restart is not None:
            asyncio.get_running_loop().call_soon(self._restart, reason)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Plan a call on the event loop."""
        return asyncio.get_running_loop().call_later(delay_s, call)

    def request_tick(self) -> None:
        """Request a turn of the event loop, which flushes and dispatches."""
        self._parts.loop.server.request_tick()

    def await_flush(self) -> None:
        """Wait briefly for the flush in flight, unless clients may wait for this replica."""
        if not self._parts.settings.slave_read_enable:
            self._parts.loop.flusher.await_flush()

    # ---- role ----------------------------------------------------------------------------------------------

    def _want(self, role: Role, term: int) -> None:
        self._wanted = role, term
        self._changed.set()

    def start(self) -> None:
        """Let the role of the broker follow the node, from now on."""
        self._task = self._parts.supervisor.start("raft-role", self._follow_node)

    def stop(self) -> None:
        """Leave the role to others. May be called by a change of the role that this object has begun."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _follow_node(self) -> None:
        role = self._parts.role
        while role.role is not Role.FENCED:
            await self._changed.wait()
            self._changed.clear()
            wanted, term = self._wanted
            if wanted is Role.MASTER is role.role and role.state_version != term:
                await role.become(Role.SLAVE, term)  # the registration of an earlier term ends
            await role.become(wanted, term)


def _forget_topic(topic: str, callback: Callback) -> None:
    """Do nothing: the record of the deletion is dispatched, and has deleted the queues."""
    callback(None)


def first_and_last_feature(restart: Restart | None) -> tuple[Feature, Feature]:
    """Return the features of a Raft group that are built before and after those whose services a leader runs.

    `restart` stops the broker and starts it again; None if nothing would start it.
    """
    tables = GroupTables()
    replicas: list[RaftReplica] = []
    services: list[GroupServices] = []

    def open_store(
        settings: BrokerSettings, clock: Clock, rng: random.Random, open_store: OpenStore
    ) -> MessageStore:
        replicas.append(open_replica(settings, clock, rng, open_store))
        return replicas[0].store

    def build(parts: BrokerParts) -> Capability:
        capability, of_group = _build(parts, replicas[0], tables, restart)
        services.append(of_group)
        # Messages of replicas arrive one by one, so each replica would poll between all of them.
        parts.loop.server.hub.busy_poll.stop()
        return replace(capability, past=_past_positions(parts), is_elected=True)

    last = Feature(lambda parts: Capability(services=(services[0].after(),)))
    return Feature(build, sinks=lambda *_: (tables,), open_store=open_store), last


def _past_positions(parts: BrokerParts) -> PastPositions:
    store, role = parts.loop.store, parts.role
    terms = GroupLogHistory(store)

    def may_judge(epoch_id: str) -> bool:
        # Only the leader knows all terms, as soon as its own one can be read; a former one that does not know
        # of the next leader yet does not know its term.
        leads = role.role is Role.MASTER and role.state_version == terms.term
        return not epoch_id or terms.has(epoch_id) or (leads and not terms.is_before(epoch_id))

    return PastPositions(store, terms, may_judge)


def _build(
    parts: BrokerParts, replica: RaftReplica, tables: GroupTables, restart: Restart | None
) -> tuple[Capability, GroupServices]:
    """Build the requests, the chain steps and the driver of a replica."""
    settings, node, loop = parts.settings, replica.node, parts.loop
    addresses = MemberAddresses({node.me: parts.identity.address, **replica.addresses}, lambda: node.members)

    def leads() -> bool:
        return not loop.store.gate.is_closed_by(REPLICATION)

    meta, services, table_services = build_meta(parts, tables, leads)
    broker = RaftBroker(parts, replica, addresses, meta, restart)
    driver = RaftDriver(node, replica.log, loop.store, replica.term_file, parts.clock, addresses, broker)
    acks = HeldAcks(loop, meta, parts.tables.offsets.acked, leads)
    loop.store.retention.keep_from("replicas", driver.need)

    async def start() -> None:
        broker.start()
        driver.start()

    async def stop() -> None:
        broker.stop()
        driver.stop()

    def leader_address() -> str:
        return "" if node.leader is None else addresses.of(node.leader)

    def other_leader() -> str:
        return "" if driver.is_leader else leader_address()

    confirmed = ConfirmedRequests(meta, acks)
    forwarder = Forwarder(
        parts.remoting_client, leads, other_leader, parts.access.sender_of, parts.clock,
        serves_reads=lambda: settings.slave_read_enable, handle=confirmed.handle,
    )  # fmt: skip
    transfers = Transfers(
        driver, forwarder, addresses.of, lambda: settings.route_refresh_ms, acks.before(meta.flush_progress)
    )
    peer = RaftPeer(replica.group, node.me, driver.receive)
    step = RaftStep(settings, driver, leader_address, lambda: services.have_started(node.term))
    capability = Capability(
        rows=(
            *RaftRequests(peer).rows(),
            *MemberRequests(GroupOfReplica(replica.group, driver, addresses)).rows(),
            *transfers.rows(),
        ),
        steps=(forwarder, step, confirmed),
        steps_skip_sends=True,
        turn_steps=(TurnStep("replicate", acks.before(driver.end_turn), follows="flush"),),
        services=(
            RoleService("raft", frozenset({Role.MASTER, Role.SLAVE}), start, stop),
            *table_services,
            services.before(),
        ),
        leave=transfers.leave,
        forget_topic=_forget_topic,
        figures=raft_figures(driver, loop.store.positions, leader_address, parts.clock),
        keepers=(forwarder,),
    )
    return capability, services
