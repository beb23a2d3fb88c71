"""send-one: send messages one at a time with the blocking producer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from cluster.bench.broker import bench_cluster
from cluster.bench.messages import MessagePool
from cluster.bench.options import BenchOptions
from cluster.bench.result import BenchResult, Run, percentile
from cluster.bench.sending import await_arrival, make_topic
from cluster.bench.waits import Waits
from cluster.client import Producer

BODIES = 1000
QUEUES = 4


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with the flush mode of the options."""
    pool = MessagePool(BODIES, options.body_bytes)
    bodies = [pool.body(row) for row in range(BODIES)]
    runs = []
    for _ in options.numbered_runs(f"send-one, {options.flush} flush"):
        with bench_cluster(options) as cluster, Producer(cluster.nameservers) as producer:
            for topic in ("warm", "bench"):
                make_topic(cluster.nameservers, topic, QUEUES)
            send_for(producer, "warm", bodies, options.warm_up_s)
            run = send_for(producer, "bench", bodies, options.seconds).run
            await_arrival(cluster.nameservers, "bench", run.messages or 0, None)
            runs.append(run)
    parameters = {"flush": options.flush, "body_bytes": options.body_bytes, "queues": QUEUES}
    return [BenchResult("send-one", runs, parameters)]


class Sent(NamedTuple):
    """A run, and its longest send: measured, and without stolen CPU time (`longest_own_ms`, see `Waits`)."""

    run: Run
    longest_ms: float
    longest_own_ms: float


def send_for(producer: Producer, topic: str, bodies: Sequence[bytes], seconds: float) -> Sent:
    """Send one message at a time for `seconds`, at least one."""
    started = before = time.perf_counter()
    waits = Waits(started)
    taken_ms = waits.taken_ms
    while not taken_ms or before - started < seconds:
        count = len(taken_ms)
        producer.send(topic, bodies[count % len(bodies)], keys=f"key-{count}", tags="one")
        after = time.perf_counter()
        before = time.perf_counter() if waits.add(before, after) else after
    taken_ms.sort()
    count = len(taken_ms)
    p50_ms, p99_ms = percentile(taken_ms, 0.5), percentile(taken_ms, 0.99)
    run = Run(before - started, count, count * len(bodies[0]), p50_ms, p99_ms)
    return Sent(run, taken_ms[-1], waits.longest_own_ms)
