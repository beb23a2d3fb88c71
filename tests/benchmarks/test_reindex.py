"""The benchmark of the re-index measures real stores; its rates are compared with the goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.internals.options import InternalsOptions
from benchmarks.reindex import FLOOR_BYTES_PER_S, measure, verdict


def test_verdict_names_the_goal_that_a_rate_reaches() -> None:
    assert verdict(FLOOR_BYTES_PER_S - 1, 10e9) == "missed"
    assert verdict(FLOOR_BYTES_PER_S, 10e9) == "floor"
    assert verdict(5e9, 10e9) == "aim"


@pytest.mark.extended
@pytest.mark.spark
def test_benchmark_reindexes_and_checks_a_store(tmp_path: Path) -> None:
    results = measure(InternalsOptions(runs=1, log_bytes=6_000_000, directory=tmp_path), 2)
    assert [each.name for each in results] == ["reindex", "reindex-check"]
    assert all((each.median("bytes_per_s") or 0) > 0 for each in results)
    assert list(tmp_path.iterdir()) == []
