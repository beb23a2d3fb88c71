"""send-one: one message after the other, each acknowledged before the next, by the blocking face."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cluster.bench.broker import bench_cluster
from cluster.bench.messages import MessagePool
from cluster.bench.options import BenchOptions
from cluster.bench.result import BenchResult, Run, percentile
from cluster.bench.sending import await_arrival, make_topic
from cluster.client import Producer

BODIES = 1000
QUEUES = 4


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with the flush mode of the options."""
    pool = MessagePool(BODIES, options.body_bytes)
    bodies = [pool.body(row) for row in range(BODIES)]
    runs = []
    for number in range(options.runs):
        options.progress(f"send-one, {options.flush} flush: run {number + 1} of {options.runs}")
        with bench_cluster(options) as cluster, Producer(cluster.nameservers) as producer:
            for topic in ("warm", "bench"):
                make_topic(cluster.nameservers, topic, QUEUES)
            _send(producer, "warm", bodies, options.warm_up_s)
            run = _send(producer, "bench", bodies, options.seconds)
            await_arrival(cluster.nameservers, "bench", run.messages or 0, None)
            runs.append(run)
    parameters = {"flush": options.flush, "body_bytes": options.body_bytes, "queues": QUEUES}
    return [BenchResult("send-one", runs, parameters)]


def _send(producer: Producer, topic: str, bodies: list[bytes], seconds: float) -> Run:
    seconds, taken_ms = send_for(producer, topic, bodies, seconds)
    count = len(taken_ms)
    return Run(
        seconds,
        count,
        count * len(bodies[0]),
        percentile(taken_ms, 0.5),
        percentile(taken_ms, 0.99),
    )


def send_for(
    producer: Producer, topic: str, bodies: Sequence[bytes], seconds: float
) -> tuple[float, list[float]]:
    """Send one after the other for so long; gives the seconds, and the time of each in ms, sorted."""
    taken_ms: list[float] = []
    started = before = time.perf_counter()
    while before - started < seconds:
        count = len(taken_ms)
        producer.send(topic, bodies[count % len(bodies)], keys=f"key-{count}", tags="one")
        after = time.perf_counter()
        taken_ms.append((after - before) * 1e3)
        before = after
    taken_ms.sort()
    return before - started, taken_ms
