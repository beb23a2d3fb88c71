"""RebalancerService: starts and stops one rebalancer; `GroupCoordinator` has the groups."""

from actors.host.cluster_access import cluster_client, inner_signer, inner_user_steps
from actors.host.cluster_tls import reload_tls, server_tls
from actors.host.descriptors import reserve_descriptors
from actors.host.figures import Figure, Kind, connections_figure, described, failures_figure
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.rebalancer.coordinator import GroupCoordinator
from actors.rebalancer.generations import Generations
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.route_watch import RouteWatch
from actors.supervisor import GiveUp, Supervisor
from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers
from actors.transport.limits import CONNECTIONS
from actors.transport.server import RemotingServer
from store.common.clock import Clock
from store.common.live_settings import LiveSettings
from store.common.logs import get_logger
from store.message.hosts import join_address

_log = get_logger(__name__)


def build_rebalancer(
    settings: RebalancerSettings, clock: Clock, give_up: GiveUp | None = None
) -> "RebalancerService":
    """Build a rebalancer. `give_up` is called with the reason when a background task fails permanently.

    Raises StoreError if the credentials file or a certificate of the settings is invalid.
    """
    inner = inner_signer(settings)
    client = cluster_client(settings, inner, clock, settings.nameservers)
    nameservers = Nameservers(client, lambda: settings.nameservers, settings.route_timeout_ms)
    routes = RouteWatch(nameservers, clock, settings.route_grace_ms)
    generations = Generations(settings.data_dir, clock)
    coordinator = GroupCoordinator(settings, generations, routes, clock)
    steps = inner_user_steps(settings, inner, clock)
    table, tls = coordinator.table(), server_tls(settings)
    reserve_descriptors(CONNECTIONS.limit)
    server = RemotingServer(table, clock, tick=coordinator.send_changes, steps=steps, tls=tls)
    supervisor = Supervisor(clock, give_up)
    return RebalancerService(LiveSettings(settings), coordinator, server, client, supervisor)


class RebalancerService:
    """One rebalancer; create it with `build_rebalancer`."""

    def __init__(
        self,
        live: LiveSettings[RebalancerSettings],
        coordinator: GroupCoordinator,
        server: RemotingServer,
        client: RemotingClient,
        supervisor: Supervisor,
    ) -> None:
        self.live = live
        self.settings = live.settings
        self.coordinator = coordinator
        self.server = server
        self._client = client
        self._supervisor = supervisor
        self.figures = (
            Figure("address", Kind.TEXT, "", lambda: self.address, "Address that it listens on."),
            *coordinator.figures(),
            connections_figure(lambda: len(server.connections)),
            failures_figure(lambda: supervisor.failures),
        )
        keepers = (server, server.hub.account, coordinator)
        self.metrics = MetricsEndpoint(live.settings, self.figures, self._labels, server.ports, keepers)

    @property
    def address(self) -> str:
        """The address on which it listens."""
        return join_address(self.settings.listen_host, self.server.port)

    async def start(self) -> None:
        """Load the generations, listen, and start the background tasks. Raises OSError or StoreError."""
        settings, coordinator, every = self.settings, self.coordinator, self._supervisor.every
        coordinator.load()
        await self.server.start(settings.listen_host, settings.listen_port)
        await self.metrics.start(settings.listen_port)
        every("route-refresh", lambda: settings.route_refresh_interval_ms, coordinator.refresh_routes)
        every("lease-expiry", lambda: settings.lease_check_interval_ms, coordinator.expire)
        reload_tls(self._supervisor, self.server.tls, self._client.tls)
        _log.info("rebalancer_serving", host=settings.listen_host, port=self.server.port)

    async def stop(self) -> None:
        """Stop listening and close all connections. Members keep their queues."""
        await self.metrics.stop()
        await self._supervisor.stop()
        await self.server.stop()
        await self._client.close()

    def _labels(self) -> dict[str, str]:
        return {"node_type": "rebalancer", "node_id": self.address}

    def describe(self) -> dict[str, object]:
        """Return the values of the figures."""
        return described(self.figures)
