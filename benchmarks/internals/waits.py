"""Request latencies of a benchmark, and the longest one without stolen CPU time.

The CPUs of a virtual machine pause while the hypervisor runs other machines on them. Such a pause says
nothing about the broker, so the CPU time stolen during a long request is subtracted from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cluster.client import Producer
from cluster.lab.bench.result import Run, percentile
from cluster.lab.bench.stolen import stolen_s

SAMPLE_INTERVAL_S = 0.01
"""Resolution of the kernel's counter of stolen time. Reading it takes about 40 µs."""


class Waits:
    """Latencies of the requests in milliseconds.

    `now_s` is the time of construction, on the clock of the arguments of `add`; `stolen` returns the stolen
    CPU time so far in seconds.
    """

    def __init__(self, now_s: float, stolen: Callable[[], float] = stolen_s) -> None:
        self.taken_ms: list[float] = []
        self.longest_own_ms = 0.0
        """Longest latency after subtracting the CPU time stolen from any CPU meanwhile."""
        self._stolen = stolen
        self._stolen_s = stolen()
        self._sampled_s = now_s

    def add(self, began_s: float, ended_s: float) -> bool:
        """Record a request that took from `began_s` to `ended_s`.

        Returns True if the call read the counter of stolen time: the caller must then exclude the time of
        the call from the next latency.
        """
        taken_ms = (ended_s - began_s) * 1e3
        self.taken_ms.append(taken_ms)
        if taken_ms <= self.longest_own_ms and ended_s - self._sampled_s < SAMPLE_INTERVAL_S:
            return False
        before_s, self._stolen_s, self._sampled_s = self._stolen_s, self._stolen(), ended_s
        own_ms = taken_ms - (self._stolen_s - before_s) * 1e3
        self.longest_own_ms = max(self.longest_own_ms, own_ms)
        return True


class Sent(NamedTuple):
    """A run, and its longest send: measured, and without stolen CPU time (`longest_own_ms`, see `Waits`)."""

    run: Run
    longest_ms: float
    longest_own_ms: float


def send_for(producer: Producer, topic: str, bodies: Sequence[bytes], seconds: float) -> Sent:
    """Send one message at a time for `seconds`, at least one."""
    started = before = time.perf_counter()
    waits = Waits(started)
    taken_ms = waits.taken_ms
    while not taken_ms or before - started < seconds:
        count = len(taken_ms)
        producer.send(topic, bodies[count % len(bodies)], keys=f"key-{count}", tags="one")
        after = time.perf_counter()
        before = time.perf_counter() if waits.add(before, after) else after
    taken_ms.sort()
    count = len(taken_ms)
    p50_ms, p99_ms = percentile(taken_ms, 0.5), percentile(taken_ms, 0.99)
    run = Run(before - started, count, count * len(bodies[0]), p50_ms, p99_ms)
    return Sent(run, taken_ms[-1], waits.longest_own_ms)
