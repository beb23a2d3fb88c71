"""BrokerService: starts and stops one broker on one event loop; works without Ray."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import cache, partial

from actors.access.access_file import RELOAD_MS
from actors.beat import BEAT_MS
from actors.broker.admin.restart_requests import Restart
from actors.broker.broker_settings import VIP_PORT_DISTANCE, BrokerSettings
from actors.broker.build import BuiltBroker, build_broker
from actors.broker.core.capability import Feature
from actors.broker.core.drain import BrokerDrain
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.reserved_port import reserve_port
from actors.broker.core.role import Role
from actors.broker.features.built_in import built_in_features
from actors.broker.handle_api import HandleApi
from actors.host.cluster_tls import reload_tls
from actors.host.descriptors import reserve_descriptors
from actors.host.figures import described
from actors.supervisor import GiveUp, Supervisor
from store.commitlog.positions import ConfirmPolicy
from store.common.clock import NS_PER_MS, Clock
from store.common.live_settings import LiveSettings
from store.common.logs import get_logger
from store.disk.disk_use import DiskProbe, disk_use
from store.message.hosts import Host
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.warm import warm_up

_log = get_logger(__name__)

HOUSEKEEPING_MS = 100
EXPIRE_CLIENTS_MS = 10_000
SAMPLE_STATS_MS = 1000
COUNTERS_PER_SLICE = 500
RESPONSE_TIMEOUT_MS = 2000
RESPONSE_PAUSE_MS = 2
warm_up_once = cache(warm_up)


class BrokerService:
    """One broker. `start` and `stop` must run on the same event loop."""

    graph: BuiltBroker
    """The broker's objects, built by `start`."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        give_up: GiveUp | None = None,
        rng: random.Random | None = None,
        probe: DiskProbe = disk_use,
        features: Sequence[Feature] = (),
        node_ip: str = "",
        restart: Restart | None = None,
    ) -> None:
        """Create the service.

        Args:
            settings: the broker's settings.
            clock: for all time-outs, leases and timestamps.
            give_up: called with the reason when a background task has failed too often to be restarted.
            rng: source of random numbers, for the choice of queues and for unique keys.
            probe: measures how full the store's disks are.
            features: added before those that every broker has, so their interceptors are called first.
            node_ip: the address of the broker's Ray node; empty outside of Ray.
            restart: stops this service and starts another one, at the request of an administrator; None if
                nothing would start it.
        """
        self.settings = settings
        self.live = LiveSettings(settings)
        self._probe = probe
        self._own_features = tuple(features)
        self._node_ip = node_ip
        self._restart = restart
        self._clock = clock
        self._rng = rng or random.Random()
        self._supervisor = Supervisor(clock, give_up, broker=settings.broker_name)

    @property
    def address(self) -> str:
        """The address that clients connect to, `host:port`."""
        return self.graph.identity.address

    @property
    def handle(self) -> HandleApi:
        """The methods of the actor handle."""
        return self.graph.handle

    @property
    def drain(self) -> BrokerDrain:
        """The drain of this broker."""
        return self.graph.drain

    async def start(self) -> None:
        """Open the store, listen for clients and register with the nameservers.

        Raises:
            StoreError: the store is damaged, locked by another process, or belongs to another broker or to
                a replica of a Raft group.
            OSError: the port is in use, or the advertised host cannot be resolved.
            ValueError: two features handle the same request code, or declare the same figure.
        """
        settings = self.settings
        warm_up_once()
        with await reserve_port(settings, self._clock) as port:
            identity = BrokerIdentity.of(settings, port.number, self._node_ip)
            store, features = self._open(identity.host)
            try:
                self.graph = build_broker(
                    self.live, self._clock, self._rng, identity, store, self._supervisor, features,
                    self._restart,
                )  # fmt: skip
                server = self.graph.loop.server
                await server.start(settings.listen_host, port.number)
                await self._listen_for_vip(port.number)
                await self.graph.metrics.start(settings.listen_port)
                self.graph.loop.flusher.start()
                self.graph.loop.lag.start()
                store.on_work_ended(self._post_tick())
                # Last, because a nameserver may be slow; clients are already served.
                first = Role.SLAVE if self.graph.is_elected else Role(settings.role)
                await self.graph.role.become(first, settings.group_epoch)
            except BaseException:
                store.close()
                raise
        self._start_background_tasks()
        _log.info("broker_serving", broker=settings.broker_name, address=self.address)

    def describe(self) -> dict[str, object]:
        """Return the fields of DESCRIBE_BROKER: names, addresses, store positions and counters."""
        return described(self.graph.figures)

    def announce(self) -> None:
        """Register with all nameservers within a few milliseconds; one of them may be new."""
        self.graph.registration.changed()

    async def leave(self) -> None:
        """Hand over what another replica can take over, such as the leadership of a Raft group."""
        for leave in self.graph.leave:
            await leave()

    async def stop(self) -> None:
        """Unregister, respond to the accepted sends, flush and close the store."""
        broker, loop = self.graph, self.graph.loop
        await self.leave()
        await broker.role.become(Role.STOPPED)
        loop.server.discard_input()
        # Respond to held pulls: rocketmq-client 4.9 waits 30 s for a pull even if its connection has closed.
        loop.held.close()
        await self._respond_to_senders()
        await broker.metrics.stop()
        await self._supervisor.stop()
        loop.turn.stop()
        loop.end_of_turn.stop()
        loop.lag.stop()
        await loop.off_loop.stop()
        await loop.flusher.stop()
        await loop.server.stop()
        await broker.remoting_client.close()
        await broker.tables.save_offsets()
        await broker.tables.save_definitions()
        loop.store.close()
        _log.info(
            "broker_stopped",
            broker=self.settings.broker_name,
            messages_in=loop.stats.put_total.messages,
            messages_out=loop.stats.got_total.messages,
            flushes=loop.flusher.flushes,
            longest_flush_us=loop.flusher.longest_flush_ns // 1000,
            longest_lag_us=loop.lag.longest_ns // 1000,
        )

    async def _respond_to_senders(self) -> None:
        """Respond to the appended sends when they are confirmed; else producers would send them again."""
        loop = self.graph.loop
        deadline_ns = self._clock.monotonic_ns() + RESPONSE_TIMEOUT_MS * NS_PER_MS
        while len(loop.acks) and self._clock.monotonic_ns() < deadline_ns:
            loop.server.request_tick()
            await asyncio.sleep(RESPONSE_PAUSE_MS / 1000)

    async def _listen_for_vip(self, port: int) -> None:
        """Also listen on RocketMQ's VIP port, unless it is in use or the settings forbid it."""
        settings = self.settings
        vip_port = port - VIP_PORT_DISTANCE
        if not settings.vip_channel or not settings.listen_port or vip_port <= 0:
            return
        try:
            await self.graph.loop.server.also_listen(settings.listen_host, vip_port)
        except OSError as error:
            _log.info("vip_port_in_use", broker=settings.broker_name, port=vip_port, error=error.strerror)

    def _open(self, host: Host) -> tuple[MessageStore, Sequence[Feature]]:
        """Open the store, and return it with the features of this broker."""
        features = (*self._own_features, *built_in_features(self.settings, self._restart))
        open_store = next(feature.open_store for feature in features if feature.open_store)
        store = open_store(self.settings, self._clock, self._rng, partial(self._open_store, host, features))
        return store, features

    def _open_store(self, host: Host, features: Sequence[Feature], confirm: ConfirmPolicy) -> MessageStore:
        settings = self.settings
        identity = StoreIdentity(settings.cluster_name, settings.broker_name, settings.replica)
        files = reserve_descriptors(settings.max_connections, settings.store.max_open_files)
        return MessageStore.open(
            settings.store_root,
            settings.store,
            identity,
            self._clock,
            adopt=settings.adopt_store,
            store_host=host,
            probe=self._probe,
            sinks=[sink for each in features for sink in each.sinks(settings.store_root, settings)],
            confirm=confirm,
            max_open_files=files,
        )

    def _post_tick(self) -> Callable[[], None]:
        """Return a function by which another thread requests a turn of the event loop."""
        loop, request_tick = asyncio.get_running_loop(), self.graph.loop.server.request_tick

        def post() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(request_tick)

        return post

    def _start_background_tasks(self) -> None:
        """Start one task per duty, so that a failing duty does not delay the others."""
        every, broker, settings = self._supervisor.every, self.graph, self.settings
        for name, act in (
            ("ack-sweep", broker.loop.acks.sweep),
            ("read-queue-sweep", broker.loop.off_loop.sweep),
            ("drain-lease", broker.drain.sweep),
            ("fenced-check", self._leave_if_fenced),
            ("log-end", self._follow_log_end),
            ("store-tick", broker.loop.server.request_tick),
        ):
            every(name, self._housekeeping_ms, act)
        self._supervisor.start("save-definitions", broker.tables.keep_definitions_saved)
        every("save-offsets", lambda: settings.persist_offsets_interval_ms, broker.tables.save_offsets)
        if broker.access.control is not None:
            every("access-reload", lambda: RELOAD_MS, broker.access.control.file.reload)
        reload_tls(self._supervisor, broker.loop.server.tls, broker.remoting_client.tls)
        every("client-expiry", lambda: EXPIRE_CLIENTS_MS, self._expire_clients)
        every("stats", lambda: SAMPLE_STATS_MS, self._sample_stats)

    def _housekeeping_ms(self) -> int:
        """Return the time to the next check of what waits; an idle broker checks at each beat."""
        loop = self.graph.loop
        has_waiting = loop.end_of_turn.waiting or loop.acks.is_waiting or len(loop.off_loop)
        is_busy = has_waiting or loop.store.is_upkeep_under_way or not loop.log_end.is_known
        return HOUSEKEEPING_MS if is_busy else BEAT_MS

    async def _leave_if_fenced(self) -> None:
        store, is_former_master = self.graph.loop.store, self.graph.registration.is_fenced
        if is_former_master:
            self.graph.loop.held.close()  # consumers then request the route, and continue at the new master
        if is_former_master or not store.confirm():  # an idle store has few turns that look at its epoch
            await self.graph.role.become(Role.FENCED)

    async def _follow_log_end(self) -> None:
        self.graph.loop.log_end.watch()
        if self.graph.loop.log_end.is_known:
            await self.graph.role.start_waiting()

    def _expire_clients(self) -> None:
        self.graph.groups.requests.expire()
        self.graph.groups.locks.expire()

    async def _sample_stats(self) -> None:
        stats = self.graph.loop.stats
        stats.sample_totals()
        for _ in stats.sample_due(COUNTERS_PER_SLICE):
            await asyncio.sleep(0)
