"""Figure: a value that a process reports about itself. It is declared once; several views show it.

DESCRIBE_BROKER, details of an actor   `described`: by name, those with `is_described`
GET_BROKER_RUNTIME_INFO                `runtime_table`: as text, by each of `runtime_names`
/metrics                               `actors.host.metrics.page`: by `metric`
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

from actors.bounds import Use


class Kind(StrEnum):
    """The kind of a figure, in the terms of Prometheus, which has no texts."""

    COUNTER = "counter"
    """Only grows; starts from 0 with the process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    TEXT = "text"


class Histogram(NamedTuple):
    """The value of a histogram."""

    bounds: Sequence[float]
    """The upper bounds of the buckets; the last bucket has none."""
    counts: Sequence[int]
    """The number of values in each bucket."""
    total: float
    """The sum of all values."""


class Buckets:
    """A histogram that is counted; `bounds` are the upper bounds of its buckets, except the last one."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def histogram(self) -> Histogram:
        """The present values."""
        return Histogram(self._bounds, tuple(self._counts), self._total)


Value = int | float | str | Histogram


class Sample(NamedTuple):
    """The value of a figure for one combination of label values."""

    labels: tuple[str, ...]
    value: Value


def text_of(value: Value) -> str:
    """Return a value as text; of a histogram, its counts."""
    return " ".join(map(str, value.counts)) if isinstance(value, Histogram) else str(value)


OWN: Final = "raymq_"
"""Prefix of RayMQ's own metrics; the others have RocketMQ's names and units."""
_DIVISORS: Final = {"us": 1_000_000, "ms": 1_000, "percent": 100}
_SUFFIXES: Final = {
    "us": "seconds",
    "ms": "seconds",
    "s": "seconds",
    "bytes": "bytes",
    "percent": "ratio",
    "ratio": "ratio",
}
"""Units of figures, and the endings of their metrics. Others are numbers of things."""
_WORDS: Final = re.compile(
    r"_(us|ms|ns|s|sec|secs|micros|millis|microseconds|milliseconds|nanoseconds|minutes|hours|days|kb|mb|gb|"
    r"kib|mib|kilobytes|megabytes|percent|percentage|count|sum|bucket|info|gauge|counter|histogram)(_|$)"
)
"""Units that are no base units, and words that Prometheus adds itself or keeps for something else."""


def check_metric(metric: str, kind: Kind, unit: str) -> None:
    """Raise ValueError if a name of RayMQ's own breaks the rules of Prometheus, as `promtool check metrics`.

    The name is in lower case, ends in the base unit, and then, for a counter only, in `_total`.
    """
    if not metric.startswith(OWN):
        return
    is_total = metric.endswith("_total")
    stem, suffix = metric.removesuffix("_total"), _SUFFIXES.get(unit)
    ends = [each for each in set(_SUFFIXES.values()) if stem.endswith(f"_{each}")]
    if not re.fullmatch("[a-z][a-z0-9_]*", metric) or _WORDS.search(metric):
        raise ValueError(f"metric {metric}: use lower case, base units and no word of Prometheus' own")
    if is_total != (kind is Kind.COUNTER):
        raise ValueError(f"metric {metric}: a counter ends in _total, and nothing else does")
    if ends != ([] if suffix is None else [suffix]):
        raise ValueError(f"metric {metric}: the unit is {unit!r}, so it must end in {suffix or 'no unit'}")


@dataclass(frozen=True, slots=True)
class Figure:
    """The declaration of one figure."""

    name: str
    kind: Kind
    unit: str
    """`bytes`, `ms`, `us`, `s`, `percent`, `ratio`, `messages/s`; empty for numbers of things and texts."""
    read: Callable[[], Value | Iterable[Sample] | None]
    """Returns the value, or None if it is unknown: then it is absent. With `labels`, returns the samples.

    Samples are read in slices, between which the process continues. So a function with many of them is a
    generator over a copy of its keys, and skips those that were removed in the meantime.
    """
    help: str
    labels: tuple[str, ...] = ()
    runtime_names: tuple[str, ...] = ()
    """Names in GET_BROKER_RUNTIME_INFO. `{label}` stands for the value of a label; the values of samples with
    the same name are joined."""
    is_described: bool = True
    """If False, the figure is not in DESCRIBE_BROKER; one with labels never is."""
    text: Callable[[Any], str] = text_of
    """Formats the value for GET_BROKER_RUNTIME_INFO."""
    metric: str = ""
    """Name on the page of metrics, with unit and `_total` as usual in Prometheus; empty: not there. It is
    RocketMQ's name or begins with `raymq_`, and then `check_metric` holds. Not for texts."""
    refresh: Callable[[], Awaitable[None]] | None = None
    """Computes what `read` returns, if that takes long or reads the disk; awaited before the page is made. It
    runs in slices too. Figures with an equal function are refreshed together."""

    def __post_init__(self) -> None:
        """Raise ValueError if the name on the page breaks the rules of Prometheus."""
        check_metric(self.metric, self.kind, self.unit)

    @property
    def metric_divisor(self) -> int:
        """By which values are divided on the page: RayMQ's own metrics are in base units."""
        return _DIVISORS.get(self.unit, 1) if self.metric.startswith(OWN) else 1

    def samples(self) -> Iterable[Sample]:
        """Return the samples; a figure without labels has one, unless its value is unknown."""
        read = self.read()
        if self.labels:
            return cast("Iterable[Sample]", read)
        return () if read is None else (Sample((), cast("Value", read)),)


def failures_figure(read: Callable[[], int]) -> Figure:
    """Return the figure of the failed background tasks of a process, which `read` returns."""
    return Figure(
        "background_task_failures", Kind.COUNTER, "", read, "Failed background tasks.",
        metric="raymq_background_task_failures_total",
    )  # fmt: skip


def connections_figure(read: Callable[[], int], *, is_described: bool = False) -> Figure:
    """Return the figure of the open connections of a process, which `read` returns."""
    return Figure(
        "connections", Kind.GAUGE, "", read, "Open connections.",
        is_described=is_described,
        metric="raymq_connections",
    )  # fmt: skip


def bound_figures(uses: Sequence[Use]) -> Sequence[Figure]:
    """Return the figures of the bounds of a process; one without a limit is not among the limits."""

    def used() -> Iterator[Sample]:
        found = ((each.bound, each.read()) for each in uses)
        return (Sample((bound.name,), used) for bound, used in found if used is not None)

    def limits() -> Iterator[Sample]:
        found = ((each.bound, each.limit()) for each in uses)
        return (Sample((bound.name, bound.at_limit), limit) for bound, limit in found if limit)

    return (
        Figure(
            "bound_used", Kind.GAUGE, "", used, "What peers have filled of each bound.", ("bound",),
            metric="raymq_bound_used",
        ),
        Figure(
            "bound_limit", Kind.GAUGE, "", limits, "The limits, and what happens to what would exceed them.",
            ("bound", "at_limit"), metric="raymq_bound_limit",
        ),
    )  # fmt: skip


def described(figures: Iterable[Figure]) -> dict[str, object]:
    """Return the values by name; of a histogram, its counts."""
    values = {each.name: each.read() for each in figures if each.is_described and not each.labels}
    return {
        name: list(value.counts) if isinstance(value, Histogram) else value
        for name, value in values.items()
        if value is not None
    }


def runtime_table(figures: Iterable[Figure]) -> dict[str, str]:
    """Return the entries of GET_BROKER_RUNTIME_INFO, sorted by name."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for figure in figures:
        for sample in figure.samples() if figure.runtime_names else ():
            labels = dict(zip(figure.labels, sample.labels, strict=True))
            for name in figure.runtime_names:
                texts[name.format_map(labels) if labels else name].append(figure.text(sample.value))
    return {name: " ".join(values) for name, values in sorted(texts.items())}
