"""interference: send latency while the broker does other work that could block its event loop.

The phases, each compared with a quiet time on the same broker just before it:

    backlog       pull a backlog on a broker that was just started, without its files in the page cache
    queries       search by key and time on a broker that was just started, likewise without page cache
    offsets       commit and save the offsets of thousands of queues
    connections   open and close a thousand connections repeatedly
    unread        one peer sends pulls and never reads the responses
    roll          the log rolls to a new file, and the oldest file is deleted
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from actors.host.loop_lag import longest_us, percentile_us
from benchmarks.internals.disturbances import ROLL_BYTES_PER_S
from benchmarks.internals.options import LOG_POOL_ROWS, RECORD_OVERHEAD_BYTES, InternalsOptions, bench_process
from benchmarks.internals.waits import Sent, send_for
from benchmarks.processes import anonymous_bytes, stop_broker
from cluster.client import Admin, Producer
from cluster.lab.bench.broker import BenchCluster, bench_root, running
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult
from cluster.lab.bench.sending import fill, make_topic

COLD_TOPIC = "cold"
CONNECTIONS = 1000
BROKER = "broker-a"
END_TIMEOUT_S = 60.0
MIB = 1024 * 1024


class Phase(NamedTuple):
    """Name and NUMBER argument of a disturbance (see `disturbances`)."""

    name: str
    number: int


class Latencies(NamedTuple):
    """Latencies of the sends, and lag of the broker's event loop, in milliseconds."""

    sent: Sent
    lag_p50_ms: float
    lag_p99_ms: float
    lag_longest_ms: float


def run(options: InternalsOptions) -> list[BenchResult]:
    """Measure each disturbance for `options.seconds`, after a quiet time half as long."""
    rows = min(LOG_POOL_ROWS, max(options.cold_bytes // (options.body_bytes + RECORD_OVERHEAD_BYTES), 1))
    pool = MessagePool(rows, options.body_bytes)
    rounds = max(options.cold_bytes // (rows * (options.body_bytes + RECORD_OVERHEAD_BYTES)), 1)
    file_bytes = min(1024 * MIB, max(options.cold_bytes // 4, 4 * MIB))
    settings = (f"commit_log_file_bytes={file_bytes}", "file_reserved_time_h=0", "delete_file_batch_max=1")
    results = []
    with bench_root(options) as root:
        options.progress(f"interference: writing {rounds * rows:,} messages")
        with running(root, options.flush, settings) as cluster:
            fill(cluster.nameservers, COLD_TOPIC, pool, rounds)
            stop_broker(cluster)
        others = (
            Phase("offsets", options.queues),
            Phase("connections", CONNECTIONS),
            Phase("unread", 0),
            Phase("roll", 0),
        )
        for phases in ((Phase("backlog", 0),), (Phase("queries", rows),), others):
            with running(root, options.flush, settings) as cluster:
                for phase in phases:
                    options.progress(f"interference: {phase.name}")
                    results.append(_measure(phase, cluster, options, file_bytes))
                stop_broker(cluster)
    return results


def _measure(phase: Phase, cluster: BenchCluster, options: InternalsOptions, file_bytes: int) -> BenchResult:
    """Send on a quiet broker, then on a disturbed one."""
    drop_cached(cluster.store)
    with Admin(cluster.nameservers) as admin, Producer(cluster.nameservers) as producer:
        make_topic(cluster.nameservers, "bench", 4)
        make_topic(cluster.nameservers, "disturbance", max(phase.number, 8) if phase.name == "offsets" else 8)
        address = admin.route("bench").addresses[BROKER][0]
        if phase.name == "roll":
            _approach_the_next_file(admin, producer, file_bytes)
        _send(admin, producer, options, options.warm_up_s)
        quiet = _send(admin, producer, options, options.seconds / 2)
        if phase.name == "roll":
            phase = Phase("roll", _to_the_next_file(admin, file_bytes))
        before_bytes = anonymous_bytes(cluster.process.pid)
        topic = "disturbance" if phase.name in ("roll", "offsets") else COLD_TOPIC
        with _disturbance(phase, address, topic) as process:
            disturbed = _send(admin, producer, options, options.seconds)
            grown_bytes = anonymous_bytes(cluster.process.pid) - before_bytes
            outcome = {**_end(phase, process), "anonymous_grown_mib": grown_bytes / MIB}
    return BenchResult(
        f"interference-{phase.name}", [disturbed.sent.run], _parameters(quiet, disturbed, outcome)
    )


def _send(admin: Admin, producer: Producer, options: InternalsOptions, seconds: float) -> Latencies:
    before = _lag_buckets(admin)
    bodies = [os.urandom(options.body_bytes) for _ in range(16)]
    sent = send_for(producer, "bench", bodies, seconds)
    lag = [after - was for after, was in zip(_lag_buckets(admin), before, strict=True)]
    lags = (percentile_us(lag, 0.5), percentile_us(lag, 0.99), longest_us(lag))
    return Latencies(sent, *(each / 1000 for each in lags))


def _lag_buckets(admin: Admin) -> Sequence[int]:
    return [int(count) for count in admin.broker_runtime(BROKER)["loopLagBuckets"].split()]


def _parameters(quiet: Latencies, disturbed: Latencies, outcome: Mapping[str, float]) -> dict[str, object]:
    quiet_p99_ms, p99_ms = quiet.sent.run.p99_ms or 0.0, disturbed.sent.run.p99_ms or 0.0
    figures = {
        "quiet_p50_ms": quiet.sent.run.p50_ms or 0.0,
        "quiet_p99_ms": quiet_p99_ms,
        "quiet_longest_ms": quiet.sent.longest_ms,
        "quiet_longest_own_ms": quiet.sent.longest_own_ms,
        "longest_ms": disturbed.sent.longest_ms,
        "longest_own_ms": disturbed.sent.longest_own_ms,
        "p99_over_quiet": p99_ms / quiet_p99_ms if quiet_p99_ms else 0.0,
        "lag_p50_ms": disturbed.lag_p50_ms,
        "lag_p99_ms": disturbed.lag_p99_ms,
        "lag_longest_ms": disturbed.lag_longest_ms,
        **outcome,
    }
    return {name: float(f"{value:.4g}") if value < 1000 else round(value) for name, value in figures.items()}


def _approach_the_next_file(admin: Admin, producer: Producer, file_bytes: int) -> None:
    """Fill the last log file until one more second of the roll disturbance makes it roll."""
    body = os.urandom(MIB)
    for _ in range((_to_the_next_file(admin, file_bytes) - ROLL_BYTES_PER_S) // MIB):
        producer.send("disturbance", body)


def _to_the_next_file(admin: Admin, file_bytes: int) -> int:
    """Return the number of bytes until the log rolls to a new file, plus half a MiB."""
    written = int(admin.broker_runtime(BROKER)["commitLogMaxOffset"])
    return file_bytes - written % file_bytes + MIB // 2


def _disturbance(phase: Phase, address: str, topic: str) -> subprocess.Popen[str]:
    process = bench_process("benchmarks.internals.disturbances", phase.name, address, topic, phase.number)
    assert process.stdout is not None
    if process.stdout.readline() != "GO\n":
        process.kill()
        raise BenchFailed(f"disturbance {phase.name} did not start: see its output above")
    return process


def _end(phase: Phase, process: subprocess.Popen[str]) -> Mapping[str, float]:
    """Stop a disturbance and return its counts. Raises BenchFailed if it failed or does not stop."""
    try:
        out, _ = process.communicate(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise BenchFailed(f"disturbance {phase.name} did not stop within {END_TIMEOUT_S:g} s") from None
    if process.returncode:
        raise BenchFailed(f"disturbance {phase.name} failed: see its output above")
    found: Mapping[str, float] = json.loads(out)
    return found


def drop_cached(store: Path) -> None:
    """Evict the files of the store from the page cache; pages that a process maps stay resident."""
    for folder in ("commitlog", "consumequeue", "index"):
        for path in (store / folder).rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
