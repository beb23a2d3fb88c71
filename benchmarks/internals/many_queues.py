"""many-queues: send rates to a topic of 20,000 queues, compared with a topic of 8 queues on the same broker.

All queues hold messages. Each part sends to both topics in turn:

    many-queues         send_table without a sharding key: about 1 MiB per queue, round robin
    many-queues-send    64 concurrent sends of single messages, round robin
    many-queues-keyed   send_table with a sharding key: each table adds rows to every queue

The part many-queues-start restarts that broker. `parameters` of each result contains the memory and disk use
of the broker.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.internals.backlog import AHEAD_BYTES, RECORD_OVERHEAD_BYTES
from benchmarks.internals.comparing import compared
from benchmarks.internals.machine import free_bytes
from benchmarks.internals.options import InternalsOptions, disk_bytes
from benchmarks.processes import anonymous_bytes, stop_broker
from cluster.client import Admin, Producer
from cluster.client.aio import Producer as AsyncProducer
from cluster.lab.bench.broker import BenchCluster, bench_root, running
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.send_async import BODIES, send_concurrently
from cluster.lab.bench.sending import QUEUES, await_arrival, make_topic, readable, send_rounds
from cluster.lab.bench.stolen import StolenShare
from store.recovery.opening import CONSUME_QUEUE

TABLE_ROWS = 2_000_000
ROWS_A_QUEUE = 50
MANY, FEW = "many", "few"
CALLS = ("many-queues", "many-queues-send", "many-queues-keyed")
TABLE_RUNS = 4
"""Timed sends of tables in one run: two parts, each to two topics."""
FASTER_AFTER_WARM_UP = 2
SHORTEST_S = 1.0


class _Pair(NamedTuple):
    """Runs of one part with few and with many queues, and the share of stolen CPU time."""

    few: Run
    many: Run
    stolen: float

    @property
    def ratio(self) -> float:
        return (self.many.messages_per_s or 0) / (self.few.messages_per_s or 1)


def run(options: InternalsOptions) -> list[BenchResult]:
    """Measure each part on both topics in turn, then the restarts."""
    calls = _Calls(options)
    pairs: dict[str, list[_Pair]] = {call: [] for call in CALLS}
    with bench_root(options) as root:
        with running(root, options.flush) as cluster:
            calls.fill(cluster)
            calls.shorten(free_bytes(root))
            for number in range(options.runs):
                for call, measured in pairs.items():
                    options.progress(f"{call}: run {number + 1} of {options.runs}")
                    measured.append(calls.measure(cluster, call))
            sizes = {
                "anonymous_mb": round(anonymous_bytes(cluster.process.pid) / 1e6),
                "messages": calls.sent.total(),
                "disk_mb": round(disk_bytes(cluster.store) / 1e6),
                "queues_disk_mb": round(disk_bytes(cluster.store / CONSUME_QUEUE) / 1e6),
            }
            stop_broker(cluster)
        starts = [calls.start(root) for _ in range(options.runs)]
    parameters: dict[str, object] = {
        "flush": options.flush,
        "body_bytes": options.body_bytes,
        "queues": options.queues,
    }
    results = [_compared_result(call, pairs[call], parameters) for call in CALLS]
    results[0] = BenchResult(CALLS[0], results[0].runs, {**results[0].parameters, **sizes})
    return [*results, BenchResult("many-queues-start", starts, {**parameters, "end": "orderly"})]


def seconds_that_fit(free: int, runs: int, bytes_a_second: float) -> float:
    """Return the longest duration of a run of tables in seconds for which `runs` runs fit into `free` bytes.

    `AHEAD_BYTES` are kept free for files that the broker allocates ahead of use.
    """
    return max(free - AHEAD_BYTES, 0) / (TABLE_RUNS * runs * bytes_a_second)


def _compared_result(call: str, pairs: list[_Pair], parameters: dict[str, object]) -> BenchResult:
    """Return the runs with many queues; the parameters compare them with the runs with few queues."""
    alone = BenchResult(call, [pair.few for pair in pairs]).median("messages_per_s") or 0
    shown = {
        f"messages_per_s_of_{QUEUES}": round(alone),
        **compared(f"ratio_to_{QUEUES}", [pair.ratio for pair in pairs], [pair.stolen for pair in pairs]),
    }
    return BenchResult(call, [pair.many for pair in pairs], parameters | shown)


class _Calls:
    """Timed sends of each part; counts the messages that each topic must hold."""

    def __init__(self, options: InternalsOptions) -> None:
        self._options = options
        self._pool = MessagePool(min(TABLE_ROWS, options.queues * ROWS_A_QUEUE), options.body_bytes)
        self._bodies = [self._pool.body(row) for row in range(BODIES)]
        self._seconds = options.seconds
        self._rate = 1.0
        self._rounds = 0
        self.sent: Counter[str] = Counter()

    def fill(self, cluster: BenchCluster) -> None:
        """Store messages in every queue of both topics; this is also the warm-up."""
        for topic, queues in ((FEW, QUEUES), (MANY, self._options.queues)):
            make_topic(cluster.nameservers, topic, queues)
            filled = self._tables(cluster, topic, self._options.warm_up_s, is_keyed=True)
            self._rate = max(self._rate, filled.messages_per_s or 0)

    def shorten(self, free: int) -> None:
        """Shorten the runs until all fit into `free` bytes.

        Raises BenchFailed if a run would take less than `SHORTEST_S`.
        """
        options = self._options
        record_bytes = options.body_bytes + RECORD_OVERHEAD_BYTES
        fitting = seconds_that_fit(free, options.runs, FASTER_AFTER_WARM_UP * self._rate * record_bytes)
        if fitting < min(options.seconds, SHORTEST_S):
            raise BenchFailed(
                f"the disk has only {free:,} free bytes: use fewer --runs, or a --directory with more space"
            )
        if fitting < options.seconds:
            options.progress(
                f"many-queues: the disk has room for runs of {fitting:.1f} s, not {options.seconds} s"
            )
            self._seconds = fitting

    def measure(self, cluster: BenchCluster, call: str) -> _Pair:
        """Run the part `call` once with few queues and once with many."""
        share = StolenShare()
        return _Pair(self._run(cluster, call, FEW), self._run(cluster, call, MANY), share.so_far())

    def _run(self, cluster: BenchCluster, call: str, topic: str) -> Run:
        os.sync()  # this run must not pay for the write-back of the previous one
        if call == "many-queues-send":
            return self._singles(cluster, topic, self._seconds)
        return self._tables(cluster, topic, self._seconds, is_keyed=call == "many-queues-keyed")

    def start(self, root: Path) -> Run:
        """Restart the broker on its store and measure the time to READY.

        Raises BenchFailed if a message is missing or a queue is empty.
        """
        with running(root, self._options.flush) as cluster:
            with Admin(cluster.nameservers) as admin:
                for topic, messages in self.sent.items():
                    counts = readable(admin, topic)
                    if sum(counts) != messages or 0 in counts:
                        raise BenchFailed(
                            f"after the restart {topic} holds {sum(counts):,} of {messages:,} messages, "
                            f"and {counts.count(0):,} of its {len(counts):,} queues are empty"
                        )
            stop_broker(cluster)
            total = self.sent.total()
            return Run(cluster.start_s, total, total * self._options.body_bytes)

    def _tables(self, cluster: BenchCluster, topic: str, seconds: float, *, is_keyed: bool) -> Run:
        """Send tables for `seconds`, at least one, then wait until all messages are readable."""
        pool = self._pool
        with Producer(cluster.nameservers) as producer:
            producer.send(topic, self._bodies[0])  # fetches the route
            started = time.perf_counter()
            rounds = send_rounds(producer, topic, pool, self._rounds, seconds, is_keyed=is_keyed)
            seconds = time.perf_counter() - started
        self.sent[topic] += 1
        self._rounds += rounds
        messages = rounds * pool.rows
        self.sent[topic] += messages
        await_arrival(cluster.nameservers, topic, self.sent[topic], pool.last_key())
        return Run(seconds, messages, messages * pool.body_bytes)

    def _singles(self, cluster: BenchCluster, topic: str, seconds: float) -> Run:
        async def send() -> Run:
            async with AsyncProducer(cluster.nameservers) as producer:
                await producer.send(topic, self._bodies[0])
                return await send_concurrently(producer, topic, self._bodies, seconds)

        run: Run = uvloop.run(send())
        self.sent[topic] += 1 + (run.messages or 0)
        await_arrival(cluster.nameservers, topic, self.sent[topic], None)
        return run
