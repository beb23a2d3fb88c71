"""The Ray Data example of the documentation selects and writes what pandas selects."""

from __future__ import annotations

import json

import pytest

from cluster.lab.demo.flights import read_flights
from jobs import read_dataset
from tests.jobs.examples import FLIGHTS, run_example

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_ray_data_example_writes_late_flights(ray_data: None, empty_cluster: str) -> None:
    ran = run_example("flights_ray_data.py", empty_cluster)
    flights = read_flights(FLIGHTS)
    late = flights[flights["arr_delay"] > 60]
    assert ran["receipt"].rows == len(late) > 100
    columns = ["body", "keys", "tags"]
    rows = read_dataset("flights-late", nameservers=empty_cluster, committed=True, columns=columns).take_all()
    written = {json.loads(row["body"])["row"]: (row["keys"], row["tags"]) for row in rows}
    assert written == {
        row: (tailnum, carrier)
        for row, tailnum, carrier in late[["row", "tailnum", "carrier"]].itertuples(index=False)
    }
