"""The figures of a process in Prometheus' text format 0.0.4.

# HELP raymq_held_pulls Pulls that wait for messages.
# TYPE raymq_held_pulls gauge
raymq_held_pulls{cluster="DefaultCluster",node_type="broker",node_id="broker-a"} 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from typing import Final

from actors.host.figures import Figure, Histogram, Kind, Sample, Value

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
    dropped: dict[str, int] = {}
    for figure in figures:
        if not figure.metric:
            continue
        yield f"# HELP {figure.metric} {_escaped_help(figure.help)}\n# TYPE {figure.metric} {figure.kind}\n"
        samples = iter(figure.samples())
        while part := list(islice(samples, SAMPLES_PER_SLICE)):
            kept: list[str] = []
            for sample in part:
                lines = _lines(figure, sample, fixed)
                if len(lines) <= max_series:
                    max_series -= len(lines)
                    kept += lines
                else:
                    dropped[figure.metric] = dropped.get(figure.metric, 0) + len(lines)
            yield "".join(kept)
    yield from _dropped(dropped, fixed)


def _lines(figure: Figure, sample: Sample, fixed: list[str]) -> list[str]:
    pairs = zip(figure.labels, sample.labels, strict=True)
    labels = [*fixed, *(f'{name}="{_escaped(value)}"' for name, value in pairs)]
    value = sample.value
    if isinstance(value, Histogram):
        return list(_histogram(figure.metric, labels, value))
    return [_line(figure.metric, labels, value)]


def _histogram(name: str, labels: list[str], value: Histogram) -> Iterator[str]:
    bounds = (*map(str, value.bounds), "+Inf")
    total = 0
    for bound, total in zip(bounds, accumulate(value.counts), strict=True):
        yield _line(f"{name}_bucket", [*labels, f'le="{bound}"'], total)
    yield _line(f"{name}_sum", labels, value.total)
    yield _line(f"{name}_count", labels, total)


def _dropped(dropped: Mapping[str, int], fixed: list[str]) -> Iterator[str]:
    yield f"# HELP {DROPPED} Series that exceeded the limit of this page.\n# TYPE {DROPPED} {Kind.GAUGE}\n"
    for metric, count in dropped.items():
        yield _line(DROPPED, [*fixed, f'metric="{metric}"'], count)


def _line(name: str, labels: list[str], value: Value) -> str:
    return f"{name}{{{','.join(labels)}}} {value}\n"


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
