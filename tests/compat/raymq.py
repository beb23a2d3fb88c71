"""RayMQ: runs RayMQ's services without Ray, with the same interface as `rocketmq.RocketMQ`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.compat.peers import Peer
from tests.compat.processes import Program
from tests.eventually import LIMIT_S
from tests.ports import free_port

REPO = Path(__file__).parent.parent.parent
BROKER_NAME = "broker-a"


class RayMQ(Peer):
    """Nameserver, rebalancer and one broker in one process; they keep their ports across restarts."""

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        *,
        checkout: Path = REPO,
    ) -> None:
        """Choose the ports; nothing is started.

        `settings` are entries of RocketMQ's broker.conf, `options` those of `cluster.standalone`;
        `checkout` is the working tree to run.
        """
        self._checkout = checkout
        self._more = list(options)
        self.root = root
        self.store_root = root / "store" / f"{BROKER_NAME}-0"
        self._settings = dict(settings or {})
        self._nameserver_port = free_port()
        self._broker_port = free_port(-2, 1)
        self._process: Program | None = None
        self._addresses: dict[str, str] = {}

    @property
    def nameserver_address(self) -> str:
        return f"127.0.0.1:{self._nameserver_port}"

    @property
    def broker_address(self) -> str:
        return self._addresses[BROKER_NAME]

    @property
    def broker_pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> Program:
        assert self._process is not None, "the services were not started"
        return self._process

    def start(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "cluster.standalone",
            "--json",
            "--store-root",
            str(self.root / "store"),
        ]
        ports = ["--nameserver-port", str(self._nameserver_port), "--broker-port", str(self._broker_port)]
        self._process = Program(
            [*command, *ports, *self._options()], self.root / "raymq.log", cwd=self._checkout
        )
        self._process.wait_for("READY ", LIMIT_S)
        self._addresses = json.loads(self._process.wait_for('"brokers"', LIMIT_S))["brokers"]
        return self

    def stop(self) -> None:
        """Terminate the process and wait for a clean shutdown."""
        if self._process is not None and self._process.is_running:
            self._process.terminate()

    def stop_cleanly(self) -> None:
        """Shut down cleanly; the same as `stop`."""
        self.stop()

    def kill_broker(self) -> None:
        """Kill the process (SIGKILL)."""
        self._running.kill()

    def restart_broker(self, *, killed: bool) -> None:
        """Restart the process on the same store and ports; stop it by SIGKILL if `killed`."""
        if killed:
            self._running.kill()
        else:
            self._running.terminate()
        self.start()

    def successor(self, root: Path, options: Sequence[str]) -> RayMQ:
        """Return services with another store on the same ports; nothing is started."""
        other = RayMQ(root, self._settings, options)
        other._nameserver_port, other._broker_port = self._nameserver_port, self._broker_port
        return other

    def _options(self) -> list[str]:
        settings = dict(self._settings)
        options = []
        if settings.pop("autoCreateTopicEnable", "true") == "false":
            options.append("--no-auto-create-topics")
        flush = settings.pop("flushDiskType", "ASYNC_FLUSH")
        options += ["--flush", "sync" if flush == "SYNC_FLUSH" else "async"]
        for key, value in settings.items():
            options += ["--broker" if key.startswith("transaction") else "--store", f"{key}={value}"]
        return [*options, *self._more]
