"""send-async: 64 concurrent sends with the asyncio producer."""

from __future__ import annotations

import asyncio
import time

import uvloop

from cluster.client.aio import Producer
from cluster.lab.bench.broker import bench_cluster
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchOptions
from cluster.lab.bench.result import BenchResult, Run, percentile
from cluster.lab.bench.sending import await_arrival, make_topic

CONCURRENT = 64
BODIES = 1000
QUEUES = 4


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with the flush mode of the options."""
    pool = MessagePool(BODIES, options.body_bytes)
    bodies = [pool.body(row) for row in range(BODIES)]
    runs = []
    for _ in options.numbered_runs(f"send-async, {options.flush} flush"):
        with bench_cluster(options) as cluster:
            for topic in ("warm", "bench"):
                make_topic(cluster.nameservers, topic, QUEUES)
            run = uvloop.run(_measure(cluster.nameservers, bodies, options))
            await_arrival(cluster.nameservers, "bench", run.messages or 0, None)
            runs.append(run)
    parameters = {
        "flush": options.flush,
        "body_bytes": options.body_bytes,
        "queues": QUEUES,
        "concurrent": CONCURRENT,
    }
    return [BenchResult("send-async", runs, parameters)]


async def _measure(nameservers: str, bodies: list[bytes], options: BenchOptions) -> Run:
    async with Producer(nameservers) as producer:
        await send_concurrently(producer, "warm", bodies, options.warm_up_s)
        return await send_concurrently(producer, "bench", bodies, options.seconds)


async def send_concurrently(producer: Producer, topic: str, bodies: list[bytes], seconds: float) -> Run:
    """Send single messages for `seconds` with `CONCURRENT` sends in flight, at least one message each."""
    taken_ms: list[float] = []
    started = time.perf_counter()
    deadline_s = started + seconds

    async def worker(number: int) -> None:
        sent = number
        while sent == number or time.perf_counter() < deadline_s:
            before = time.perf_counter()
            await producer.send(topic, bodies[sent % BODIES], keys=f"key-{sent}", tags="async")
            taken_ms.append((time.perf_counter() - before) * 1e3)
            sent += CONCURRENT

    await asyncio.gather(*(worker(number) for number in range(CONCURRENT)))
    elapsed_s = time.perf_counter() - started
    count = len(taken_ms)
    taken_ms.sort()
    return Run(
        elapsed_s, count, count * len(bodies[0]), percentile(taken_ms, 0.5), percentile(taken_ms, 0.99)
    )
