"""BrokerService: one broker – its store, its listener, its timers – on one event loop, without Ray."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Sequence
from functools import cache

from actors.broker.admission import Admission
from actors.broker.broker_settings import VIP_PORT_DISTANCE, BrokerSettings
from actors.broker.departure import Departure
from actors.broker.group.assignments import Assignments
from actors.broker.group.client_requests import ClientRequests
from actors.broker.group.clients import Clients
from actors.broker.group.queue_locks import QueueLocks
from actors.broker.group.rebalancer_link import RebalancerLink
from actors.broker.handle_api import HandleApi
from actors.broker.handlers import make_handlers
from actors.broker.loop.flusher import Flusher
from actors.broker.loop.off_loop import OffLoop
from actors.broker.loop.turns import TurnLoop, Turns
from actors.broker.metadata.tables import BrokerTables
from actors.broker.parts import BrokerParts
from actors.broker.reading.hold import HeldPull, HeldPulls
from actors.broker.reading.reads import Reads
from actors.broker.registration import Registration
from actors.broker.requests import add_group_changed, request_table
from actors.broker.reserved_port import reserve_port
from actors.broker.sending.acks import Acks
from actors.broker.sending.send import Sender
from actors.broker.sending.stored_properties import PropertyWriter
from actors.broker.stats import BrokerStats
from actors.host.descriptors import connections_that_fit
from actors.host.live_settings import LiveSettings
from actors.host.loop_lag import LoopLag
from actors.host.supervisor import Supervisor
from actors.remoting.client import RemotingClient
from actors.remoting.connection import Connection
from actors.remoting.headers import RegisterBrokerHeader
from actors.remoting.limits import RemotingLimits
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from store.clock import NS_PER_MS, Clock
from store.disk.disk_use import DiskProbe, disk_use
from store.logs import get_logger
from store.message.hosts import Host
from store.message.message_id import UniqKeyGenerator
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.warm import warm_up

_log = get_logger(__name__)

HOUSEKEEPING_MS = 100
EXPIRE_CLIENTS_MS = 10_000
NOTE_STATS_MS = 1000
COUNTERS_A_SLICE = 500
SAVE_TABLES_MS = 200
OTHER_DESCRIPTORS = 256
ANSWER_TIMEOUT_MS = 2000
ANSWER_PAUSE_MS = 2
warm_up_once = cache(warm_up)


class BrokerService:
    """A broker. Make it, `await start()`, and later `await stop()`, on one and the same loop."""

    handle: HandleApi
    departure: Departure

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        rng: random.Random | None = None,
        probe: DiskProbe = disk_use,
    ) -> None:
        """`probe` tells how full the disks of the store are."""
        self.settings = settings
        self.live = LiveSettings(settings, clock)
        self._probe = probe
        self.address = ""
        self._clock = clock
        self._rng = rng or random.Random()
        self._held = HeldPulls(settings.max_held_pulls)
        self._supervisor = Supervisor(clock, broker=settings.broker_name)

    async def start(self) -> None:
        """Open the store, listen, register. Raises StoreError or OSError when that cannot be done in time."""
        settings = self.settings
        warm_up_once()
        with await reserve_port(settings, self._clock) as port:
            self.address = f"{settings.host}:{settings.advertised_port or port.number}"
            host = Host(socket.gethostbyname(settings.host), settings.advertised_port or port.number)
            self._open_store(host)
            try:
                self._assemble(host)
                await self._server.start(settings.listen_host, port.number)
                await self._listen_for_vip(port.number)
                self._flusher.start()
                self.lag.start()
                self._store.on_work_ended(self._post_tick())
                await self._registration.start()  # a nameserver may be slow, while clients are served
            except BaseException:
                self._store.close()
                raise
        self._start_background_tasks()
        _log.info("broker_serving", broker=settings.broker_name, address=self.address)

    def describe(self) -> dict[str, object]:
        """Who and where the broker is, and how far its store has come."""
        settings, store = self.settings, self._store
        positions = store.positions
        return {
            "cluster": settings.cluster_name,
            "broker": settings.broker_name,
            "broker_id": settings.broker_id,
            "replica": settings.replica,
            "address": self.address,
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
            "departure": str(self.departure.state),
            "topics": len(self._tables.topics.table.topics),
            "groups": len(self._tables.groups.table.groups),
            "connections": len(self._server.connections),
            "held_pulls": len(self._held),
            "messages_in": self._stats.put_total.messages,
            "messages_out": self._stats.got_total.messages,
            "flushes": self._flusher.flushes,
            "longest_flush_us": self._flusher.longest_flush_ns // 1000,
            "unread_bytes": self._server.hub.unread_bytes,
            "cold_reads": self._reads.cold,
            "log_holes": len(store.holes),
            "messages_passed_over": store.passed_over,
            "delayed_messages_skipped": self._tables.delays.skipped,
            "requests_refused": self._admission.refused,
            "background_task_failures": self._supervisor.failures,
            **self.lag.figures(),
        }

    def announce(self) -> None:
        """Register with all nameservers soon: one of them may be new."""
        self._registration.changed()

    async def stop(self) -> None:
        """Leave the routes, answer what has been taken, and close the store in order."""
        await self._registration.stop(leave_routes=not self._store.is_superseded)
        self._server.hush()
        self._held.end_all()  # rocketmq-client 4.9 waits 30 s for those of a connection that has closed
        await self._answer_senders()
        await self._supervisor.stop()
        self._turns.stop()
        self.lag.stop()
        await self._off_loop.stop()
        await self._flusher.stop()
        await self._server.stop()
        await self._client.close()
        await self._tables.save_offsets()
        await self._tables.save_definitions()
        self._store.close()
        _log.info(
            "broker_stopped",
            broker=self.settings.broker_name,
            messages_in=self._stats.put_total.messages,
            messages_out=self._stats.got_total.messages,
            flushes=self._flusher.flushes,
            longest_flush_us=self._flusher.longest_flush_ns // 1000,
            longest_lag_us=self.lag.longest_ns // 1000,
        )

    async def _answer_senders(self) -> None:
        """Let those be answered whose messages are stored: they would send them again, elsewhere."""
        deadline_ns = self._clock.monotonic_ns() + ANSWER_TIMEOUT_MS * NS_PER_MS
        while len(self._acks) and self._clock.monotonic_ns() < deadline_ns:
            self._request_tick()
            await asyncio.sleep(ANSWER_PAUSE_MS / 1000)

    async def _listen_for_vip(self, port: int) -> None:
        """RocketMQ's second port, where nobody else has it."""
        settings = self.settings
        vip_port = port - VIP_PORT_DISTANCE
        if not settings.vip_channel or not settings.listen_port or vip_port <= 0:
            return
        try:
            await self._server.also_listen(settings.listen_host, vip_port)
        except OSError as error:
            _log.info("vip_port_taken", broker=settings.broker_name, port=vip_port, error=error.strerror)

    def _open_store(self, host: Host) -> None:
        settings = self.settings
        identity = StoreIdentity(settings.cluster_name, settings.broker_name, settings.replica)
        self._store = MessageStore.open(
            settings.store_root,
            settings.store,
            identity,
            self._clock,
            adopt=settings.adopt_store,
            store_host=host,
            probe=self._probe,
        )

    def _assemble(self, host: Host) -> None:
        settings, clock = self.settings, self._clock
        parts = self._make_parts()
        properties = PropertyWriter(settings, UniqKeyGenerator(host.ip, os.getpid(), clock, self._rng))
        sender = Sender(parts, properties, self._rng, host.packed)
        self._connect(parts.tables)
        handlers = make_handlers(
            parts, sender, self._client_requests, self._assignments, self.live, self.describe
        )
        self.cleaning = handlers.cleaning
        self.departure = Departure(parts)
        self._server = RemotingServer(
            request_table(handlers), clock, self._limits(), self._end_turn, steps=(self._admission,)
        )
        self.handle = HandleApi(self._server, host.packed, properties.next_uniq_key)

    def _make_parts(self) -> BrokerParts:
        settings, store, clock = self.settings, self._store, self._clock
        tables = self._tables = BrokerTables(settings, store, clock, self._topics_changed)
        self._clients: Clients[Connection] = Clients(clock, settings.client_expiry_ms)
        self._locks = QueueLocks(clock)
        self._stats = BrokerStats(clock)
        is_sync = settings.store.flush == "sync"
        self._acks = Acks(store, clock, settings.sync_flush_timeout_ms, may_wait=is_sync)
        self._flusher = Flusher(
            store,
            clock,
            self._request_tick,
            flushes_each_tick=is_sync,
            flush_interval_ms=settings.store.flush_interval_ms,
        )
        self._turns = Turns(
            store,
            self._flusher,
            self._held,
            clock,
            TurnLoop(self._request_tick, self._write_out, self._resume),
            self._stats.put_times,
            settings.wait_in_pull_queue_ms,
        )
        reads = self._keep_loop_free()
        return BrokerParts(
            settings=settings,
            address=self.address,
            clock=clock,
            store=store,
            reads=reads,
            tables=tables,
            clients=self._clients,
            locks=self._locks,
            acks=self._acks,
            held=self._held,
            stats=self._stats,
            lag=self.lag,
            wake=self._turns.wake,
            request_tick=self._request_tick,
        )

    def _limits(self) -> RemotingLimits:
        settings = self.settings
        return RemotingLimits(
            busy_poll_us=settings.busy_poll_us,
            max_unread_bytes=2 * settings.max_unread_bytes,
            unread_ms=settings.unread_timeout_ms,
            idle_ms=settings.idle_timeout_ms,
            max_connections=connections_that_fit(
                settings.max_connections, 2 * settings.store.max_open_files + OTHER_DESCRIPTORS
            ),
        )

    def _keep_loop_free(self) -> Reads:
        """What sees to it that nothing holds the loop, and tells when something has."""
        settings, store, clock = self.settings, self._store, self._clock
        self._admission = Admission(settings, store, clock)
        self.lag = LoopLag(clock, self._admission.note_lag)
        self._off_loop = OffLoop(
            clock, settings.cold_read_threads, settings.pull_queue_capacity, settings.wait_in_pull_queue_ms
        )
        self._reads = Reads(store, self._off_loop, self._admission.admit_answer, self._turns)
        self._tables.delays.bring = self._reads.bring
        return self._reads

    def _connect(self, tables: BrokerTables) -> None:
        """The connections that this broker opens itself: to nameservers and rebalancers."""
        settings, clock = self.settings, self._clock
        pushed = RequestTable()
        self._client = RemotingClient(clock, pushed)
        rebalancers = RebalancerLink(
            self._client, settings.rebalancers, settings.broker_name, settings.rebalancer_timeout_ms, clock
        )
        self._client_requests = ClientRequests(
            settings.broker_name, self._clients, tables.topics, tables.groups, tables.offsets, rebalancers
        )
        add_group_changed(pushed, self._client_requests)
        self._assignments = Assignments(
            self._client, settings.nameservers, self._client_requests.tell_members
        )
        self._registration = Registration(
            self._client,
            settings.nameservers,
            settings.register_interval_ms,
            lambda: RegisterBrokerHeader(
                settings.broker_name, self.address, settings.cluster_name, settings.broker_id
            ).to_ext(),
            tables.register_body,
            tables.topics.order,
            self._supervisor,
        )
        tables.topics.when_announced = self._registration.when_settled
        tables.adopt_queues(self._store)
        self.live.listeners.append(lambda changes: self._registration.changed())

    def _end_turn(self) -> None:
        self._turns.tick()
        self._admission.end_turn()

    def _write_out(self) -> None:
        self._server.hub.flush()

    def _resume(self, pulls: Sequence[HeldPull]) -> None:
        self._server.hub.resume(pulls)

    def _request_tick(self) -> None:
        self._server.request_tick()

    def _post_tick(self) -> Callable[[], None]:
        """Asks for a turn's end from another thread."""
        loop = asyncio.get_running_loop()

        def post() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._request_tick)

        return post

    def _topics_changed(self) -> None:
        self._registration.changed()

    def _start_background_tasks(self) -> None:
        """Start one task for each duty: a duty that fails delays none of the others."""
        every, tables, settings = self._supervisor.every, self._tables, self.settings
        for name, act in (
            ("ack-sweep", self._acks.sweep),
            ("read-queue-sweep", self._off_loop.sweep),
            ("departure-sweep", self.departure.sweep),
            ("superseded-check", self._leave_if_superseded),
            ("delayed-delivery", self._deliver_delayed),
            # A quiet store has work too: its checkpoint, files to be made ahead, a flush that somebody waits
            # for.
            ("store-tick", self._request_tick),
        ):
            every(name, lambda: HOUSEKEEPING_MS, act)
        every("save-definitions", lambda: SAVE_TABLES_MS, tables.save_definitions)
        every("save-offsets", lambda: settings.persist_offsets_interval_ms, tables.save_offsets)
        every("client-expiry", lambda: EXPIRE_CLIENTS_MS, self._expire_clients)
        every("stats", lambda: NOTE_STATS_MS, self._note_stats)

    async def _leave_if_superseded(self) -> None:
        if self._store.is_superseded:
            await self._registration.stop(leave_routes=False)

    def _deliver_delayed(self) -> None:
        self._tables.delays.deliver()
        self._request_tick()

    def _expire_clients(self) -> None:
        self._client_requests.expire()
        self._locks.expire()

    async def _note_stats(self) -> None:
        self._stats.note_second()
        for _ in self._stats.note_due(COUNTERS_A_SLICE):
            await asyncio.sleep(0)
