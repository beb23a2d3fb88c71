"""The demo's result tables: flights by carrier from three sources, and delivery statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rich.table import Table

from cluster.lab.demo.flights import Delays
from cluster.lab.demo.tally import FlightVerdict


class SparkCount(NamedTuple):
    """Result of the aggregation with Spark."""

    delays: Mapping[str, Delays]
    """Delays by carrier. A flight that is stored twice is counted once."""
    stored: int
    """Number of stored messages, including duplicates."""
    seconds: float
    """Duration of the aggregation."""


class Timings(NamedTuple):
    """Durations of the demo's parts."""

    sent_s: float
    """Time to send all flights."""
    followed_s: float
    """Time until the consumers had received all flights."""
    outage_s: float
    """Time from the kill of the broker until it served again."""


class Outcome(NamedTuple):
    """Result of the demo: delays by airline as computed from the CSV, the consumers and Spark, and times."""

    csv: Mapping[str, Delays]
    verdict: FlightVerdict
    spark: SparkCount
    timings: Timings

    @property
    def is_success(self) -> bool:
        """Return True if no message is lost or out of order and all three sources agree."""
        verdict = self.verdict
        faults = verdict.lost + verdict.disordered + verdict.scattered
        return not faults and self.csv == verdict.delays == self.spark.delays

    def carriers_table(self) -> Table:
        """Return the table of flights and mean arrival delay by carrier, from CSV, consumers and Spark."""
        table = Table(title="Flights and mean arrival delay (minutes) by carrier")
        table.add_column("carrier")
        for source in ("CSV", "consumers", "Spark"):
            table.add_column(f"{source}\nflights", justify="right")
            table.add_column(f"{source}\nmean", justify="right")
        table.add_column("")
        sources = (self.csv, self.verdict.delays, self.spark.delays)
        for carrier in sorted({carrier for source in sources for carrier in source}):
            found = [source.get(carrier) for source in sources]
            is_equal = found[0] == found[1] == found[2]
            cells = [text for delays in found for text in _cells(delays)]
            table.add_row(carrier, *cells, "[green]✓[/]" if is_equal else "[red]differs[/]")
        return table

    def summary_table(self) -> Table:
        """Return the table of send and consume rates, and of duplicate, lost and reordered messages."""
        verdict, spark, timings = self.verdict, self.spark, self.timings
        flights = sum(delays.flights for delays in self.csv.values())
        rows = {
            "flights sent": _rate(flights, timings.sent_s),
            "broker killed, serving again after": f"{timings.outage_s:.1f} s",
            "consumed by two consumers": _rate(verdict.seen, timings.followed_s),
            "read by Spark": f"{spark.stored:,} in {spark.seconds:.1f} s",
            "duplicates by UNIQ_KEY: delivered": f"{verdict.duplicates:,}",
            "duplicates by UNIQ_KEY: stored": f"{spark.stored - flights:,}",
            "lost": _faults(verdict.lost),
            "out of order per aircraft": _faults(verdict.disordered),
            "aircraft in more than one queue": _faults(verdict.scattered),
        }
        table = Table(title="Delivery", show_header=False)
        table.add_column(justify="left")
        table.add_column(justify="right")
        for name, text in rows.items():
            table.add_row(name, text)
        return table


def _cells(delays: Delays | None) -> tuple[str, str]:
    if delays is None:
        return "–", "–"
    mean = delays.mean_minutes
    return f"{delays.flights:,}", "–" if mean is None else f"{mean:.4f}"


def _rate(count: int, seconds: float) -> str:
    return f"{count:,} in {seconds:.1f} s ({count / seconds:,.0f}/s)"


def _faults(count: int) -> str:
    return f"[red]{count:,}[/]" if count else "[green]0[/]"
