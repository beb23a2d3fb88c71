"""connections: many open ones, each with ten pulls held; what a held pull takes, what is left for senders."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cluster.bench.broker import SOURCE_ROOT, BenchCluster, bench_cluster
from cluster.bench.options import BenchFailed, BenchOptions
from cluster.bench.result import BenchResult, Run, percentile
from cluster.bench.send_one import send_for
from cluster.bench.sending import QUEUES, make_topic
from cluster.client import Admin, Producer

PULLS_A_CONNECTION = 10
BROKER = "broker-a"
HOLD_TIMEOUT_S = 60.0


def run(options: BenchOptions) -> list[BenchResult]:
    """Send for `options.seconds` on a quiet broker, then beside all that is held, then when it is gone: a
    machine that has become slower or faster meanwhile is none of the broker's doing.
    """
    quiet, beside, held_bytes = [], [], []
    for number in range(options.runs):
        options.progress(f"connections: run {number + 1} of {options.runs}")
        with bench_cluster(options) as cluster, Admin(cluster.nameservers) as admin:
            make_topic(cluster.nameservers, "bench", QUEUES)
            make_topic(cluster.nameservers, "held", QUEUES)
            address = admin.route("bench").addresses[BROKER][0]
            with Producer(cluster.nameservers) as producer:
                _send(producer, options, options.warm_up_s)
                quiet.append(_send(producer, options, options.seconds))
                with _holding(cluster, admin, address, options.connections) as bytes_a_pull:
                    held_bytes.append(bytes_a_pull)
                    beside.append(_send(producer, options, options.seconds))
                _await_held(admin, lambda held: held == 0)
                quiet.append(_send(producer, options, options.seconds))
    result = BenchResult("connections", beside)
    before = BenchResult("connections-quiet", quiet)
    rate, quiet_rate = result.median("messages_per_s") or 0.0, before.median("messages_per_s") or 1.0
    parameters = {
        "flush": options.flush,
        "connections": options.connections,
        "held_pulls": options.connections * PULLS_A_CONNECTION,
        "bytes_a_held_pull": round(sorted(held_bytes)[len(held_bytes) // 2]),
        "rate_kept": round(rate / quiet_rate, 3),
    }
    return [BenchResult("connections", beside, parameters), before]


def _send(producer: Producer, options: BenchOptions, seconds: float) -> Run:
    bodies = [os.urandom(options.body_bytes) for _ in range(16)]
    seconds, taken_ms = send_for(producer, "bench", bodies, seconds)
    count = len(taken_ms)
    return Run(
        seconds,
        count,
        count * options.body_bytes,
        percentile(taken_ms, 0.5),
        percentile(taken_ms, 0.99),
    )


@contextmanager
def _holding(cluster: BenchCluster, admin: Admin, address: str, connections: int) -> Iterator[float]:
    """Open connections and hold pulls over them; gives the anonymous memory that each pull has taken."""
    pulls = connections * PULLS_A_CONNECTION
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.bench.held_pulls", address, "held", str(connections), "10"],
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _expect(process.stdout.readline(), "OPEN")
        before_bytes = cluster.anonymous_bytes()
        process.stdin.write("hold\n")
        process.stdin.flush()
        _expect(process.stdout.readline(), "HELD")
        _await_held(admin, lambda held: held >= pulls)
        yield (cluster.anonymous_bytes() - before_bytes) / pulls
    finally:
        process.kill()
        process.communicate()


def _await_held(admin: Admin, is_reached: Callable[[int], bool]) -> None:
    deadline_s = time.monotonic() + HOLD_TIMEOUT_S
    while not is_reached(held := int(admin.broker_runtime(BROKER)["heldPulls"])):
        if time.monotonic() > deadline_s:
            raise BenchFailed(f"the broker holds {held:,} pulls after {HOLD_TIMEOUT_S:g} s of waiting")
        time.sleep(0.05)


def _expect(line: str, word: str) -> None:
    if line.strip() != word:
        raise BenchFailed(f"the connections' process said {line!r} instead of {word}")
