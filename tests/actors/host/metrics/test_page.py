"""The page of metrics, read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.host.figures import Figure, Histogram, Kind, Sample
from actors.host.metrics.page import DROPPED, SAMPLES_PER_SLICE, page

LABELS = {"cluster": "C", "node_type": "broker"}


def figure(name: str, kind: Kind, read: object, *labels: str) -> Figure:
    return Figure(name, kind, "", lambda: read, "Help.", labels, metric=f"raymq_{name}")  # type: ignore[arg-type,return-value]


def parsed(*figures: Figure, max_series: int = 1000) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the value of each series by its name and its own labels."""
    text = "".join(page(figures, LABELS, max_series))
    found = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            assert {key: labels.pop(key) for key in LABELS} == LABELS
            found[name, tuple(labels.values())] = value
    return found


def test_page_has_all_kinds_except_texts() -> None:
    text = Figure("role", Kind.TEXT, "", lambda: "master", "Without a metric.")
    histogram = Histogram((1, 5), (2, 0, 1), 9.5)
    found = parsed(
        figure("in_total", Kind.COUNTER, 7), figure("held", Kind.GAUGE, 1.5),
        figure("times", Kind.HISTOGRAM, histogram), text,
    )  # fmt: skip
    assert found == {
        ("raymq_in_total", ()): 7,
        ("raymq_held", ()): 1.5,
        ("raymq_times_bucket", ("1",)): 2,
        ("raymq_times_bucket", ("5",)): 2,
        ("raymq_times_bucket", ("+Inf",)): 3,
        ("raymq_times_sum", ()): 9.5,
        ("raymq_times_count", ()): 3,
    }


def test_hostile_label_values_are_escaped() -> None:
    names = ['a"b', "a\\b", "a\nb", 'a"} 1\nfake{x="', "topic-ü", "\\n"]
    found = parsed(figure("topics", Kind.GAUGE, [Sample((name,), 1) for name in names], "topic"))
    assert set(found) == {("raymq_topics", (name,)) for name in names}


def test_page_says_which_series_were_dropped() -> None:
    topics = [Sample((f"T{number}",), number) for number in range(30)]
    buckets = figure(
        "times",
        Kind.HISTOGRAM,
        Histogram((1,), (1, 1), 3),
    )
    found = parsed(figure("lag", Kind.GAUGE, topics, "topic"), buckets, max_series=20)
    assert sum(name == "raymq_lag" for name, _ in found) == 20
    assert found[DROPPED, ("raymq_lag",)] == 10
    assert found[DROPPED, ("raymq_times",)] == 4
    assert not any(name.startswith("raymq_times") for name, _ in found)


def test_page_is_made_in_slices() -> None:
    read: list[int] = []

    def of_topics() -> Iterator[Sample]:
        for number in range(20_000):
            read.append(number)
            yield Sample((f"T{number}",), number)

    parts = page([Figure("lag", Kind.GAUGE, "", of_topics, "", ("topic",), metric="raymq_lag")], {}, 50_000)
    before = 0
    for _ in parts:
        assert len(read) - before <= SAMPLES_PER_SLICE
        before = len(read)
    assert before == 20_000


def test_own_metrics_are_in_base_units() -> None:
    lags = Histogram((100, 52_000_000), (1, 2, 0), 250_500.0)
    found = parsed(
        Figure("lag", Kind.HISTOGRAM, "us", lambda: lags, "Lag.", metric="raymq_lag_seconds"),
        Figure(
            "start", Kind.GAUGE, "ms", lambda: 1_764_344_566_123, "Start.", metric="raymq_start_time_seconds"
        ),
        Figure("disk", Kind.GAUGE, "percent", lambda: 43, "Disk.", metric="raymq_disk_ratio"),
        Figure("age", Kind.GAUGE, "ms", lambda: 1_500, "Age.", metric="rocketmq_age_milliseconds"),
    )
    assert found["raymq_lag_seconds_bucket", ("0.0001",)] == 1
    assert found["raymq_lag_seconds_bucket", ("52.0",)] == 3
    assert found["raymq_lag_seconds_sum", ()] == 0.2505
    assert found["raymq_start_time_seconds", ()] == 1_764_344_566.123
    assert found["raymq_disk_ratio", ()] == 0.43
    assert found["rocketmq_age_milliseconds", ()] == 1_500  # RocketMQ's names and units stay


@pytest.mark.parametrize(
    ("metric", "kind", "unit"),
    [
        ("raymq_loop_lag_microseconds", Kind.GAUGE, "us"),
        ("raymq_loop_lag_us", Kind.GAUGE, "us"),
        ("raymq_loop_lag", Kind.GAUGE, "us"),
        ("raymq_start_time_milliseconds", Kind.GAUGE, "ms"),
        ("raymq_bytes_in_total", Kind.COUNTER, "bytes"),
        ("raymq_written", Kind.GAUGE, "bytes"),
        ("raymq_written_bytes", Kind.GAUGE, ""),
        ("raymq_written_kib", Kind.GAUGE, ""),
        ("raymq_disk_percent", Kind.GAUGE, "percent"),
        ("raymq_sends", Kind.COUNTER, ""),
        ("raymq_sends_total", Kind.GAUGE, ""),
        ("raymq_sends_count", Kind.GAUGE, ""),
        ("raymq_heldPulls", Kind.GAUGE, ""),
    ],
)
def test_name_of_an_own_metric_that_breaks_the_rules_is_refused(metric: str, kind: Kind, unit: str) -> None:
    with pytest.raises(ValueError, match=metric):
        Figure("f", kind, unit, lambda: 1, "Help.", metric=metric)
