"""The demo's cluster: `configs/local.yaml` on free ports, on a Ray that lives and dies with this process."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actors.host.ray_port import ActorName, ActorNotFound, ActorUnavailable, call
from actors.host.service_host import State
from cluster.launch import leave_embedded, up
from cluster.launch_report import Report
from cluster.paths import HOME_ENV
from cluster.session.environment import TOKEN_PATH_ENV
from cluster.session.ray_head import end_processes
from cluster.topology.topology import DEFAULT_NAMESPACE

VICTIM = "broker-b-0"
CALL_TIMEOUT_S = 2.0
RESTART_TIMEOUT_S = 60.0
POLL_S = 0.2
END_TIMEOUT_S = 10.0
RAY_ROOT_ENV = "RAY_TMPDIR"
MAX_RAY_ROOT_CHARACTERS = 40

OVERRIDES = (
    "nameservers.0.listen_port=0",
    "brokers.broker-a.listen_port=0",
    "brokers.broker-b.listen_port=0",
    "ray.object_store_memory_bytes=209715200",
    # Two cores are enough, but Ray must believe in them: RayDP takes one to place its master.
    f"ray.num_cpus={max(os.cpu_count() or 1, 2)}",
    # Sizes for a third of a million messages, not for a terabyte.
    "broker_settings.store.commit_log_file_bytes=67108864",
    "broker_settings.store.index_slots=500000",
    "broker_settings.store.index_entries=2000000",
)


class DemoFailed(Exception):
    """The demo could not go on; the message says why."""


@dataclass(frozen=True)
class DemoCluster:
    """Where clients find it, and how to kill one of its brokers."""

    nameservers: Sequence[str]

    def kill_broker(self) -> int:
        """End a broker's process as `kill -9` does; gives its process id."""
        pid = int(self._status()["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_broker(self, killed_pid: int, on_wait: Callable[[], None]) -> float:
        """Wait until Ray has the broker back and it serves; gives the seconds. Raises `DemoFailed`."""
        killed_s = time.monotonic()
        while (waited_s := time.monotonic() - killed_s) < RESTART_TIMEOUT_S:
            on_wait()
            try:
                status = self._status()
            except (ActorNotFound, ActorUnavailable):
                status = {}
            if status.get("pid", killed_pid) != killed_pid and status["state"] == State.SERVING:
                return waited_s
            time.sleep(POLL_S)
        raise DemoFailed(f"{VICTIM} did not come back within {RESTART_TIMEOUT_S:g} s")

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = call(
            ActorName(DEFAULT_NAMESPACE, VICTIM), "raymq_status", timeout_s=CALL_TIMEOUT_S
        )
        return status


@contextmanager
def demo_cluster(home: Path, report: Report) -> Iterator[DemoCluster]:
    """Give the running cluster, its files below `home`; whatever happens, none of it is left running."""
    # A token of its own: one in the user's home would make every later Ray of this machine want it.
    os.environ |= {HOME_ENV: str(home), TOKEN_PATH_ENV: str(home / "ray-token")}
    # Ray's sockets lie below it and need short paths; where they cannot be, Ray keeps its own place.
    if len(str(home)) <= MAX_RAY_ROOT_CHARACTERS:
        os.environ.setdefault(RAY_ROOT_ENV, str(home))
    try:
        yield DemoCluster(up(None, OVERRIDES, report=report, embedded=True).nameservers)
    finally:
        with ignore_signals():
            end_everything()


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Let nobody interrupt the cleaning up: a second Ctrl-C would leave processes behind."""
    signals = (signal.SIGINT, signal.SIGTERM)
    former = [signal.signal(number, signal.SIG_IGN) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, former, strict=True):
            signal.signal(number, handler)


@contextmanager
def temporary_home() -> Iterator[Path]:
    """Give a directory for the demo's stores and logs, which is gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="raymq-demo-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def end_everything() -> None:
    """End Ray and every process below this one, Spark's among them."""
    # Noted before: what loses its parent is no longer found below this process.
    processes = psutil.Process().children(recursive=True)
    leave_embedded()
    end_processes(processes, END_TIMEOUT_S)
