"""Gateway process that tests kill and restart on the same port.

    python -m tests.faults.gateway_process NAMESERVER PORT [tls]

It prints its port, and serves until SIGTERM; with `tls`, clients with and without TLS use the port.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

import uvloop

from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.service import GatewayService
from store.common.clock import SystemClock
from tests.eventually import LIMIT_S

REPO = Path(__file__).parent.parent.parent


class GatewayProcess:
    """A gateway in a process of its own."""

    def __init__(self, nameserver: str) -> None:
        """Start the process."""
        self._nameserver = nameserver
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.faults.gateway_process", self._nameserver, str(self.port)]
        self._process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


async def serve(nameserver: str, port: int, *, has_tls: bool) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tls: Literal["permissive", "disabled"] = "permissive" if has_tls else "disabled"
    settings = GatewaySettings(
        nameservers=[nameserver], listen_port=port, route_cache_ms=500, tls=tls, tls_self_signed=True
    )
    gateway = GatewayService(settings, SystemClock())
    await gateway.start()
    sys.stdout.write(f"{gateway.server.port}\n")
    sys.stdout.flush()
    await stop.wait()
    await gateway.stop()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), has_tls="tls" in sys.argv[3:]))
