"""Load profiles, and experiments that are refused with file, line, key path and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.experiment import ExperimentError, load_experiment
from benchmarks.experiments.profile import BurstProfile, SineProfile, StepProfile

STEP = {"kind": "step", "steps": [{"at_s": 0, "rate_per_s": 5}, {"at_s": 10, "rate_per_s": 80}]}
EXPERIMENT = """\
profile: {kind: step, steps: [{at_s: 0, rate_per_s: 50}]}
duration_s: 60
rules:
  max: 4
  throughput_per_broker: 80
node_types:
  broker: {resources: {broker_slot: 1}, max: 4}
caps: {broker_per_s: 100, consumer_per_s: 100}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "try.yaml"
    path.write_text(EXPERIMENT)
    return path


def refused(file: Path, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file, overrides)
    return str(caught.value)


def test_a_step_holds_its_rate_until_the_next() -> None:
    profile = StepProfile.model_validate(STEP)
    assert [profile.rate_per_s(time_s) for time_s in (0, 9.9, 10, 99)] == [5, 5, 80, 80]


def test_a_sine_begins_at_its_low_rate() -> None:
    profile = SineProfile(kind="sine", low_per_s=10, high_per_s=90, period_s=100)
    assert [round(profile.rate_per_s(time_s)) for time_s in (0, 25, 50, 75, 100)] == [10, 50, 90, 50, 10]


def test_bursts_end_each_interval() -> None:
    profile = BurstProfile(kind="burst", base_per_s=1, burst_per_s=9, every_s=10, burst_s=2)
    assert [profile.rate_per_s(time_s) for time_s in (0, 7.9, 8, 9.9, 10, 18)] == [1, 1, 9, 9, 1, 9]


def test_a_replay_holds_each_rate_of_its_file_and_is_scaled(file: Path) -> None:
    (file.parent / "rates.csv").write_text("time_s,rate_per_s\n0,10\n20,40\n")
    text = EXPERIMENT.replace(
        "{kind: step, steps: [{at_s: 0, rate_per_s: 50}]}", "{kind: replay, file: rates.csv}"
    )
    file.write_text(text + "time_scale: 2\n")

    experiment = load_experiment(file)

    assert experiment.run_s == 30
    assert [experiment.offered_per_s(time_s) for time_s in (0, 9, 10, 29, 30)] == [10, 10, 40, 40, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "time_s,rate_per_s\n0,5\n10,-3\n",
            "rates.csv:3: rate_per_s is -3: give a finite number of 0 or more",
        ),
        ("time_s,rate_per_s\n0,many\n", "rates.csv:2: rate_per_s is 'many': give a number"),
        ("time_s,rate_per_s\n0\n", "rates.csv:2: rate_per_s is None: give a number"),
        ("time_s,rate_per_s\n5,1\n2,1\n", "rates.csv:3: time_s 2.0 follows 5.0: sort the rows by time_s"),
        ("time,rate\n0,5\n", "rates.csv:1: column time_s is missing: use the columns time_s, rate_per_s"),
        ("time_s,rate_per_s\n", "there is no row"),
    ],
)
def test_an_invalid_csv_of_rates_is_refused_with_its_line(file: Path, rows: str, message: str) -> None:
    (file.parent / "rates.csv").write_text(rows)
    error = refused(file, "profile={kind: replay, file: rates.csv}")
    assert "profile.file: " in error
    assert message in error


def test_a_missing_csv_of_rates_is_refused(file: Path) -> None:
    assert "cannot be read as CSV" in refused(file, "profile={kind: replay, file: none.csv}")


def test_a_negative_rate_is_refused_with_file_line_and_key(file: Path) -> None:
    file.write_text(EXPERIMENT.replace("rate_per_s: 50", "rate_per_s: -50"))
    assert refused(file) == f"{file}:1: profile.steps[0].rate_per_s: -50 is less than the minimum 0.0"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rules.min=9", "rules: min 9 is greater than max 4: lower min or raise max"),
        ("rules.cooldown_s=3", "rules.cooldown_s: no such key; did you mean 'cool_down_s'?"),
        (
            "resource=gpu_slot",
            "resource: no node type offers 1 of 'gpu_slot', only broker_slot: add it to a node",
        ),
        ("node_types.broker.resources.broker_slot=0.5", "resource: no node type offers 1 of 'broker_slot'"),
        ("rules.max=5", "rules.max: 5 brokers need 5 of 'broker_slot', but the node types offer 4: lower it"),
        ("rules.throughput_per_broker=120", "rules.throughput_per_broker: 120 exceeds caps.broker_per_s 100"),
        ("profile.kind=zigzag", "profile.kind: 'zigzag' is invalid: use step, sine, burst, replay"),
        (
            "profile={kind: sine, low_per_s: 9, high_per_s: 1, period_s: 5}",
            "profile: low_per_s 9.0 is greater",
        ),
        (
            "profile={kind: burst, base_per_s: 1, burst_per_s: 2, every_s: 5, burst_s: 5}",
            "shorten the bursts",
        ),
        (
            "profile={kind: sine, low_s: 9, high_per_s: 1, period_s: 5}",
            "profile.low_s: no such key; did you mean 'low_per_s'?",
        ),
        ("profile={kind: step, steps: []}", "profile: steps is empty"),
        ("profile={kind: step, steps: [{at_s: 5, rate_per_s: 1}]}", "the first step begins at 5.0 s"),
        ("sample_interval_s=90", "sample_interval_s: 90.0 is longer than the run of 60.0 s"),
        ("duration_s=0", "duration_s: 0"),
    ],
)
def test_a_contradiction_is_refused_with_key_path_and_remedy(file: Path, override: str, message: str) -> None:
    assert message in refused(file, override)


def test_a_file_that_does_not_exist_is_refused_with_the_shipped_names(tmp_path: Path) -> None:
    assert "or one of burst, daily, fleet, step" in refused(tmp_path / "none.yaml")


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert "an experiment must be a mapping; see configs/experiments/step.yaml" in refused(
        tmp_path / "list.yaml"
    )


@pytest.mark.parametrize("name", ["step", "daily", "burst", "fleet"])
def test_shipped_experiments_are_valid(name: str) -> None:
    experiment = load_experiment(f"configs/experiments/{name}.yaml")
    assert experiment.name == name
    assert experiment.rules.max == experiment.broker_node.max


def test_the_daily_load_is_10_to_80_percent_of_at_most_4_brokers() -> None:
    daily = load_experiment("daily.yaml")
    assert daily.rules.max <= 4
    capacity = daily.rules.max * daily.caps.broker_per_s
    rates = [daily.offered_per_s(daily.run_s * part / 100) for part in range(100)]
    assert (min(rates), round(max(rates))) == (0.1 * capacity, 0.8 * capacity)


@pytest.mark.parametrize("name", ["step", "daily", "burst"])
def test_ready_experiments_take_less_than_five_minutes(name: str) -> None:
    experiment = load_experiment(f"{name}.yaml")
    assert experiment.baseline == "simulate"
    assert experiment.run_s <= 240
