"""A cluster in one process that tests kill and restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from tests.eventually import LIMIT_S
from tests.ports import free_port

REPO = Path(__file__).parent.parent.parent


class StandaloneProcess:
    """Nameserver, rebalancer and broker in one separate process; a restart uses the same ports."""

    def __init__(self, root: Path, options: Sequence[str] = ()) -> None:
        """Start the process. `options` are further ones of `cluster.standalone`."""
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._ports = [free_port(-2), free_port(1, -2)]  # slaves of a master use the port after its own
        self.start()

    def start(self) -> None:
        command = [
            sys.executable, "-m", "cluster.standalone", "--json", "--store-root", str(self._root),
            "--nameserver-port", str(self._ports[0]), "--broker-port", str(self._ports[1]),
            "--store", "commit_log_file_bytes=16777216", "--store", "index_slots=5000",
            "--store", "index_entries=20000", *self._options,
        ]  # fmt: skip
        log = (self._root / "log").open("ab")
        self.process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=log)
        log.close()
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, f"the process has failed:\n{(self._root / 'log').read_text()[-2000:]}"
        ready = orjson.loads(first)
        assert self.process.stdout.readline().startswith(b"READY")
        self.nameserver, self.broker = ready["nameserver"], ready["brokers"]["broker-a"]

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        self.process.terminate()
        self._wait()

    def _wait(self) -> None:
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the test fails, but leaves no process behind
            raise
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Pause a process with SIGSTOP, and continue it at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
