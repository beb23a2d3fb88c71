"""Figures and their views: the description of a process, and the runtime table of a broker."""

from __future__ import annotations

from collections.abc import Iterator

from actors.host.figures import Figure, Histogram, Kind, Sample, described, runtime_table


def test_description_has_the_values_by_name() -> None:
    figures = (
        Figure("topics", Kind.GAUGE, "", lambda: 3, "Topics."),
        Figure("role", Kind.TEXT, "", lambda: "master", "Role.", runtime_names=("brokerRole",)),
        Figure("put_times", Kind.HISTOGRAM, "ms", lambda: Histogram((1, 5), (2, 0, 1), 9), "Times of puts."),
        Figure("runtime_only", Kind.GAUGE, "", lambda: 1, "Not described.", is_described=False),
    )
    assert described(figures) == {"topics": 3, "role": "master", "put_times": [2, 0, 1]}


def test_runtime_table_has_texts_by_rocketmqs_names() -> None:
    figures = (
        Figure("b", Kind.GAUGE, "", lambda: 3, "Two names.", runtime_names=("putSize", "getSize")),
        Figure("c", Kind.GAUGE, "ms", lambda: 1.5, "Format.", runtime_names=("p99",), text="{:.2f}".format),
        Figure("d", Kind.HISTOGRAM, "ms", lambda: Histogram((1,), (2, 1), 9), "", runtime_names=("buckets",)),
        Figure("path", Kind.GAUGE, "", lambda: 0, "Braces stay.", runtime_names=("ratio_/{x}",)),
        Figure("none", Kind.GAUGE, "", lambda: 1, "Only described."),
    )
    table = runtime_table(figures)
    assert table == {"putSize": "3", "getSize": "3", "p99": "1.50", "buckets": "2 1", "ratio_/{x}": "0"}
    assert list(table) == sorted(table)


def test_samples_of_one_runtime_name_are_joined() -> None:
    def rates() -> Iterator[Sample]:
        for span in ("10", "60"):
            yield Sample(("put", span), int(span) / 10)
            yield Sample(("get", span), 0.0)

    rate = Figure("rate", Kind.GAUGE, "", rates, "", ("rate", "span_s"), ("{rate}Tps",))
    assert runtime_table([rate]) == {"getTps": "0.0 0.0", "putTps": "1.0 6.0"}
    assert described([rate]) == {}
    assert list(rate.samples()) == list(rates())


def test_samples_are_read_one_after_the_other() -> None:
    read: list[int] = []

    def of_topics() -> Iterator[Sample]:
        for number in range(20_000):
            read.append(number)
            yield Sample((f"T{number}",), number)

    samples = iter(Figure("messages", Kind.COUNTER, "", of_topics, "", ("topic",)).samples())
    assert next(samples) == Sample(("T0",), 0)
    assert read == [0]
