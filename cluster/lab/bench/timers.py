"""timers: lateness of timer messages, sent at 1,000 per second and due after 2 to 3 seconds.

The lateness is the time from the requested millisecond to the call of a push consumer's listener.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from cluster.client import Message, MessageExt, Producer, PushConsumer, SendResult
from cluster.lab.bench.broker import bench_cluster
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.result import BenchResult, Run, percentile
from cluster.lab.bench.sending import make_topic

RATE_PER_S = 1000
QUEUES = 4
DELAY_MS, SPREAD_MS = 2000, 1000
STALL_TIMEOUT_S = 60.0


class Lateness:
    """Listener that records how late each message is, in ms; a negative value is early."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []

    def __call__(self, messages: list[MessageExt]) -> None:
        """Record the lateness of `messages`."""
        now_ms = time.time_ns() / 1e6
        self.late_ms += [now_ms - message.deliver_at_ms for message in messages]


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure with the flush mode of the options; each run sends for the seconds of the options."""
    pool = MessagePool(RATE_PER_S, options.body_bytes)
    bodies = [pool.body(row) for row in range(RATE_PER_S)]
    runs, earliest_ms = [], 0.0
    for number in options.numbered_runs(f"timers, {options.flush} flush"):
        with bench_cluster(options) as cluster, Producer(cluster.nameservers) as producer:
            make_topic(cluster.nameservers, "bench", QUEUES)
            listener = Lateness()
            with PushConsumer(cluster.nameservers, f"run-{number}", listener) as consumer:
                consumer.subscribe("bench")
                began_s = time.perf_counter()
                count = _send(producer, bodies, options.seconds)
                _wait_for(listener, count)
                taken_s = time.perf_counter() - began_s
        late_ms = sorted(listener.late_ms)
        p50_ms, p99_ms = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
        earliest_ms = min(earliest_ms, late_ms[0])
        runs.append(Run(taken_s, count, count * options.body_bytes, p50_ms, p99_ms))
    parameters = {
        "flush": options.flush,
        "rate_per_s": RATE_PER_S,
        "delay_ms": f"{DELAY_MS}-{DELAY_MS + SPREAD_MS}",
        "early_ms": round(-earliest_ms, 3),
    }
    return [BenchResult("timers", runs, parameters)]


def _send(producer: Producer, bodies: list[bytes], seconds: float) -> int:
    """Send at the rate for `seconds`; return the number of messages when all are acknowledged."""
    count = max(int(seconds * RATE_PER_S), 1)
    futures: list[Future[SendResult]] = []
    began_s = time.perf_counter()
    for number in range(count):
        wait_s = began_s + number / RATE_PER_S - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        deliver_at_ms = time.time_ns() // 1_000_000 + DELAY_MS + number * 7919 % SPREAD_MS
        message = Message("bench", bodies[number % len(bodies)], deliver_at_ms=deliver_at_ms)
        futures.append(producer.send_async(message))
    for future in futures:
        future.result()
    return count


def _wait_for(listener: Lateness, count: int) -> None:
    deadline_s = time.monotonic() + STALL_TIMEOUT_S
    while len(listener.late_ms) < count:
        if time.monotonic() > deadline_s:
            raise BenchFailed(
                f"{len(listener.late_ms):,} of {count:,} timer messages arrived in {STALL_TIMEOUT_S:g} s"
            )
        time.sleep(0.01)
