"""The figures of a process in Prometheus' text format 0.0.4.

# HELP raymq_held_pulls Pulls that wait for messages.
# TYPE raymq_held_pulls gauge
raymq_held_pulls{cluster="DefaultCluster",node_type="broker",node_id="broker-a"} 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate, islice
from typing import Final

from actors.host.figures import Figure, Histogram, Kind, Value

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_PER_SLICE: Final = 64
"""Take about a millisecond if each is the sum over the eight queues of a topic."""
DROPPED: Final = "raymq_metrics_dropped_series"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def page(figures: Iterable[Figure], labels: Mapping[str, str], max_series: int) -> Iterator[str]:
    """Yield the page in parts of at most SAMPLES_PER_SLICE samples, so that other tasks can run in between.

    Args:
        figures: those with a `metric` are on the page.
        labels: added to all samples.
        max_series: limit of lines with a value. Further ones are counted by metric in DROPPED.
    """
    fixed = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    escaped = cache(_escaped)  # most label values are in several figures
    dropped: dict[str, int] = {}
    for figure in figures:
        if not figure.metric:
            continue
        yield f"# HELP {figure.metric} {_escaped_help(figure.help)}\n# TYPE {figure.metric} {figure.kind}\n"
        starts, divisor = [f'{name}="' for name in figure.labels], figure.metric_divisor
        samples = iter(figure.samples())
        while part := list(islice(samples, SAMPLES_PER_SLICE)):
            kept: list[str] = []
            for sample in part:
                own = [
                    f'{start}{escaped(value)}"' for start, value in zip(starts, sample.labels, strict=True)
                ]
                value = sample.value if divisor == 1 else _in_base_unit(sample.value, divisor)
                lines = _lines(figure.metric, ",".join(fixed + own), value)
                if len(lines) <= max_series:
                    max_series -= len(lines)
                    kept += lines
                else:
                    dropped[figure.metric] = dropped.get(figure.metric, 0) + len(lines)
            yield "".join(kept)
    yield from _dropped(dropped, fixed)


def _in_base_unit(value: Value, divisor: int) -> Value:
    if isinstance(value, Histogram):
        bounds = [bound / divisor for bound in value.bounds]
        return Histogram(bounds, value.counts, value.total / divisor)
    return value if isinstance(value, str) else value / divisor


def _lines(name: str, labels: str, value: Value) -> list[str]:
    if isinstance(value, Histogram):
        return list(_histogram(name, labels, value))
    return [f"{name}{{{labels}}} {value}\n"]


def _histogram(name: str, labels: str, value: Histogram) -> Iterator[str]:
    bounds = (*map(str, value.bounds), "+Inf")
    separator, total = "," if labels else "", 0
    for bound, total in zip(bounds, accumulate(value.counts), strict=True):
        yield f'{name}_bucket{{{labels}{separator}le="{bound}"}} {total}\n'
    yield f"{name}_sum{{{labels}}} {value.total}\n"
    yield f"{name}_count{{{labels}}} {total}\n"


def _dropped(dropped: Mapping[str, int], fixed: list[str]) -> Iterator[str]:
    yield f"# HELP {DROPPED} Series that exceeded the limit of this page.\n# TYPE {DROPPED} {Kind.GAUGE}\n"
    for metric, count in dropped.items():
        labels = ",".join([*fixed, f'metric="{metric}"'])
        yield f"{DROPPED}{{{labels}}} {count}\n"


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
