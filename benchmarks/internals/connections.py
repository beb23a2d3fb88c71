"""connections: send rate of a broker with 5,000 connections and ten held pulls per connection.

The parameters have the memory of a held pull.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.internals.comparing import compared
from benchmarks.internals.held_pulls import HELD_S
from benchmarks.internals.options import InternalsOptions, bench_process
from benchmarks.internals.waits import send_for
from benchmarks.processes import anonymous_bytes
from cluster.client import Admin, Producer
from cluster.lab.bench.broker import BenchCluster, bench_cluster
from cluster.lab.bench.options import BenchFailed
from cluster.lab.bench.result import BenchResult, Run
from cluster.lab.bench.sending import QUEUES, make_topic
from cluster.lab.bench.stolen import StolenShare

PULLS_PER_CONNECTION = 10
BROKER = "broker-a"
HOLD_TIMEOUT_S = 60.0
SLICES = 3
"""Slices of a run, each between two quiet ones: the load of other virtual machines changes within seconds."""


class Slice(NamedTuple):
    """Sends during one slice, and the share of stolen CPU time."""

    run: Run
    stolen: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.run.messages_per_s or 0


def run(options: InternalsOptions) -> list[BenchResult]:
    """Measure the send rate with held pulls, between quiet slices without them.

    Each run of `options.seconds` has `SLICES` slices with held pulls. The parameter `rate_kept` is the ratio
    of their rates to the mean of the quiet rates before and after, as the median of the undisturbed slices.
    """
    quiet: list[Slice] = []
    loaded: list[Slice] = []
    held_bytes, kept, stolen = [], [], []
    for _ in options.numbered_runs("connections"):
        with bench_cluster(options) as cluster, Admin(cluster.nameservers) as admin:
            make_topic(cluster.nameservers, "bench", QUEUES)
            make_topic(cluster.nameservers, "held", QUEUES)
            address = admin.route("bench").addresses[BROKER][0]
            with Producer(cluster.nameservers) as producer:
                _send(producer, options, options.warm_up_s)
                before = _send(producer, options, options.seconds / SLICES)
                quiet.append(before)
                for _ in range(SLICES):
                    with _holding(cluster, admin, address, options) as bytes_per_pull:
                        held_bytes.append(bytes_per_pull)
                        loaded.append(_send(producer, options, options.seconds / SLICES))
                    _await_held(admin, lambda held: held == 0)
                    after = _send(producer, options, options.seconds / SLICES)
                    kept.append(2 * loaded[-1].rate / (before.rate + after.rate))
                    stolen.append(max(each.stolen for each in (before, loaded[-1], after)))
                    quiet.append(after)
                    before = after
    parameters = {
        "flush": options.flush,
        "connections": options.connections,
        "held_pulls": options.connections * PULLS_PER_CONNECTION,
        "bytes_per_held_pull": round(max(held_bytes)),
        **compared("rate_kept", kept, stolen),
    }
    return [
        BenchResult("connections", [each.run for each in loaded], parameters),
        BenchResult("connections-quiet", [each.run for each in quiet]),
    ]


def _send(producer: Producer, options: InternalsOptions, seconds: float) -> Slice:
    bodies = [os.urandom(options.body_bytes) for _ in range(16)]
    share = StolenShare()
    run = send_for(producer, "bench", bodies, seconds).run
    return Slice(run, share.so_far())


@contextmanager
def _holding(cluster: BenchCluster, admin: Admin, address: str, options: InternalsOptions) -> Iterator[float]:
    """Hold pulls over many connections, and yield the broker's anonymous memory per held pull in bytes."""
    connections = options.connections
    pulls = connections * PULLS_PER_CONNECTION
    # Spread over the time that a pull is held: expired pulls then arrive at a constant rate.
    spread_s = min(HELD_S, options.seconds)
    arguments = (address, "held", connections, PULLS_PER_CONNECTION, spread_s)
    process = bench_process("benchmarks.internals.held_pulls", *arguments)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _expect(process.stdout.readline(), "OPEN")
        before_bytes = anonymous_bytes(cluster.process.pid)
        process.stdin.write("hold\n")
        process.stdin.flush()
        _expect(process.stdout.readline(), "HELD")
        _await_held(admin, lambda held: held >= pulls)
        yield (anonymous_bytes(cluster.process.pid) - before_bytes) / pulls
    finally:
        process.kill()
        process.communicate()


def _await_held(admin: Admin, is_reached: Callable[[int], bool]) -> None:
    deadline_s = time.monotonic() + HOLD_TIMEOUT_S
    while not is_reached(held := int(admin.broker_runtime(BROKER)["heldPulls"])):
        if time.monotonic() > deadline_s:
            raise BenchFailed(f"after {HOLD_TIMEOUT_S:g} s the broker holds an unexpected {held:,} pulls")
        time.sleep(0.05)


def _expect(line: str, word: str) -> None:
    if line.strip() != word:
        raise BenchFailed(f"the process with the connections printed {line!r} instead of {word}")
