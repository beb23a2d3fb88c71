"""backlog: what sends and pulls cost on top of 50 M messages, and what on an empty broker; and how soon a
broker with that log is READY, after an orderly end and after a kill.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from cluster.bench.broker import BenchCluster, bench_root, running
from cluster.bench.machine import free_bytes
from cluster.bench.messages import MessagePool
from cluster.bench.options import BenchFailed, BenchOptions
from cluster.bench.pull_arrow import WORD, pull_once
from cluster.bench.result import BenchResult, Run
from cluster.bench.sending import await_arrival, make_topic, readable
from cluster.client import Admin, Producer, PullConsumer
from store.identity import read_name
from store.summary import read_summary

POOL_ROWS = 500_000
BACKLOG = "backlog"
RECORD_OVERHEAD_BYTES = 250
"""What a message takes on the disk beside its body: the rest of its record, its unit, its index entries."""
AHEAD_BYTES = 4 * 1024**3
"""Files that are made ahead, and some room."""


def run(options: BenchOptions) -> list[BenchResult]:
    """Measure on the empty broker, fill it, and measure again."""
    pool = MessagePool(min(POOL_ROWS, options.backlog), options.body_bytes)
    with bench_root(options) as root:
        rounds = max(_messages_that_fit(options, root) // pool.rows, 1)
        parameters: dict[str, object] = {
            "flush": options.flush,
            "backlog": rounds * pool.rows,
            "wanted": options.backlog,
            "probe": max(options.messages // pool.rows, 1) * pool.rows,
            "body_bytes": options.body_bytes,
        }
        work = _Work(options, pool)
        with running(root, options.flush) as cluster:
            work.warm_up(cluster)
            empty = work.measure(cluster, "an empty broker")
            work.fill(cluster, rounds)
            full = work.measure(cluster, "on top of the backlog")
            cluster.stop()
        parameters["log_bytes"] = _log_bytes(root / "broker-a-0")
        starts = work.starts(root)
    results = []
    for name, before, after in zip(("backlog-send", "backlog-pull"), empty, full, strict=True):
        result, alone = BenchResult(name, after), BenchResult(name, before).median("messages_per_s") or 1
        ratio = (result.median("messages_per_s") or 0) / alone
        shown = {**parameters, "empty_messages_per_s": round(alone), "ratio_to_empty": round(ratio, 3)}
        results.append(BenchResult(name, after, shown))
    for end, measured in starts.items():
        results.append(BenchResult(f"backlog-start-{end}", measured, parameters))
    return results


def _messages_that_fit(options: BenchOptions, root: Path) -> int:
    """The backlog that is wanted, or what the disk has room for; raises `BenchFailed` if that is nothing."""
    probes = (2 * options.runs + 1) * options.messages + options.runs * POOL_ROWS
    fitting = (free_bytes(root) - AHEAD_BYTES) // (options.body_bytes + RECORD_OVERHEAD_BYTES) - probes
    if fitting < min(options.backlog, POOL_ROWS):
        raise BenchFailed(f"{root} has {free_bytes(root):,} bytes left: give a --directory with more")
    if fitting < options.backlog:
        options.progress(f"backlog: the disk has room for {fitting:,} messages, not for {options.backlog:,}")
    return min(fitting, options.backlog)


def _log_bytes(store: Path) -> int:
    """How long the log of a store is that ended in order."""
    name = read_name(store)
    summary = read_summary(store, name.store_id) if name is not None else None
    if summary is None:
        raise BenchFailed(f"{store} has no notes of its end")
    return summary.position


class _Work:
    """What is done with the broker, and what its topics must hold by then."""

    def __init__(self, options: BenchOptions, pool: MessagePool) -> None:
        self._options = options
        self._pool = pool
        self._sent: Counter[str] = Counter()
        self._rounds = 0
        self._probe = max(options.messages // pool.rows, 1)  # rounds of the pool in each measured send

    def warm_up(self, cluster: BenchCluster) -> None:
        """Send and pull once."""
        self._send(cluster, "warm", self._probe)
        self._pull(cluster, "warm")

    def measure(self, cluster: BenchCluster, where: str) -> tuple[list[Run], list[Run]]:
        """Send to a fresh topic, and pull that: runs of both."""
        sends, pulls = [], []
        for number in range(self._options.runs):
            self._options.progress(f"backlog: {where}, run {number + 1} of {self._options.runs}")
            topic = f"probe-{len(self._sent)}"
            sends.append(self._send(cluster, topic, self._probe))
            pulls.append(self._pull(cluster, topic))
        return sends, pulls

    def fill(self, cluster: BenchCluster, rounds: int) -> None:
        """Write the backlog."""
        make_topic(cluster.nameservers, BACKLOG)
        with Producer(cluster.nameservers) as producer:
            for number in range(rounds):
                self._options.progress(
                    f"backlog: {number * self._pool.rows:,} of {rounds * self._pool.rows:,}"
                )
                self._table(producer, BACKLOG)
        await_arrival(cluster.nameservers, BACKLOG, self._sent[BACKLOG], self._pool.last_key())

    def starts(self, root: Path) -> dict[str, list[Run]]:
        """Starts after orderly ends and after kills in the middle of sending."""
        found: dict[str, list[Run]] = {"orderly": [], "killed": []}
        for end, measured in found.items():
            for number in range(self._options.runs):
                self._options.progress(f"backlog: {end} end, start {number + 1} of {self._options.runs}")
                if end == "killed":
                    with running(root, self._options.flush) as cluster:
                        self._send(cluster, f"killed-{number}", 1)
                        cluster.kill()
                with running(root, self._options.flush) as cluster:
                    measured.append(self._verified(cluster))
                    cluster.stop()
        return found

    def _send(self, cluster: BenchCluster, topic: str, rounds: int) -> Run:
        make_topic(cluster.nameservers, topic)
        started = time.perf_counter()
        with Producer(cluster.nameservers) as producer:
            for _ in range(rounds):
                self._table(producer, topic)
        await_arrival(cluster.nameservers, topic, self._sent[topic], self._pool.last_key())
        seconds = time.perf_counter() - started
        return Run(seconds, self._sent[topic], self._sent[topic] * self._pool.body_bytes)

    def _table(self, producer: Producer, topic: str) -> None:
        table = self._pool.stamp(self._rounds)
        producer.send_table(topic, table, keys="keys", tags="tags", sharding_key="keys")
        self._rounds += 1
        self._sent[topic] += self._pool.rows

    def _pull(self, cluster: BenchCluster, topic: str) -> Run:
        messages = self._sent[topic]
        expected = self._pool.checksum() * (messages // self._pool.rows) % WORD
        with PullConsumer(cluster.nameservers, group="bench") as consumer:
            consumer.assign(consumer.queues(topic))
            consumer.seek_to_beginning()
            started = time.perf_counter()
            body_bytes = pull_once(consumer, messages, expected)
            return Run(time.perf_counter() - started, messages, body_bytes)

    def _verified(self, cluster: BenchCluster) -> Run:
        """The start of a broker that holds all that was acknowledged; raises `BenchFailed` otherwise."""
        with Admin(cluster.nameservers) as admin:
            for topic, messages in self._sent.items():
                there = sum(readable(admin, topic))
                if there != messages:
                    raise BenchFailed(f"after a start {topic} holds {there:,} of {messages:,} messages")
        total = self._sent.total()
        return Run(cluster.start_s, total, total * self._pool.body_bytes)
