"""The Spark example of the documentation computes what pandas computes from the same flights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.lab.demo.flights import delays_by_carrier, read_flights
from tests.jobs.examples import EXAMPLES, FLIGHTS, run_example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

IMAGES = EXAMPLES.parent / "images"


def test_spark_example_reads_streams_writes_back_and_indexes(
    spark: SparkSession,
    empty_cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_example("flights_spark.py", empty_cluster)
    flights = read_flights(FLIGHTS)

    found = {row["carrier"]: (row["flights"], row["arrived"]) for row in ran["delays"].to_dict("records")}
    assert found == {name: (each.flights, each.arrived) for name, each in delays_by_carrier(flights).items()}

    by_day = flights.groupby([flights["time_hour"].str[:10], "origin"]).size()
    written = {
        (str(row["day"])[:10], row["origin"]): row["flights"] for row in ran["stored"].to_dict("records")
    }
    assert len(written) == ran["receipt"].rows > 20
    assert written.items() <= by_day.to_dict().items()

    assert ran["index"].messages_with_key == flights["tailnum"].notna().sum()
    assert ran["index"].messages == FLIGHTS
    assert 'first flight of N14228: {"row":0,' in capsys.readouterr().out

    for name in ("flights-by-carrier.png", "flights-by-day.png"):
        assert (tmp_path / "flights-output" / name).stat().st_size > 5_000
        assert (IMAGES / name).stat().st_size < 80_000
