"""Each benchmark runs with small options and deletes its files; the measured values are not checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.internals import machine, many_queues
from benchmarks.internals.__main__ import INTERNALS, run_internal
from benchmarks.internals.options import InternalsOptions
from cluster.lab.bench.options import BenchFailed
from tests.eventually import NEVER_S

pytestmark = pytest.mark.slow


def options(directory: Path) -> InternalsOptions:
    return InternalsOptions(
        seconds=0.2,
        warm_up_s=0.05,
        runs=1,
        messages=20_000,
        log_bytes=6_000_000,
        queues=64,
        backlog=50_000,
        cold_bytes=16_000_000,
        connections=20,
        directory=directory,
    )


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(set(INTERNALS) - {"machine"}))
def test_benchmark_reports_results_and_deletes_its_files(name: str, tmp_path: Path) -> None:
    for result in run_internal(name, options(tmp_path)):
        assert result.name.startswith(name.split("-")[0])
        assert (result.median("messages_per_s") or 0) > 0
        assert (result.median("bytes_per_s") or 0) > 0
    assert list(tmp_path.iterdir()) == []


def test_machine_measures_all_limits() -> None:
    results = {each.name: each for each in machine.run(InternalsOptions(seconds=0.2, runs=1))}
    assert set(results) == {"memory-copy", "first-touch", "append-fdatasync", "loopback-tcp", "interpreter"}
    assert (results["memory-copy"].median("bytes_per_s") or 0) > 0
    assert (results["append-fdatasync"].median("p50_ms") or 0) > 0


def test_many_queues_fails_if_disk_has_too_little_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_queues, "free_bytes", lambda _: many_queues.AHEAD_BYTES)
    with pytest.raises(BenchFailed, match=r"free bytes: use fewer --runs, or a --directory with more space"):
        run_internal("many-queues", options(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_many_queues_shortens_runs_to_free_disk_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = replace(options(tmp_path), seconds=NEVER_S)
    monkeypatch.setattr(many_queues, "SHORTEST_S", 0.0)
    monkeypatch.setattr(many_queues, "free_bytes", lambda _: many_queues.AHEAD_BYTES + (1 << 20))
    for result in run_internal("many-queues", requested):
        assert (result.median("seconds") or 0) < requested.seconds
