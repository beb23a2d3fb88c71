"""Process of the storm: a broker, or the nameserver and the rebalancer, at addresses that a restart keeps.

    python -m tests.faults.node ROOT NAMESERVER_ADDRESS REBALANCER_ADDRESS [BROKER PORT]

It prints READY, and serves until SIGTERM. Files are small and intervals are short, so that a storm of some
minutes rolls files and timers, and checks transactions.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from store.common.clock import SystemClock
from store.common.logs import log_to_handler
from store.store_settings import StoreSettings

STORE = {
    "commit_log_file_bytes": 4 << 20,
    "consume_queue_file_bytes": 20_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}
BROKER: dict[str, Any] = {
    "register_interval_ms": 1_000,
    "transaction_timeout_ms": 500,
    "transaction_check_interval_ms": 500,
    "transaction_check_max": 1_000_000,
    "timer_roll_window_slots": 5,
    "timer_log_file_bytes": 20_000,
    "timer_flush_interval_ms": 300,
}


def services(arguments: list[str], give_up: Callable[[str], None]) -> list[Any]:
    """Build the services of this process."""
    root, clock = Path(arguments[0]), SystemClock()
    nameserver, rebalancer = arguments[1:3]
    if not arguments[3:]:
        where = {"nameservers": [nameserver], "data_dir": root / "rebalancer", **listen_at(rebalancer)}
        return [
            build_nameserver(NameserverSettings.model_validate(listen_at(nameserver)), clock, give_up),
            build_rebalancer(RebalancerSettings.model_validate(where), clock, give_up),
        ]
    name, port = arguments[3:]
    settings = BrokerSettings(
        broker_name=name,
        listen_port=int(port),
        nameservers=[nameserver],
        rebalancers=[rebalancer],
        store_root=root / name,
        store=StoreSettings.model_validate(STORE),
        **BROKER,
    )
    return [BrokerService(settings, clock, give_up)]


def listen_at(address: str) -> dict[str, Any]:
    """Return the settings of a process that listens at this address."""
    host, _, port = address.rpartition(":")
    return {"listen_host": host, "listen_port": int(port)}


async def serve(build: Callable[[Callable[[str], None]], list[Any]]) -> None:
    """Serve until SIGTERM, or until a service fails for good.

    Args:
        build: returns the services; each is to call its argument with the reason when it fails for good.
    """
    stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set_result, "")
    started = build(stop.set_result)
    for service in started:
        await service.start()
    sys.stdout.write("READY\n")
    sys.stdout.flush()
    reason = await stop
    for service in reversed(started):
        await service.stop()
    if reason:
        sys.exit(reason)


if __name__ == "__main__":
    log_to_handler(logging.StreamHandler(sys.stderr))
    uvloop.run(serve(partial(services, sys.argv[1:])))
