"""A RayMQ slave in a process of its own, which follows the broker registered with a nameserver."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from actors.transport.clients.blocking import BlockingConnection
from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from tests.compat.peers import Started
from tests.compat.processes import Program
from tests.compat.raymq import BROKER_NAME, REPO
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

TIMEOUT_MS = 3_000


def ask(address: str, code: int) -> bytes:
    """Return the body of a broker's response."""
    with BlockingConnection(address, TIMEOUT_MS) as connection:
        return bytes(connection.exchange(RemotingCommand(code)).body)


def log_bounds(address: str) -> tuple[int, int]:
    """Return the begin and the end of a broker's CommitLog."""
    table = decode_kv_table(ask(address, RequestCode.GET_BROKER_RUNTIME_INFO))
    return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])


def log_files(store_root: Path) -> dict[str, Path]:
    """Return the files of a CommitLog by name."""
    return {path.name: path for path in sorted((store_root / "commitlog").iterdir()) if path.name.isdigit()}


def assert_logs_equal(master: Path, slave: Path, end: int) -> None:
    """Compare the CommitLogs of two stores byte by byte up to the offset `end`."""
    theirs, ours = log_files(master), log_files(slave)
    for name, path in theirs.items():
        size_bytes = min(end - int(name), path.stat().st_size)
        if size_bytes > 0:
            assert ours[name].read_bytes()[:size_bytes] == path.read_bytes()[:size_bytes], name


class Slave(Started):
    """A slave that keeps its port and its store across restarts."""

    def __init__(self, root: Path, nameserver: str, options: Sequence[str] = ()) -> None:
        """Choose the port; nothing is started. `options` are those of `cluster.standalone`."""
        self.root = root
        self.store_root = root / f"{BROKER_NAME}-1"
        self.address = ""
        self._nameserver = nameserver
        self._options = options
        self._port = free_port(-2)
        self._process: Program | None = None

    def start(self) -> Self:
        command = [
            sys.executable, "-m", "cluster.standalone", "--json", "--store-root", str(self.root),
            "--slave-of", self._nameserver, "--broker-port", str(self._port), *self._options,
        ]  # fmt: skip
        self._process = Program(command, self.root / "slave.log", cwd=REPO)
        self._process.wait_for("READY ", LIMIT_S)
        self.address = json.loads(self._process.wait_for('"brokers"', LIMIT_S))["brokers"][BROKER_NAME]
        return self

    def stop(self) -> None:
        """Terminate the process and wait for a clean shutdown."""
        if self._process is not None and self._process.is_running:
            self._process.terminate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        assert self._process is not None
        self._process.kill()

    def describe(self) -> dict[str, Any]:
        """Return the figures of the slave."""
        return dict(orjson.loads(ask(self.address, RayMQRequestCode.DESCRIBE_BROKER)))

    def follow_up_to(self, master: str) -> int:
        """Wait until the slave has the whole log of the broker at the address `master`; return its end."""

        def is_equal() -> int | None:
            try:
                end = log_bounds(master)[1]
                described = self.describe()
            except RemotingError:
                return None
            is_there = end and described["written"] == end and described["dispatched"] == end
            return end if is_there else None

        return eventually(is_equal, "the end of the master's log")
