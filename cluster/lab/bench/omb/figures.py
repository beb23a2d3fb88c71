"""Histogram of latencies and the result fields of the OpenMessaging Benchmark."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cluster.lab.bench.omb.workload import Workload

BUCKETS_PER_E = 1 / math.log(1.02)
"""Buckets of a histogram per factor e of the time: bucket 0 begins at 1 µs, each is 2 % wide."""
PERCENTILES = {"50pct": 50.0, "75pct": 75.0, "95pct": 95.0, "99pct": 99.0, "999pct": 99.9, "9999pct": 99.99}
QUANTILES = (0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0)
LATENCIES = {"publishLatency": 1000.0, "publishDelayLatency": 1.0, "endToEndLatency": 1000.0}
"""Latencies of a result, with the number of microseconds of their unit: ms, µs and ms."""


class LatencyHistogram:
    """Counts of times in µs; percentiles have an error of at most 1 %, mean and maximum are exact."""

    def __init__(self) -> None:
        self.max_us = 0.0
        self._buckets: Counter[int] = Counter()
        self._sum_us = 0.0

    def add(self, us: float) -> None:
        """Count a time; less than 1 µs counts as 1 µs in percentiles."""
        self._buckets[int(math.log(max(us, 1.0)) * BUCKETS_PER_E)] += 1
        self._sum_us += us
        self.max_us = max(self.max_us, us)

    def merge(self, other: LatencyHistogram) -> None:
        """Add the times of `other`."""
        self.add_buckets(other._buckets, other._sum_us, other.max_us)

    def add_buckets(self, counts: Mapping[int, int], sum_us: float, max_us: float) -> None:
        """Add times that another process counted by bucket: `int(log(us) * BUCKETS_PER_E)`."""
        self._buckets.update(counts)
        self._sum_us += sum_us
        self.max_us = max(self.max_us, max_us)

    def mean_us(self) -> float:
        """Return the mean, 0 without times."""
        return self._sum_us / max(self._buckets.total(), 1)

    def percentile_us(self, percent: float) -> float:
        """Return the time that `percent` (0 to 100) of the times do not exceed, 0 without times."""
        rank = max(math.ceil(self._buckets.total() * percent / 100), 1)
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return min(math.exp((bucket + 0.5) / BUCKETS_PER_E), self.max_us)
        return self.max_us

    def fields(self, unit_us: float) -> dict[str, float]:
        """Return mean, percentiles and maximum by the suffix of their result field."""
        times = {name: self.percentile_us(percent) for name, percent in PERCENTILES.items()}
        times = {"Avg": self.mean_us(), **times, "Max": self.max_us}
        return {name: round(us / unit_us, 3) for name, us in times.items()}


class Period:
    """Counts and latencies of one period of a test."""

    def __init__(self) -> None:
        self.sent = 0
        self.errors = 0
        self.received = 0
        self.latencies = {name: LatencyHistogram() for name in LATENCIES}


def result(workload: Workload, driver: str) -> dict[str, Any]:
    """Return a result without periods."""
    lists = ["publishRate", "publishErrorRate", "consumeRate", "backlog"]
    lists += [name + suffix for name in LATENCIES for suffix in LatencyHistogram().fields(1.0)]
    return {
        "workload": workload.name,
        "driver": driver,
        "messageSize": workload.messageSize,
        "topics": workload.topics,
        "partitions": workload.partitionsPerTopic,
        "producersPerTopic": workload.producersPerTopic,
        "consumersPerTopic": workload.subscriptionsPerTopic * workload.consumerPerSubscription,
        **{name: [] for name in lists},
    }


def add_period(found: dict[str, Any], period: Period, seconds: float, backlog: int) -> None:
    """Append the figures of a period to the lists of a result."""
    found["publishRate"].append(round(period.sent / seconds, 3))
    found["publishErrorRate"].append(round(period.errors / seconds, 3))
    found["consumeRate"].append(round(period.received / seconds, 3))
    found["backlog"].append(backlog)
    for name, unit_us in LATENCIES.items():
        for suffix, value in period.latencies[name].fields(unit_us).items():
            found[name + suffix].append(value)


def add_totals(found: dict[str, Any], latencies: dict[str, LatencyHistogram]) -> None:
    """Set the aggregated latencies of a result."""
    for name, unit_us in LATENCIES.items():
        prefix = f"aggregated{name[0].upper()}{name[1:]}"
        for suffix, value in latencies[name].fields(unit_us).items():
            found[prefix + suffix] = value
        found[f"{prefix}Quantiles"] = {
            str(percent): round(latencies[name].percentile_us(percent) / unit_us, 3) for percent in QUANTILES
        }
