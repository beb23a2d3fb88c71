"""A cluster on real sockets in a thread of the test process. Its parts can be stopped and restarted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from cluster.client import Admin
from cluster.client.transport.loop_thread import LoopThread
from store.common.clock import Clock, SystemClock
from store.store_settings import StoreSettings
from tests.eventually import eventually
from tests.ports import free_port

T = TypeVar("T")

LONG_LEASE_MS = 120_000
"""The longest lease that a rebalancer grants; it does not expire during a test."""

SMALL_STORE = StoreSettings.model_validate(
    {
        "flush": "async",
        "commit_log_file_bytes": 32 << 20,
        "consume_queue_file_bytes": 60_000 * 20,
        "index_slots": 5_000,
        "index_entries": 200_000,
    }
)


class Cluster:
    """A cluster of nameservers, a rebalancer and brokers named a, b, …"""

    def __init__(
        self,
        root: Path,
        brokers: int = 2,
        nameservers: int = 1,
        rebalancer_clock: Clock | None = None,
        broker_clock: Clock | None = None,
        tls: Mapping[str, Any] | None = None,
        host: str = "127.0.0.1",
        **broker_settings: Any,
    ) -> None:
        """Start all parts.

        `rebalancer_clock` determines when leases expire, `broker_clock` when delayed messages are due. `tls`
        are settings of all parts, which listen on `host`.
        """
        self._tls = {"listen_host": host, **(tls or {})}
        self._root = root
        self._broker_clock = broker_clock or SystemClock()
        self._rebalancer_clock = rebalancer_clock or SystemClock()
        self._thread = LoopThread("test-cluster")
        self._broker_settings = broker_settings
        self._topics = itertools.count()
        self.brokers: dict[str, BrokerService] = {}
        self.ports: dict[str, int] = {}
        self._nameservers: dict[str, NameserverService] = {}
        self.addresses = [self.start_nameserver() for _ in range(nameservers)]
        self.address = ";".join(self.addresses)
        self._rebalancer_port = 0
        self.start_rebalancer()
        for number in range(brokers):
            self.start_broker("abcdefgh"[number])

    def start_nameserver(self, address: str = "127.0.0.1:0") -> str:
        """Start a nameserver and return its address."""
        port = int(address.rpartition(":")[2])
        nameserver = build_nameserver(NameserverSettings(listen_port=port, **self._tls), SystemClock())
        self._thread.run(nameserver.start())
        self._nameservers[nameserver.address] = nameserver
        return nameserver.address

    def stop_nameserver(self, address: str) -> None:
        self._thread.run(self._nameservers.pop(address).stop())

    def remove_route(self, address: str, broker: str) -> None:
        """Remove a broker from the routes of a nameserver, until the broker registers again."""

        async def forget() -> None:
            self._nameservers[address].routes.unregister(broker, 0, self.brokers[broker].address)

        self._thread.run(forget())

    def await_registration(self) -> None:
        """Wait until all brokers are registered with all nameservers."""
        for address in self._nameservers:
            with Admin(address) as admin:
                eventually(lambda admin=admin: set(admin.cluster_info().brokers) == set(self.brokers))

    def start_rebalancer(self, **more: Any) -> None:
        settings = RebalancerSettings(
            listen_port=self._rebalancer_port,
            nameservers=self.addresses,
            data_dir=self._root / "rebalancer",
            inner_credentials_file=self._broker_settings.get("inner_credentials_file"),
            **self._tls,
            **more,
        )
        self._rebalancer = build_rebalancer(settings, self._rebalancer_clock)
        self._thread.run(self._rebalancer.start())
        self._rebalancer_port = int(self._rebalancer.address.rpartition(":")[2])

    def refresh_routes(self) -> None:
        """Make the rebalancer refresh its routes now."""
        self._thread.run(self._rebalancer.coordinator.refresh_routes())

    def stop_rebalancer(self) -> None:
        self._thread.run(self._rebalancer.stop())

    def start_broker(self, name: str, **more: Any) -> BrokerService:
        """Start a broker on the port that it used before."""
        settings = {
            "broker_name": name,
            "listen_port": self.ports.get(name) or free_port(1),  # and the HA port
            "nameservers": self.addresses,
            "rebalancers": [self._rebalancer.address],
            "store_root": self._root / name,
            "store": SMALL_STORE,
            **self._tls,
            **self._broker_settings,
            **more,
        }
        broker = BrokerService(BrokerSettings(**settings), self._broker_clock)
        self._thread.run(broker.start())
        self.brokers[name] = broker
        self.ports[name] = int(broker.address.rpartition(":")[2])
        return broker

    def stop_broker(self, name: str) -> None:
        self._thread.run(self.brokers.pop(name).stop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the cluster."""
        return self._thread.run(work)

    def topic(self, queues: int = 4, **options: Any) -> str:
        """Create a topic with `queues` queues on every broker and return its name."""
        name = f"topic-{next(self._topics)}"
        with Admin(self.address) as admin:
            admin.create_topic(name, queues=queues, **options)
        return name

    def stop(self) -> None:
        for name in list(self.brokers):
            self.stop_broker(name)
        self.stop_rebalancer()
        for address in list(self._nameservers):
            self.stop_nameserver(address)
        self._thread.stop()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two brokers that all tests of the package share, each with its own topics."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a function that starts a cluster for one test, which may stop parts of it."""
    made: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        made.append(Cluster(tmp_path / str(len(made)), **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def group() -> str:
    """Return the name of a consumer group that no other test uses."""
    return f"group-{next(_groups)}"


_groups = itertools.count()


class ResponseDroppingProxy:
    """Proxy of a broker that closes the connection instead of forwarding the responses to chosen requests."""

    def __init__(self, cluster: Cluster, broker: str, drops: Callable[[int, int], bool]) -> None:
        """Start the proxy.

        `drops(code, number)` returns True if the response to the `number`-th request with this code, from 0,
        is to be dropped.
        """
        self._cluster = cluster
        self._target = cluster.ports[broker]
        self._drops = drops
        self._counts: dict[int, int] = {}
        self.dropped_count = 0
        self._server = cluster.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from actors.wire.command import HEADER_LENGTH_MASK, PREFIX, decode_command

        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._target)
        dropped: set[int] = set()

        async def forward(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, are_responses: bool
        ) -> None:
            while True:
                prefix = await source.readexactly(PREFIX.size)
                total, mark = PREFIX.unpack(prefix)
                rest = await source.readexactly(total - 4)
                length = mark & HEADER_LENGTH_MASK
                command = decode_command(rest[:length], mark >> 24, rest[length:])
                if are_responses and command.opaque in dropped:
                    self.dropped_count += 1
                    return
                if not are_responses:
                    number = self._counts.get(command.code, 0)
                    self._counts[command.code] = number + 1
                    if self._drops(command.code, number):
                        dropped.add(command.opaque)
                sink.write(prefix + rest)
                await sink.drain()

        requests = asyncio.ensure_future(forward(reader, broker_writer, are_responses=False))
        responses = asyncio.ensure_future(forward(broker_reader, writer, are_responses=True))
        await asyncio.wait({requests, responses}, return_when=asyncio.FIRST_COMPLETED)
        for each in (requests, responses):
            each.cancel()
        await asyncio.gather(requests, responses, return_exceptions=True)
        broker_writer.close()
        writer.close()

    def stop(self) -> None:
        async def close() -> None:
            self._server.close()

        self._cluster.run(close())
