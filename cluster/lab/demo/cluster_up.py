"""Starts and stops the demo's cluster: `configs/local.yaml` on free ports, on an embedded Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actors.host.ray_port import ActorName, ActorNotFound, ActorUnavailable
from actors.host.service_host import State
from cluster.control.fleet import actor_status
from cluster.control.launch_report import Reporter
from cluster.control.session.environment import TOKEN_PATH_ENV
from cluster.control.session.ray_head import end_processes
from cluster.control.topology.topology import DEFAULT_NAMESPACE
from cluster.launch import leave_embedded, up
from cluster.paths import HOME_ENV

VICTIM = "broker-b-0"
CONSOLE = "console-0"
STATUS_TIMEOUT_S = 2.0
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
    # Give Ray at least two CPUs, even on a machine with one core, because RayDP reserves one for its master.
    f"ray.num_cpus={max(os.cpu_count() or 1, 2)}",
    # Small files: the demo sends only 336,776 messages.
    "broker_settings.store.commit_log_file_bytes=67108864",
    "broker_settings.store.index_slots=500000",
    "broker_settings.store.index_entries=2000000",
)


class DemoFailed(Exception):
    """A part of the demo failed. The error text contains the reason."""


@dataclass(frozen=True)
class DemoCluster:
    """A running cluster. Its broker `VICTIM` can be killed."""

    nameservers: Sequence[str]

    def kill_broker(self) -> int:
        """Kill the process of broker `VICTIM` with SIGKILL, and return its process id."""
        pid = int(_status(VICTIM)["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_broker(self, killed_pid: int, on_wait: Callable[[], None]) -> float:
        """Wait until Ray has restarted the killed broker, and return the seconds that it took.

        `on_wait` is called at each poll. Raises DemoFailed if the broker does not serve within
        RESTART_TIMEOUT_S.
        """
        killed_s = time.monotonic()
        while (waited_s := time.monotonic() - killed_s) < RESTART_TIMEOUT_S:
            on_wait()
            try:
                status = _status(VICTIM)
            except (ActorNotFound, ActorUnavailable):
                status = {}
            if status.get("pid", killed_pid) != killed_pid and status["state"] == State.SERVING:
                return waited_s
            time.sleep(POLL_S)
        raise DemoFailed(
            f"broker {VICTIM} did not restart within {RESTART_TIMEOUT_S:g} s after it was killed"
        )

    def console_address(self) -> str:
        """Return the URL of the web console, if the cluster has one."""
        return str(_status(CONSOLE)["details"]["url"])


def _status(actor: str) -> dict[str, Any]:
    return actor_status(ActorName(DEFAULT_NAMESPACE, actor), STATUS_TIMEOUT_S)


@contextmanager
def demo_cluster(home: Path, report: Reporter, *, web_console: bool = False) -> Iterator[DemoCluster]:
    """Start a cluster with its files below `home`, and stop all its processes on exit."""
    overrides = [*OVERRIDES, *(("consoles=[{listen_port: 0}]",) if web_console else ())]
    # A separate token file: every later Ray on this machine would require a token in the user's home.
    os.environ |= {HOME_ENV: str(home), TOKEN_PATH_ENV: str(home / "ray-token")}
    # Ray creates its sockets in this directory. The operating system limits the length of socket paths.
    if len(str(home)) <= MAX_RAY_ROOT_CHARACTERS:
        os.environ.setdefault(RAY_ROOT_ENV, str(home))
    try:
        yield DemoCluster(up(None, overrides, report=report, embedded=True).nameservers)
    finally:
        _stop_everything()


def _stop_everything() -> None:
    """Stop Ray and all child processes of this process, including those of Spark."""
    signals = (signal.SIGINT, signal.SIGTERM)  # a second Ctrl-C would end the cleanup too early
    former = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    # List the child processes first: when Ray has stopped, its orphans are no longer children of this one.
    processes = psutil.Process().children(recursive=True)
    try:
        leave_embedded()
        end_processes(processes, END_TIMEOUT_S)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
