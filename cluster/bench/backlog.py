"""backlog: what sends and pulls cost on top of 50 M messages, and what on an empty broker; and how soon a
broker with that log serves again, after an orderly end and after a kill.

Both brokers run side by side and are measured in turn, first the one, then the other, so that what the
machine does besides meets both; before each run all that is dirty is written to the disk. A broker's CPU time
a message is told too: on a machine that is not quiet it says more than the clock.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.bench.broker import BenchCluster, bench_root, running
from cluster.bench.machine import StolenShare, free_bytes
from cluster.bench.messages import MessagePool
from cluster.bench.options import BenchFailed, BenchOptions
from cluster.bench.pull_arrow import WORD, pull_once
from cluster.bench.result import BenchResult, Run, calm_median, compared
from cluster.bench.sending import await_arrival, make_topic, readable
from cluster.client import Admin, Producer, PullConsumer
from store.disk.files import sync_file_system
from store.ownership.identity import read_name
from store.recovery.summary import read_summary

POOL_ROWS = 500_000
BACKLOG = "backlog"
CALLS = ("send", "pull")
ENDS = ("orderly", "killed")
RECORD_OVERHEAD_BYTES = 250
"""What a message takes on the disk beside its body: the rest of its record, its unit, its index entries."""
AHEAD_BYTES = 8 * 1024**3
"""Files that two brokers make ahead, and some room."""


@dataclass(frozen=True)
class Cost:
    """A run, the CPU time of the broker in it, and what share of the processors the host took meanwhile."""

    run: Run
    cpu_s: float
    stolen: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.run.messages_per_s or 0.0

    @property
    def cpu_us(self) -> float:
        """CPU time of the broker a message."""
        return self.cpu_s * 1e6 / (self.run.messages or 1)


@dataclass
class Restarts:
    """How long it took from the end of a broker to the next one's READY; of that to its end; and the CPU time
    of the start.
    """

    runs: list[Run] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def run(options: BenchOptions) -> list[BenchResult]:
    """Fill one broker, measure it and an empty one in turn, then start it again and again."""
    pool = MessagePool(min(POOL_ROWS, options.backlog), options.body_bytes)
    with bench_root(options) as root:
        rounds = max(_messages_that_fit(options, root) // pool.rows, 1)
        with running(root / "full", options.flush) as cluster:
            full = _Work(options, pool, cluster)
            full.fill(rounds)
            with running(root / "empty", options.flush) as other:
                costs = _measure_in_turn(options, root, full, _Work(options, pool, other))
                other.stop()
            cluster.stop()
        parameters: dict[str, object] = {
            "flush": options.flush,
            "backlog": rounds * pool.rows,
            "wanted": options.backlog,
            "probe": full.probe * pool.rows,
            "body_bytes": options.body_bytes,
            "log_bytes": _log_bytes(root / "full" / "broker-a-0"),
        }
        restarts = _restart(options, root / "full", full)
    results = []
    for call in CALLS:
        shown = ratios(costs[call, "full"], costs[call, "empty"])
        runs = [cost.run for cost in costs[call, "full"]]
        results.append(BenchResult(f"backlog-{call}", runs, parameters | shown))
    for stop, measured in restarts.items():
        shown = {
            "of_that_to_its_end_s": round(statistics.median(measured.ends_s), 2),
            "start_cpu_s": round(statistics.median(measured.cpu_s), 2),
        }
        results.append(BenchResult(f"backlog-restart-{stop}", measured.runs, parameters | shown))
    return results


def ratios(full: Sequence[Cost], empty: Sequence[Cost]) -> dict[str, object]:
    """What the backlog makes of rates and CPU time: the median over the pairs that were measured together,
    as far as the host left them alone.
    """
    pairs = list(zip(full, empty, strict=True))
    stolen = [max(one.stolen, other.stolen) for one, other in pairs]
    cpu, _ = calm_median([one.cpu_us / max(other.cpu_us, 1e-3) for one, other in pairs], stolen)
    return {
        "empty_messages_per_s": round(statistics.median(cost.rate for cost in empty)),
        **compared("ratio_to_empty", [one.rate / other.rate for one, other in pairs], stolen),
        "broker_cpu_us": round(statistics.median(cost.cpu_us for cost in full), 3),
        "empty_broker_cpu_us": round(statistics.median(cost.cpu_us for cost in empty), 3),
        "cpu_ratio_to_empty": cpu,
    }


def _messages_that_fit(options: BenchOptions, root: Path) -> int:
    """The backlog that is wanted, or what the disk has room for; raises `BenchFailed` if that is nothing."""
    probes = 2 * (options.runs + 1) * (options.messages + POOL_ROWS)
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


def _measure_in_turn(
    options: BenchOptions, root: Path, full: _Work, empty: _Work
) -> dict[tuple[str, str], list[Cost]]:
    """Runs of both calls on both brokers, by (call, broker), after one of each that does not count."""
    costs: dict[tuple[str, str], list[Cost]] = {(call, of): [] for call in CALLS for of in ("full", "empty")}
    for number in range(options.runs + 1):
        options.progress(f"backlog: full and empty in turn, run {number} of {options.runs}")
        sides = [("full", full), ("empty", empty)]
        topic = f"probe-{number}"
        for call in CALLS:
            # The second has what the first one leaves to the disk and the caches: each is first in turn.
            for of, work in sides if number % 2 else reversed(sides):
                sync_file_system(root)
                cost = work.send(topic, work.probe) if call == "send" else work.pull(topic)
                if number:
                    costs[call, of].append(cost)
    return costs


def _restart(options: BenchOptions, root: Path, work: _Work) -> dict[str, Restarts]:
    """End the broker right after a send, in both ways in turn, and start it again."""
    found = {stop: Restarts() for stop in ENDS}
    for number in range(options.runs):
        for stop, measured in found.items():
            options.progress(f"backlog: {end} end, restart {number + 1} of {options.runs}")
            with running(root, options.flush) as cluster:
                work.cluster = cluster
                work.send(f"{stop}-{number}", 1)
                stopping_s = time.perf_counter()
                if stop == "killed":
                    cluster.kill()
                else:
                    cluster.stop()
                stop_s = time.perf_counter() - stopping_s
            with running(root, options.flush) as cluster:
                measured.cpu_s.append(cluster.cpu_s())
                work.cluster = cluster
                messages = work.verified()
                seconds = stop_s + cluster.start_s
                measured.runs.append(Run(seconds, messages, messages * options.body_bytes))
                measured.ends_s.append(stop_s)
                cluster.stop()
    return found


class _Work:
    """What is done with a broker, and what its topics must hold by then."""

    def __init__(self, options: BenchOptions, pool: MessagePool, cluster: BenchCluster) -> None:
        self.cluster = cluster
        self.probe = max(options.messages // pool.rows, 1)
        """Rounds of the pool in each measured send."""
        self._options = options
        self._pool = pool
        self._sent: Counter[str] = Counter()
        self._rounds = 0

    def fill(self, rounds: int) -> None:
        """Write the backlog."""
        nameservers = self.cluster.nameservers
        make_topic(nameservers, BACKLOG)
        with Producer(nameservers) as producer:
            for number in range(rounds):
                self._options.progress(
                    f"backlog: {number * self._pool.rows:,} of {rounds * self._pool.rows:,}"
                )
                self._table(producer, BACKLOG)
        await_arrival(nameservers, BACKLOG, self._sent[BACKLOG], self._pool.last_key())

    def send(self, topic: str, rounds: int) -> Cost:
        """Send the pool to a new topic, until all of it can be read."""
        nameservers = self.cluster.nameservers
        make_topic(nameservers, topic)
        share, started, cpu_s = StolenShare(), time.perf_counter(), self.cluster.cpu_s()
        with Producer(nameservers) as producer:
            for _ in range(rounds):
                self._table(producer, topic)
        await_arrival(nameservers, topic, self._sent[topic], self._pool.last_key())
        seconds = time.perf_counter() - started
        done = Run(seconds, self._sent[topic], self._sent[topic] * self._pool.body_bytes)
        return Cost(done, self.cluster.cpu_s() - cpu_s, share.so_far())

    def pull(self, topic: str) -> Cost:
        """Pull a whole topic."""
        messages = self._sent[topic]
        expected = self._pool.checksum() * (messages // self._pool.rows) % WORD
        with PullConsumer(self.cluster.nameservers, group="bench") as consumer:
            consumer.assign(consumer.queues(topic))
            consumer.seek_to_beginning()
            share, started, cpu_s = StolenShare(), time.perf_counter(), self.cluster.cpu_s()
            body_bytes = pull_once(consumer, messages, expected)
            done = Run(time.perf_counter() - started, messages, body_bytes)
            return Cost(done, self.cluster.cpu_s() - cpu_s, share.so_far())

    def verified(self) -> int:
        """How many messages there are: all that were acknowledged, or `BenchFailed` is raised."""
        with Admin(self.cluster.nameservers) as admin:
            for topic, messages in self._sent.items():
                there = sum(readable(admin, topic))
                if there != messages:
                    raise BenchFailed(f"after a start {topic} holds {there:,} of {messages:,} messages")
        return self._sent.total()

    def _table(self, producer: Producer, topic: str) -> None:
        table = self._pool.stamp(self._rounds)
        producer.send_table(topic, table, keys="keys", tags="tags", sharding_key="keys")
        self._rounds += 1
        self._sent[topic] += self._pool.rows
