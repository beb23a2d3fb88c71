"""Every bench runs by itself, verifies what it moved and leaves nothing; its figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.bench import many_queues
from cluster.bench.options import BenchFailed, BenchOptions
from cluster.bench.registry import BENCHES, run_bench
from tests.eventually import LIMIT_S, NEVER_S, eventually

pytestmark = pytest.mark.slow

REPO = Path(__file__).parent.parent.parent.parent
REPRESENTATIVE = "send-table"
WITHOUT_SPARK = [
    name if name == REPRESENTATIVE else pytest.param(name, marks=pytest.mark.extended)
    for name in sorted(set(BENCHES) - {"spark-read", "machine"})
]


def options(directory: Path) -> BenchOptions:
    return BenchOptions(
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


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_a_bench_measures_what_it_says_and_cleans_up(name: str, tmp_path: Path) -> None:
    for result in run_bench(name, options(tmp_path)):
        assert result.name.startswith(name.split("-")[0])
        assert (result.median("messages_per_s") or 0) > 0
        assert (result.median("bytes_per_s") or 0) > 0
        stolen = result.parameters["stolen"]
        assert isinstance(stolen, float)
        assert 0 <= stolen < 1
    assert list(tmp_path.iterdir()) == []


def test_many_queues_is_refused_where_the_disk_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_queues, "free_bytes", lambda _: many_queues.AHEAD_BYTES)
    with pytest.raises(BenchFailed, match=r"bytes left: give fewer --runs, or a --directory with more"):
        run_bench("many-queues", options(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_many_queues_takes_shorter_runs_where_the_disk_has_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = replace(options(tmp_path), seconds=NEVER_S)
    monkeypatch.setattr(many_queues, "SHORTEST_S", 0.0)
    monkeypatch.setattr(many_queues, "free_bytes", lambda _: many_queues.AHEAD_BYTES + (1 << 20))
    for result in run_bench("many-queues", wanted):
        assert (result.median("seconds") or 0) < wanted.seconds


def command_line(name: str, directory: Path, *more: str) -> dict[str, Any]:
    """Run the command, which must print one line of JSON and nothing else."""
    command = [sys.executable, "-m", "cluster.cli.main", "bench", name, "--json", "--runs", "1"]
    command += ["--seconds", "0.2", "--warm-up", "0.1", "--directory", str(directory), *more]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    line: dict[str, Any] = json.loads(done.stdout)
    return line


@pytest.mark.extended
@pytest.mark.spark
def test_spark_read_measures_two_things_and_is_one_line(tmp_path: Path) -> None:
    line = command_line("spark-read", tmp_path, "--messages", "20000")
    assert line["name"] == "spark-read"
    parts = line["parameters"]["parts"]
    assert list(parts) == ["spark-read-bodies", "spark-read-all"]
    assert all(part["messages_per_s"] > 0 for part in parts.values())


@pytest.mark.extended
def test_the_command_names_the_flush_mode_and_the_latencies(tmp_path: Path) -> None:
    line = command_line("send-one", tmp_path, "--flush", "sync")
    assert (line["name"], line["parameters"]["flush"]) == ("send-one", "sync")
    assert {"messages_per_s", "bytes_per_s", "p50_ms", "p99_ms", "seconds"} <= set(line)


def test_a_broker_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    from cluster.bench.broker import bench_cluster

    given = BenchOptions(flush="never", directory=tmp_path)
    with pytest.raises(BenchFailed, match="invalid choice: 'never'"), bench_cluster(given):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_bench_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cluster.cli.main", "bench", "send-one", "--directory", str(tmp_path)]
    with subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True) as bench:
        logs = eventually(
            lambda: bench.poll() is not None or list(tmp_path.glob("raymq-bench-*/broker.log")), "a broker"
        )
        assert logs is not True, "the bench ended by itself"
        bench.terminate()
        assert "all processes are stopped" in bench.communicate(timeout=4 * LIMIT_S)[1]
    assert bench.returncode == 130
    assert list(tmp_path.iterdir()) == []
