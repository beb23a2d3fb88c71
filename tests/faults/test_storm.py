"""A storm: everything is stopped, killed and restarted at random for minutes; the checkers find nothing.

    RAYMQ_STORM_S=20 RAYMQ_STORM_SEED=7 uv run pytest -m extended -s tests/faults/test_storm.py

The seed is printed. It determines the harm and the messages, but not how the processes interleave.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.checkers import Recorder
from tests.eventually import NEVER_S
from tests.faults.storm import Storm
from tests.faults.storm_run import DURATION_S, print_seed, run_storm


# A repeated storm has another interleaving: a failure must not be hidden.
@pytest.mark.flaky(reruns=0)
@pytest.mark.faults
@pytest.mark.extended
@pytest.mark.timeout(DURATION_S + NEVER_S)
def test_storm_of_stops_and_kills_loses_and_reorders_nothing(tmp_path: Path) -> None:
    seed = print_seed()
    recorder = Recorder(tmp_path / "history")
    with Storm(tmp_path, recorder, random.Random(seed)) as storm:
        run_storm(storm, recorder, seed, lambda: storm.rage(DURATION_S))
