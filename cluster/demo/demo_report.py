"""The demo's result tables: flights by carrier from three sources, and delivery statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from cluster.demo.flights import Delays
from cluster.demo.tally import Verdict

MEAN_TOLERANCE = 1e-9
"""Allowed difference between two means. The sums are exact, but the division may be rounded differently."""


@dataclass(frozen=True)
class SparkCount:
    """Result of the aggregation with Spark.

    Attributes:
        delays: Delays by carrier. A flight that is stored twice is counted once.
        stored: Number of stored messages, including duplicates.
        seconds: Duration of the aggregation.
    """

    delays: Mapping[str, Delays]
    stored: int
    seconds: float


@dataclass(frozen=True)
class Timings:
    """Durations of the demo's parts, in seconds.

    Attributes:
        sent_s: Time to send all flights.
        followed_s: Time until the consumers had received all flights.
        outage_s: Time from the kill of the broker until it served again; None if no broker was killed.
    """

    sent_s: float
    followed_s: float
    outage_s: float | None


def agree(left: Delays | None, right: Delays | None) -> bool:
    """Return True if the delays of one carrier from two sources are equal; means within MEAN_TOLERANCE.

    None means that a source has no flights of the carrier.
    """
    if left is None or right is None or (left.flights, left.arrived) != (right.flights, right.arrived):
        return False
    if left.mean_minutes is None or right.mean_minutes is None:
        return left.mean_minutes is right.mean_minutes
    return abs(left.mean_minutes - right.mean_minutes) <= MEAN_TOLERANCE


def disagreements(csv: Mapping[str, Delays], *others: Mapping[str, Delays]) -> list[str]:
    """Return the carriers whose delays in any of `others` differ from those of `csv`, sorted."""
    carriers = set(csv).union(*others)
    return sorted(
        each for each in carriers if not all(agree(csv.get(each), other.get(each)) for other in others)
    )


def carriers_table(
    csv: Mapping[str, Delays], consumers: Mapping[str, Delays], spark: Mapping[str, Delays]
) -> Table:
    """Return the table of flights and mean arrival delay by carrier, from CSV, consumers and Spark."""
    table = Table(title="Flights and mean arrival delay (minutes) by carrier")
    table.add_column("carrier")
    for source in ("CSV", "consumers", "Spark"):
        table.add_column(f"{source}\nflights", justify="right")
        table.add_column(f"{source}\nmean", justify="right")
    table.add_column("")
    wrong = disagreements(csv, consumers, spark)
    for carrier in sorted({*csv, *consumers, *spark}):
        cells = [text for source in (csv, consumers, spark) for text in _cells(source.get(carrier))]
        table.add_row(carrier, *cells, "[red]differs[/]" if carrier in wrong else "[green]✓[/]")
    return table


def _cells(delays: Delays | None) -> tuple[str, str]:
    if delays is None:
        return "–", "–"
    mean = delays.mean_minutes
    return f"{delays.flights:,}", "–" if mean is None else f"{mean:.4f}"


def summary_table(flights: int, verdict: Verdict, spark: SparkCount, timings: Timings) -> Table:
    """Return the table of send and consume rates, and of duplicate, lost and reordered messages."""
    table = Table(title="Delivery", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row(
        "flights sent", f"{flights:,} in {timings.sent_s:.1f} s ({flights / timings.sent_s:,.0f}/s)"
    )
    if timings.outage_s is not None:
        table.add_row("broker killed, serving again after", f"{timings.outage_s:.1f} s")
    followed = f"{verdict.seen:,} in {timings.followed_s:.1f} s ({verdict.seen / timings.followed_s:,.0f}/s)"
    table.add_row("consumed by two consumers", followed)
    table.add_row("read by Spark", f"{spark.stored:,} in {spark.seconds:.1f} s")
    table.add_row("duplicates by UNIQ_KEY: delivered", f"{verdict.duplicates:,}")
    table.add_row("duplicates by UNIQ_KEY: stored", f"{spark.stored - flights:,}")
    table.add_row("lost", _count(verdict.lost))
    table.add_row("out of order per aircraft", _count(verdict.disordered))
    table.add_row("aircraft in more than one queue", _count(verdict.scattered))
    return table


def _count(faults: int) -> str:
    return f"[red]{faults:,}[/]" if faults else "[green]0[/]"
