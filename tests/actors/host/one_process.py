"""Runs one process of a cluster until its standard input ends: `one_process.py KIND SETTINGS_AS_JSON`.

It runs with the code on PYTHONPATH, which may be of an older version; it prints its address.
"""

import asyncio
import json
import sys
from typing import Any

from store.common.clock import SystemClock


def build(kind: str, given: dict[str, Any]) -> Any:
    """Return the service of a process."""
    clock = SystemClock()
    match kind:
        case "nameserver":
            from actors.nameserver.nameserver_settings import NameserverSettings
            from actors.nameserver.service import build_nameserver

            return build_nameserver(NameserverSettings.model_validate(given), clock)
        case "rebalancer":
            from actors.rebalancer.rebalancer_settings import RebalancerSettings
            from actors.rebalancer.service import build_rebalancer

            return build_rebalancer(RebalancerSettings.model_validate(given), clock)
        case "broker":
            from actors.broker.broker_settings import BrokerSettings
            from actors.broker.service import BrokerService

            return BrokerService(BrokerSettings.model_validate(given), clock)
        case "gateway":
            from actors.gateway.gateway_settings import GatewaySettings
            from actors.gateway.service import GatewayService

            return GatewayService(GatewaySettings.model_validate(given), clock)
    raise ValueError(kind)


async def serve(kind: str, given: dict[str, Any]) -> None:
    """Serve, answer each line of the input with the figures, and stop when the input ends."""
    service = build(kind, given)
    await service.start()
    sys.stdout.write(f"{service.address}\n")
    sys.stdout.flush()
    while await asyncio.to_thread(sys.stdin.readline):
        sys.stdout.write(json.dumps(service.describe(), default=str) + "\n")
        sys.stdout.flush()
    await service.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
