"""send-batch: send_batch with 256 Message objects per call, and send_many with 50,000 bodies per call."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.client import Message, Producer
from cluster.lab.bench.broker import bench_cluster
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchOptions
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, await_arrival, make_topic

BATCH = 256
MANY = 50_000


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure both calls with the flush mode of the options."""
    pool = MessagePool(MANY, options.body_bytes)
    bodies = [pool.body(row) for row in range(pool.rows)]
    results = []
    for name, count, make in (("send-batch", BATCH, _batches), ("send-many", MANY, _many)):
        runs = []
        for _ in options.numbered_runs(f"{name}, {options.flush} flush"):
            with bench_cluster(options) as cluster, Producer(cluster.nameservers) as producer:
                for topic in ("warm", "bench"):
                    make_topic(cluster.nameservers, topic)
                _send(make(producer, "warm", bodies), count, options.body_bytes, options.warm_up_s)
                run = _send(make(producer, "bench", bodies), count, options.body_bytes, options.seconds)
                await_arrival(cluster.nameservers, "bench", run.messages or 0, None)
                runs.append(run)
        parameters = {
            "flush": options.flush,
            "body_bytes": options.body_bytes,
            "queues": QUEUES,
            "messages_per_call": count,
        }
        results.append(BenchResult(name, runs, parameters))
    return results


def _batches(producer: Producer, topic: str, bodies: list[bytes]) -> Callable[[int], None]:
    def send(number: int) -> None:
        first = number * BATCH
        messages = [
            Message(topic, bodies[row % MANY], "batch", f"key-{row}") for row in range(first, first + BATCH)
        ]
        producer.send_batch(messages)

    return send


def _many(producer: Producer, topic: str, bodies: list[bytes]) -> Callable[[int], None]:
    def send(number: int) -> None:
        first = number * MANY
        producer.send_many(
            topic, bodies, tags="many", keys=[f"key-{row}" for row in range(first, first + MANY)]
        )

    return send


def _send(send: Callable[[int], None], count: int, body_bytes: int, seconds: float) -> Run:
    calls = 0
    started = time.perf_counter()
    while not calls or time.perf_counter() - started < seconds:
        send(calls)
        calls += 1
    elapsed_s = time.perf_counter() - started
    return Run(elapsed_s, calls * count, calls * count * body_bytes)
