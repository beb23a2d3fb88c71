"""NameserverService: starts and stops a nameserver on an event loop; works without Ray.

The routes are only in memory: the brokers register them again every 30 s.
"""

from actors.access.access_file import RELOAD_MS, AccessFile
from actors.host.cluster_tls import reload_tls, server_tls
from actors.host.descriptors import reserve_descriptors
from actors.host.figures import Figure, Kind, connections_figure, described, failures_figure
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.host.settings_requests import SettingsRequests
from actors.nameserver.access import build_nameserver_access
from actors.nameserver.kv_config import KVConfig
from actors.nameserver.nameserver_requests import NameserverRequests
from actors.nameserver.nameserver_settings import NameserverSettings, by_field, nameserver_properties
from actors.nameserver.route_table import RouteTable
from actors.supervisor import GiveUp, Supervisor
from actors.transport.connection import Connection
from actors.transport.limits import RemotingLimits
from actors.transport.server import RemotingServer
from store.common.clock import Clock
from store.common.live_settings import LiveSettings
from store.common.logs import get_logger
from store.message.hosts import join_address

_log = get_logger(__name__)


def build_nameserver(
    settings: NameserverSettings, clock: Clock, give_up: GiveUp | None = None
) -> "NameserverService":
    """Build a nameserver. `give_up` is called with the reason if one of its tasks fails permanently.

    Raises StoreError if a file of credentials, users or certificates is invalid.
    """
    live = LiveSettings(settings)
    routes = RouteTable(
        settings.delete_topic_with_broker_registration, settings.max_brokers, settings.max_topics
    )
    kv_config = KVConfig(settings.data_dir, settings.max_kv_entries)
    config = SettingsRequests(live, nameserver_properties, by_field, clock)
    table = NameserverRequests(settings, routes, kv_config, clock).table(config)
    reserve_descriptors(settings.max_connections)
    access = build_nameserver_access(settings, clock)
    limits = RemotingLimits(
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
    )
    tls = server_tls(settings)
    server = RemotingServer(table, clock, limits, steps=access.steps, tls=tls)
    supervisor = Supervisor(clock, give_up)
    return NameserverService(live, routes, kv_config, server, supervisor, clock, access.file)


class NameserverService:
    """One nameserver, created by `build_nameserver`. Nameservers do not communicate with each other."""

    def __init__(
        self,
        live: LiveSettings[NameserverSettings],
        routes: RouteTable,
        kv_config: KVConfig,
        server: RemotingServer,
        supervisor: Supervisor,
        clock: Clock,
        access_file: AccessFile | None = None,
    ) -> None:
        self.live = live
        self.settings = live.settings
        self.routes = routes
        self.server = server
        self.kv_config = kv_config
        self._supervisor = supervisor
        self._clock = clock
        self._access_file = access_file
        self.figures = (
            Figure("address", Kind.TEXT, "", lambda: self.address, "Address that it listens on."),
            Figure(
                "topics",
                Kind.GAUGE,
                "",
                lambda: len(routes.topics()),
                "Topics with a route.",
                metric="raymq_nameserver_topics",
            ),
            Figure(
                "brokers",
                Kind.GAUGE,
                "",
                lambda: len(routes.cluster_info().brokers),
                "Registered brokers.",
                is_described=False,
                metric="raymq_nameserver_brokers",
            ),
            connections_figure(lambda: len(server.connections)),
            failures_figure(lambda: supervisor.failures),
        )
        keepers = (server, server.hub.account, routes, kv_config)
        self.metrics = MetricsEndpoint(live.settings, self.figures, self._labels, server.ports, keepers)

    @property
    def address(self) -> str:
        """The address that the nameserver listens on, `host:port`."""
        return join_address(self.settings.listen_host, self.server.port)

    async def start(self) -> None:
        """Load the kv config and listen for connections.

        Raises:
            StoreError: the kv config file is damaged.
            OSError: the port is in use.
        """
        settings = self.settings
        self.kv_config.load()
        await self.server.start(settings.listen_host, settings.listen_port)
        await self.metrics.start(settings.listen_port)
        self._supervisor.every("broker-expiry", lambda: settings.scan_interval_ms, self.expire_brokers)
        if self._access_file is not None:
            self._supervisor.every("access-reload", lambda: RELOAD_MS, self._access_file.reload)
        reload_tls(self._supervisor, self.server.tls)
        _log.info("nameserver_serving", host=settings.listen_host, port=self.server.port)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        await self.metrics.stop()
        await self._supervisor.stop()
        await self.server.stop()

    def _labels(self) -> dict[str, str]:
        cluster = self.settings.cluster_name
        return {"cluster": cluster, "node_type": "nameserver", "node_id": self.address}

    def describe(self) -> dict[str, object]:
        """Return the values of the figures."""
        return described(self.figures)

    def expire_brokers(self) -> None:
        """Remove the brokers whose last registration or heartbeat is too old, and close their connections."""
        for broker in self.routes.expire(self._clock.monotonic_ns()):
            if isinstance(broker.connection, Connection):
                broker.connection.close("the broker sent no registration or heartbeat within its expiry time")
