"""backlog: send and pull rates of a broker that stores 50 M messages, compared with an empty broker.

Also measures how soon the broker with the backlog serves again after a clean shutdown and after a kill.

Both brokers run at the same time and are measured alternately: other load on the machine affects both. Dirty
pages are written to disk before each run. The parameters also have the broker's CPU time per message,
which is more reliable than the rates on a busy machine.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.internals.comparing import calm_median, compared
from benchmarks.internals.machine import free_bytes
from benchmarks.internals.options import InternalsOptions
from benchmarks.processes import cpu_seconds, kill_broker, stop_broker
from cluster.client import Admin, Producer, PullConsumer
from cluster.lab.bench.broker import BenchCluster, bench_root, running
from cluster.lab.bench.messages import MessagePool
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.pull_arrow import WORD, pull_once
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import await_arrival, make_topic, readable
from cluster.lab.bench.stolen import StolenShare
from store.disk.files import sync_file_system
from store.ownership.identity import read_name
from store.recovery.summary import read_summary

POOL_ROWS = 500_000
BACKLOG = "backlog"
CALLS = ("send", "pull")
STOPS = ("orderly", "killed")
RECORD_OVERHEAD_BYTES = 250
"""Disk space of a message without its body: record header, consume queue unit, index entries."""
AHEAD_BYTES = 8 * 1024**3
"""Space for the files that two brokers allocate ahead of use, with some reserve."""


@dataclass(frozen=True)
class Cost:
    """A run, the CPU time of the broker during it, and the share of stolen CPU time."""

    run: Run
    cpu_s: float
    stolen: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.run.messages_per_s or 0.0

    @property
    def cpu_us(self) -> float:
        """CPU time of the broker per message in microseconds."""
        return self.cpu_s * 1e6 / (self.run.messages or 1)


@dataclass
class Restarts:
    """Durations of the restarts.

    `runs` last from the stop request or kill to the READY line of the restarted broker. `stops_s` are the
    parts of them until the old process exited; `cpu_s` is the CPU time of each start.
    """

    runs: list[Run] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def run(options: InternalsOptions) -> list[BenchResult]:
    """Fill one broker, measure it and an empty one alternately, then restart the full one repeatedly."""
    pool = MessagePool(min(POOL_ROWS, options.backlog), options.body_bytes)
    with bench_root(options) as root:
        rounds = max(_messages_that_fit(options, root) // pool.rows, 1)
        with running(root / "full", options.flush) as cluster:
            full = _Work(options, pool, cluster)
            full.fill(rounds)
            with running(root / "empty", options.flush) as other:
                costs = _measure_in_turn(options, root, full, _Work(options, pool, other))
                stop_broker(other)
            stop_broker(cluster)
        parameters: dict[str, object] = {
            "flush": options.flush,
            "backlog": rounds * pool.rows,
            "requested_backlog": options.backlog,
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
            "stop_s": round(statistics.median(measured.stops_s), 2),
            "start_cpu_s": round(statistics.median(measured.cpu_s), 2),
        }
        results.append(BenchResult(f"backlog-restart-{stop}", measured.runs, parameters | shown))
    return results


def ratios(full: Sequence[Cost], empty: Sequence[Cost]) -> dict[str, object]:
    """Return result parameters that compare the broker with the backlog and the empty one.

    `full` and `empty` have one cost per pair of runs. The ratios are medians over the undisturbed pairs.
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


def _messages_that_fit(options: InternalsOptions, root: Path) -> int:
    """Return the size of the backlog: that of the options, or less if the disk has less room.

    Raises BenchFailed if the disk has no room for a useful backlog.
    """
    probes = 2 * (options.runs + 1) * (options.messages + POOL_ROWS)
    fitting = (free_bytes(root) - AHEAD_BYTES) // (options.body_bytes + RECORD_OVERHEAD_BYTES) - probes
    if fitting < min(options.backlog, POOL_ROWS):
        raise BenchFailed(
            f"the disk of {root} has only {free_bytes(root):,} free bytes: use a --directory with more space"
        )
    if fitting < options.backlog:
        options.progress(f"backlog: the disk has room for {fitting:,} messages, not {options.backlog:,}")
    return min(fitting, options.backlog)


def _log_bytes(store: Path) -> int:
    """Return the size of the log of a store that was closed cleanly. Raises BenchFailed if it was not."""
    name = read_name(store)
    summary = read_summary(store, name.store_id) if name is not None else None
    if summary is None:
        raise BenchFailed(f"{store} has no close summary: the store was not closed cleanly")
    return summary.position


def _measure_in_turn(
    options: InternalsOptions, root: Path, full: _Work, empty: _Work
) -> dict[tuple[str, str], list[Cost]]:
    """Return the costs by (call, broker) of both calls on both brokers, after one warm-up run of each."""
    costs: dict[tuple[str, str], list[Cost]] = {(call, of): [] for call in CALLS for of in ("full", "empty")}
    for number in range(options.runs + 1):
        options.progress(f"backlog: full and empty in turn, run {number} of {options.runs}")
        sides = [("full", full), ("empty", empty)]
        topic = f"probe-{number}"
        for call in CALLS:
            # The second broker inherits the dirty pages and caches of the first one: alternate the order.
            for of, work in sides if number % 2 else reversed(sides):
                sync_file_system(root)
                cost = work.send(topic, work.probe) if call == "send" else work.pull(topic)
                if number:
                    costs[call, of].append(cost)
    return costs


def _restart(options: InternalsOptions, root: Path, work: _Work) -> dict[str, Restarts]:
    """Stop or kill the broker right after a send, restart it, and return the durations by kind of stop."""
    found = {stop: Restarts() for stop in STOPS}
    for number in range(options.runs):
        for stop, measured in found.items():
            options.progress(f"backlog: {stop} stop, restart {number + 1} of {options.runs}")
            with running(root, options.flush) as cluster:
                work.cluster = cluster
                work.send(f"{stop}-{number}", 1)
                stopping_s = time.perf_counter()
                if stop == "killed":
                    kill_broker(cluster)
                else:
                    stop_broker(cluster)
                stop_s = time.perf_counter() - stopping_s
            with running(root, options.flush) as cluster:
                measured.cpu_s.append(cpu_seconds(cluster.process.pid))
                work.cluster = cluster
                messages = work.verified()
                seconds = stop_s + cluster.start_s
                measured.runs.append(Run(seconds, messages, messages * options.body_bytes))
                measured.stops_s.append(stop_s)
                stop_broker(cluster)
    return found


class _Work:
    """Sends to and pulls from one broker; counts the messages that each topic must hold."""

    def __init__(self, options: InternalsOptions, pool: MessagePool, cluster: BenchCluster) -> None:
        self.cluster = cluster
        self.probe = max(options.messages // pool.rows, 1)
        """Number of times that each measured send sends the pool."""
        self._options = options
        self._pool = pool
        self._sent: Counter[str] = Counter()
        self._rounds = 0

    def fill(self, rounds: int) -> None:
        """Send the backlog: the pool `rounds` times."""
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
        """Send the pool `rounds` times to a new topic and wait until all messages are readable."""
        nameservers = self.cluster.nameservers
        make_topic(nameservers, topic)
        share, started, cpu_s = StolenShare(), time.perf_counter(), cpu_seconds(self.cluster.process.pid)
        with Producer(nameservers) as producer:
            for _ in range(rounds):
                self._table(producer, topic)
        await_arrival(nameservers, topic, self._sent[topic], self._pool.last_key())
        seconds = time.perf_counter() - started
        done = Run(seconds, self._sent[topic], self._sent[topic] * self._pool.body_bytes)
        return Cost(done, cpu_seconds(self.cluster.process.pid) - cpu_s, share.so_far())

    def pull(self, topic: str) -> Cost:
        """Pull all messages of `topic`."""
        messages = self._sent[topic]
        expected = self._pool.checksum() * (messages // self._pool.rows) % WORD
        with PullConsumer(self.cluster.nameservers, group="bench") as consumer:
            consumer.assign(consumer.queues(topic))
            consumer.seek_to_beginning()
            share, started, cpu_s = StolenShare(), time.perf_counter(), cpu_seconds(self.cluster.process.pid)
            body_bytes = pull_once(consumer, messages, expected)
            done = Run(time.perf_counter() - started, messages, body_bytes)
            return Cost(done, cpu_seconds(self.cluster.process.pid) - cpu_s, share.so_far())

    def verified(self) -> int:
        """Return the number of stored messages. Raises BenchFailed if an acknowledged message is missing."""
        with Admin(self.cluster.nameservers) as admin:
            for topic, messages in self._sent.items():
                there = sum(readable(admin, topic))
                if there != messages:
                    raise BenchFailed(
                        f"after the restart topic {topic} holds {there:,} of {messages:,} messages"
                    )
        return self._sent.total()

    def _table(self, producer: Producer, topic: str) -> None:
        table = self._pool.stamp(self._rounds)
        producer.send_table(topic, table, keys="keys", tags="tags", sharding_key="keys")
        self._rounds += 1
        self._sent[topic] += self._pool.rows
