"""A whole cluster in one process and without Ray: for tests, benches and a first look.

    python -m actors.host.standalone --store-root DIR

starts a nameserver, a rebalancer and one or more brokers on one event loop, says `READY host:port` (the
nameserver's) on its standard output, and serves until SIGTERM or SIGINT; then it ends in order.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import orjson
import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from actors.host import garbage
from actors.host.supervisor import GiveUp
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from store.clock import Clock, SystemClock
from store.logs import log_to_handler
from store.store_errors import StoreError
from store.store_settings import StoreSettings


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """What a standalone cluster is told. Ports are chosen by the system where they are 0."""

    store_root: Path
    nameserver_port: int = 0
    broker_port: int = 0
    """The first broker's; each of the others has one that is higher by 10, as RocketMQ's examples have it."""
    brokers: int = 1
    cluster_name: str = "DefaultCluster"
    auto_create_topics: bool = True
    store: StoreSettings = field(default_factory=lambda: StoreSettings.model_validate({}))
    with_rebalancer: bool = True
    adopt_store: bool = False
    """Whether stores that RocketMQ wrote are taken over."""


class ServiceFailed(Exception):
    """A service of the cluster cannot go on; the message is the reason."""


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


class StandaloneCluster:
    """Nameserver, rebalancer and brokers, in this order; `stop` ends them in the other."""

    def __init__(self, settings: StandaloneSettings, clock: Clock, give_up: GiveUp | None = None) -> None:
        self.settings = settings
        self._give_up = give_up
        self.brokers: list[BrokerService] = []
        self.nameserver_address = ""
        self.rebalancer_address = ""
        self._clock = clock
        self._started: list[_Stoppable] = []

    async def start(self) -> None:
        """Start all. Raises what the first that cannot start raises; those before it are stopped again."""
        try:
            await self._start_all()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all that has been started."""
        while self._started:
            await self._started.pop().stop()

    def describe(self) -> dict[str, object]:
        """Where everything is."""
        return {
            "nameserver": self.nameserver_address,
            "rebalancer": self.rebalancer_address,
            "brokers": {broker.settings.broker_name: broker.address for broker in self.brokers},
        }

    async def _start_all(self) -> None:
        settings, clock = self.settings, self._clock
        nameserver = build_nameserver(
            NameserverSettings.model_validate({"listen_port": settings.nameserver_port}), clock, self._give_up
        )
        await nameserver.start()
        self._started.append(nameserver)
        self.nameserver_address = nameserver.address
        if settings.with_rebalancer:
            rebalancer = build_rebalancer(
                RebalancerSettings.model_validate(
                    {
                        "nameservers": [nameserver.address],
                        "data_dir": settings.store_root / "rebalancer-0",
                    }
                ),
                clock,
                self._give_up,
            )
            await rebalancer.start()
            self._started.append(rebalancer)
            self.rebalancer_address = rebalancer.address
        for number in range(settings.brokers):
            broker = BrokerService(self._broker_settings(number), clock, self._give_up)
            await broker.start()
            self._started.append(broker)
            self.brokers.append(broker)

    def _broker_settings(self, number: int) -> BrokerSettings:
        settings = self.settings
        name = f"broker-{chr(ord('a') + number)}"
        return BrokerSettings(
            cluster_name=settings.cluster_name,
            broker_name=name,
            listen_port=settings.broker_port + 10 * number if settings.broker_port else 0,
            nameservers=[self.nameserver_address],
            rebalancers=[self.rebalancer_address] if self.rebalancer_address else [],
            store_root=settings.store_root / f"{name}-0",
            auto_create_topics=settings.auto_create_topics,
            adopt_store=settings.adopt_store,
            store=settings.store,
        )


def parse_arguments(arguments: Sequence[str]) -> tuple[StandaloneSettings, bool]:
    """The settings, and whether to describe the cluster as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m actors.host.standalone", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--store-root", type=Path, required=True, help="where the brokers keep their stores")
    parser.add_argument("--nameserver-port", type=int, default=9876, help="0: any that is free")
    parser.add_argument("--broker-port", type=int, default=10911, help="of the first; 0: any that is free")
    parser.add_argument("--brokers", type=int, default=1, help="how many brokers (default 1)")
    parser.add_argument("--cluster", default="DefaultCluster", help="the cluster's name")
    parser.add_argument("--flush", choices=["sync", "async"], default="sync", help="default sync")
    parser.add_argument(
        "--auto-create-topics", action=argparse.BooleanOptionalAction, default=True, help="default yes"
    )
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other setting of the store, as commit_log_file_bytes=67108864",
    )
    parser.add_argument(
        "--rebalancer",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with a rebalancer (default yes)",
    )
    parser.add_argument("--adopt-store", action="store_true", help="take over a store that RocketMQ wrote")
    parser.add_argument("--json", action="store_true", help="print all addresses as JSON before READY")
    given = parser.parse_args(arguments)
    store = dict(pair.partition("=")[::2] for pair in given.store)
    return (
        StandaloneSettings(
            store_root=given.store_root,
            nameserver_port=given.nameserver_port,
            broker_port=given.broker_port,
            brokers=given.brokers,
            cluster_name=given.cluster,
            auto_create_topics=given.auto_create_topics,
            with_rebalancer=given.rebalancer,
            adopt_store=given.adopt_store,
            store=StoreSettings.model_validate({"flush": given.flush, **store}),
        ),
        given.json,
    )


async def run(settings: StandaloneSettings, *, as_json: bool) -> None:
    """Serve until a signal to stop comes. Raises ServiceFailed when one of the services gives up."""
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
    garbage.settle()
    if as_json:
        sys.stdout.write(orjson.dumps(cluster.describe()).decode() + "\n")
    sys.stdout.write(f"READY {cluster.nameserver_address}\n")
    sys.stdout.flush()
    try:
        await stop.wait()
    finally:
        await cluster.stop()
    if reasons:
        raise ServiceFailed(reasons[0])


def main() -> None:
    """Run what the command line says. Standard output is for addresses, standard error for the log."""
    log_to_handler(logging.StreamHandler(sys.stderr))
    settings, as_json = parse_arguments(sys.argv[1:])
    try:
        uvloop.run(run(settings, as_json=as_json))
    except (StoreError, OSError, ServiceFailed) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
