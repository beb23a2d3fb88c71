"""What the benchmarks measure of processes, and how they end the broker of one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from cluster.lab.bench.broker import BenchCluster
from cluster.lab.bench.options import BenchFailed

STOP_TIMEOUT_S = 60.0


def anonymous_bytes(pid: int) -> int:
    """Return the resident anonymous memory (RssAnon) of `pid`, which excludes mapped files.

    Raises OSError if the process no longer exists.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def cpu_seconds(pid: int) -> float:
    """Return the user and system CPU time of a process in seconds."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def kill_broker(cluster: BenchCluster) -> None:
    """Kill the broker with SIGKILL, as a crash would."""
    cluster.process.kill()
    cluster.process.wait()


def stop_broker(cluster: BenchCluster) -> None:
    """Shut the broker down cleanly.

    Raises BenchFailed, and kills the broker, if it runs for another `STOP_TIMEOUT_S`.
    """
    cluster.process.terminate()
    try:
        cluster.process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill_broker(cluster)
        raise BenchFailed(f"the broker did not stop within {STOP_TIMEOUT_S:g} s and was killed") from None
