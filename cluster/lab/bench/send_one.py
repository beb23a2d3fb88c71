"""send-one: send messages one at a time with the blocking producer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cluster.client import Producer
from cluster.lab.bench.broker import bench_cluster
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchOptions
from cluster.lab.bench.result import BenchResult, Run, percentile
from cluster.lab.bench.sending import await_arrival, make_topic

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
            _send_for(producer, "warm", bodies, options.warm_up_s)
            run = _send_for(producer, "bench", bodies, options.seconds)
            await_arrival(cluster.nameservers, "bench", run.messages or 0, None)
            runs.append(run)
    parameters = {"flush": options.flush, "body_bytes": options.body_bytes, "queues": QUEUES}
    return [BenchResult("send-one", runs, parameters)]


def _send_for(producer: Producer, topic: str, bodies: Sequence[bytes], seconds: float) -> Run:
    """Send one message at a time for `seconds`, at least one."""
    taken_ms: list[float] = []
    started = before = time.perf_counter()
    while not taken_ms or before - started < seconds:
        count = len(taken_ms)
        producer.send(topic, bodies[count % len(bodies)], keys=f"key-{count}", tags="one")
        after = time.perf_counter()
        taken_ms.append((after - before) * 1e3)
        before = after
    taken_ms.sort()
    count = len(taken_ms)
    p50_ms, p99_ms = percentile(taken_ms, 0.5), percentile(taken_ms, 0.99)
    return Run(before - started, count, count * len(bodies[0]), p50_ms, p99_ms)
