"""Options of the benchmarks of this package, and what several of them share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.lab.bench.broker import SOURCE_ROOT
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchOptions

LOG_POOL_ROWS = 250_000
RECORD_OVERHEAD_BYTES = 165
"""Approximate size of the record of a benchmark message, without its body."""


@dataclass(frozen=True)
class InternalsOptions(BenchOptions):
    """Options of a benchmark run, with the sizes of these benchmarks."""

    log_bytes: int = 2 * 1024**3
    """Size of the log that the recovery benchmark reads."""
    queues: int = 20_000
    """Number of queues in the many-queues, interference and hostile benchmarks."""
    backlog: int = 50_000_000
    """Number of messages stored before the backlog benchmark measures."""
    cold_bytes: int = 4 * 1024**3
    """Size of the files that are evicted from the page cache before the interference benchmark reads them."""
    connections: int = 5_000
    """Number of connections in the connections benchmark; each holds ten pulls."""


def log_pool(log_bytes: int, body_bytes: int) -> tuple[MessagePool, int]:
    """Return a pool and how many times to send it for a log of about `log_bytes` bytes."""
    record_bytes = body_bytes + RECORD_OVERHEAD_BYTES
    pool = MessagePool(min(LOG_POOL_ROWS, log_bytes // record_bytes), body_bytes)
    return pool, -(-log_bytes // (pool.rows * record_bytes))


def bench_process(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start `python -m module` in a separate process with pipes to its standard input and output."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def disk_bytes(directory: Path) -> int:
    """Return the bytes allocated on disk for the files below `directory`."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))
