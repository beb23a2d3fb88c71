"""Run a whole cluster in one process, without Ray: for tests and benchmarks.

    python -m cluster.standalone --store-root DIR

starts a nameserver, a rebalancer and one or more brokers on one event loop, prints `READY host:port` (the
address of the nameserver), and serves until SIGTERM or SIGINT. Then it stops all services and exits.

    python -m cluster.standalone --store-root DIR --slave-of HOST:PORT

starts one slave of the broker that is registered as broker-a with the nameserver at HOST:PORT.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import orjson
import uvloop

from actors.access.access_file import FILE_NAME
from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from actors.host import garbage
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from actors.supervisor import GiveUp
from store.common.clock import Clock, SystemClock
from store.common.logs import log_to_handler
from store.store_errors import StoreError
from store.store_settings import StoreSettings


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """The settings of a standalone cluster. Port 0 chooses a free port."""

    store_root: Path
    nameserver_port: int = 0
    broker_port: int = 0
    """The port of the first broker; each further broker has a port 10 higher, as in RocketMQ's examples."""
    brokers: int = 1
    cluster_name: str = "DefaultCluster"
    auto_create_topics: bool = True
    store: StoreSettings = field(default_factory=lambda: StoreSettings.model_validate({}))
    with_rebalancer: bool = True
    gateway_port: int | None = None
    """The port of the gateway for gRPC clients; None starts no gateway."""
    adopt_store: bool = False
    """Whether stores that RocketMQ or other brokers wrote may be opened."""
    inner_credentials_file: Path | None = None
    """The keys of the inner user; if set, requests need signatures and permissions."""
    tls: Mapping[str, str] = field(default_factory=dict)
    """Settings of TLS of all services, such as `tls_ca`."""
    broker: Mapping[str, str] = field(default_factory=dict)
    """More settings of the brokers."""
    slave_of: str = ""
    """The address of another nameserver: start only a slave of the broker that is registered there."""

    @property
    def access(self) -> dict[str, object]:
        """The settings of access control and TLS of all services."""
        if self.inner_credentials_file is None:
            return dict(self.tls)
        keys = {"authentication_enabled": True, "inner_credentials_file": self.inner_credentials_file}
        return {**self.tls, **keys}


class ServiceFailed(Exception):
    """A service of the cluster has failed permanently; the message is the reason."""


class Service(Protocol):
    """What is started and stopped as a whole."""

    async def start(self) -> None:
        """Start it."""

    async def stop(self) -> None:
        """Stop it."""


class StandaloneCluster:
    """A nameserver, a rebalancer and brokers, started in this order and stopped in reverse order.

    With `slave_of`, one slave.
    """

    def __init__(self, settings: StandaloneSettings, clock: Clock, give_up: GiveUp | None = None) -> None:
        self.settings = settings
        self._give_up = give_up
        self.brokers: list[BrokerService] = []
        self.nameserver_address = ""
        self.rebalancer_address = ""
        self.gateway_address = ""
        self._clock = clock
        self._started: list[Service] = []

    async def start(self) -> None:
        """Start all services. If one cannot be started, stop the others and raise its exception."""
        try:
            await self._start_all()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all services that were started."""
        while self._started:
            await self._started.pop().stop()

    async def add(self, service: Service) -> None:
        """Start a service; it is stopped before those that were started earlier."""
        await service.start()
        self._started.append(service)

    def describe(self) -> dict[str, object]:
        """Return the addresses of all services."""
        return {
            "nameserver": self.nameserver_address,
            "rebalancer": self.rebalancer_address,
            "gateway": self.gateway_address,
            "brokers": {broker.settings.broker_name: broker.address for broker in self.brokers},
        }

    async def _start_all(self) -> None:
        if self.settings.slave_of:
            self.nameserver_address = self.settings.slave_of
        else:
            await self._start_nameserver()
        for number in range(self.settings.brokers):
            broker = BrokerService(self._broker_settings(number), self._clock, self._give_up)
            await self.add(broker)
            self.brokers.append(broker)
        if self.settings.gateway_port is not None:
            await self._start_gateway(self.settings.gateway_port)

    async def _start_nameserver(self) -> None:
        """Start the nameserver and the rebalancer."""
        settings, clock = self.settings, self._clock
        nameserver = build_nameserver(
            NameserverSettings.model_validate(
                {
                    "listen_port": settings.nameserver_port,
                    "cluster_name": settings.cluster_name,
                    # RocketMQ's tools cannot sign as the inner user, so they need a user of the first broker.
                    "access_file": self._broker_root(0).absolute() / "config" / FILE_NAME,
                    **settings.access,
                }
            ),
            clock,
            self._give_up,
        )
        await self.add(nameserver)
        self.nameserver_address = nameserver.address
        if settings.with_rebalancer:
            rebalancer = build_rebalancer(
                RebalancerSettings.model_validate(
                    {
                        "nameservers": [nameserver.address],
                        "data_dir": settings.store_root / "rebalancer-0",
                        **settings.access,
                    }
                ),
                clock,
                self._give_up,
            )
            await self.add(rebalancer)
            self.rebalancer_address = rebalancer.address

    async def _start_gateway(self, port: int) -> None:
        # Its protobuf messages take 30 ms to import.
        from actors.gateway.gateway_settings import GatewaySettings
        from actors.gateway.service import GatewayService

        given = {"listen_port": port, "nameservers": [self.nameserver_address], **self.settings.access}
        gateway = GatewayService(GatewaySettings.model_validate(given), self._clock, self._give_up)
        await self.add(gateway)
        self.gateway_address = gateway.address

    @property
    def _replica(self) -> int:
        return 1 if self.settings.slave_of else 0

    def _broker_root(self, number: int) -> Path:
        return self.settings.store_root / f"{_broker_name(number)}-{self._replica}"

    def _broker_settings(self, number: int) -> BrokerSettings:
        settings = self.settings
        return BrokerSettings(
            cluster_name=settings.cluster_name,
            broker_name=_broker_name(number),
            replica=self._replica,
            role="slave" if settings.slave_of else "master",
            listen_port=settings.broker_port + 10 * number if settings.broker_port else 0,
            nameservers=[self.nameserver_address],
            rebalancers=[self.rebalancer_address] if self.rebalancer_address else [],
            store_root=self._broker_root(number),
            auto_create_topics=settings.auto_create_topics,
            adopt_store=settings.adopt_store,
            store=settings.store,
            authorization_enabled=settings.inner_credentials_file is not None,
            **settings.access,
            **cast("Mapping[str, Any]", settings.broker),
        )


def _broker_name(number: int) -> str:
    return f"broker-{chr(ord('a') + number)}"


def _port(text: str) -> int:
    return _number(text, 0, 65_535)


def _brokers(text: str) -> int:
    return _number(text, 1, 26)


def _number(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most:,}")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _check_ports(parser: argparse.ArgumentParser, broker: Mapping[str, str], brokers: int) -> None:
    for name, value in broker.items():
        if brokers > 1 and name.endswith("_port") and value not in ("0", "-1"):
            parser.error(
                f"--broker {name}={value} is one port for {brokers} brokers: give 0 for free ports, or start "
                "one broker"
            )


def parse_arguments(arguments: Sequence[str]) -> tuple[StandaloneSettings, bool]:
    """Parse the command line; return the settings, and True if `--json` was given."""
    parser = argparse.ArgumentParser(
        prog="python -m cluster.standalone", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    switch: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": True}
    pairs: dict[str, Any] = {"action": "append", "type": _pair, "default": [], "metavar": "KEY=VALUE"}
    add("--store-root", type=Path, required=True, help="directory of the brokers' stores")
    add("--nameserver-port", type=_port, default=9876, help="default 9876; 0: a free port")
    add("--broker-port", type=_port, default=10911, help="first port; 0: a free port")
    add("--brokers", type=_brokers, default=1, help="number of brokers (default 1)")
    add(
        "--cluster",
        dest="cluster_name",
        metavar="CLUSTER",
        default="DefaultCluster",
        help="name of the cluster",
    )
    add("--flush", choices=["sync", "async"], default="sync", help="flush mode of the brokers (default sync)")
    add("--auto-create-topics", **switch, help="create topics on the first send (default yes)")
    help_text = "start only a slave of the broker that is registered with the nameserver at this address"
    add("--slave-of", default="", metavar="HOST:PORT", help=help_text)
    add("--store", **pairs, help="another setting of the store, such as commit_log_file_bytes=67108864")
    add("--broker", **pairs, help="another setting of the brokers, such as transaction_check_max=5")
    add("--gateway-port", type=_port, help="start a gateway for gRPC clients on this port; 0: a free port")
    add("--tls", **pairs, help="a setting of TLS of all services, such as tls=enforced")
    add("--rebalancer", **switch, dest="with_rebalancer", help="start a rebalancer (default yes)")
    add("--adopt-store", action="store_true", help="open a store that RocketMQ or another broker wrote")
    help_text = "enable access control; the file has the keys of the cluster's inner user"
    add("--inner-credentials-file", type=Path, metavar="FILE", help=help_text)
    add("--json", action="store_true", help="print all addresses as JSON before READY")
    given = vars(parser.parse_args(arguments))
    given |= {name: dict(given[name]) for name in ("store", "broker", "tls")}
    _check_ports(parser, given["broker"], given["brokers"])
    as_json = given.pop("json")
    given["store"] = StoreSettings.model_validate({"flush": given.pop("flush"), **given["store"]})
    return StandaloneSettings(**given), as_json


async def run(settings: StandaloneSettings, on_start: Callable[[StandaloneCluster], Awaitable[None]]) -> None:
    """Start, call `on_start`, and serve until SIGTERM or SIGINT.

    Raises ServiceFailed if a service fails permanently.
    """
    stop = asyncio.Event()
    reasons: list[str] = []

    def give_up(reason: str) -> None:
        reasons.append(reason)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster = StandaloneCluster(settings, SystemClock(), give_up)
    await cluster.start()
    try:
        await on_start(cluster)
        garbage.freeze()
        await stop.wait()
    finally:
        await cluster.stop()
    if reasons:
        raise ServiceFailed(reasons[0])


def main() -> None:
    """Run the program. Addresses are printed to standard output, the log to standard error."""
    log_to_handler(logging.StreamHandler(sys.stderr))
    settings, as_json = parse_arguments(sys.argv[1:])

    async def print_addresses(cluster: StandaloneCluster) -> None:
        if as_json:
            sys.stdout.write(orjson.dumps(cluster.describe()).decode() + "\n")
        sys.stdout.write(f"READY {cluster.nameserver_address}\n")
        sys.stdout.flush()

    try:
        uvloop.run(run(settings, print_addresses))
    except (StoreError, OSError, ServiceFailed) as error:
        sys.exit(getattr(error, "strerror", None) or str(error))


if __name__ == "__main__":
    main()
