"""Each benchmark runs with small options and deletes its files; the measured values are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.client import ClientError, Producer, ProducerConfig, TlsConfig
from cluster.lab.bench.broker import bench_cluster
from cluster.lab.bench.options import BenchFailed, BenchOptions
from cluster.lab.bench.registry import BENCHES, run_bench
from tests.certificates import Authority
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.slow

REPO = Path(__file__).parents[4]
REPRESENTATIVE = "send-table"
WITHOUT_SPARK = [
    name if name == REPRESENTATIVE else pytest.param(name, marks=pytest.mark.extended)
    for name in sorted(set(BENCHES) - {"spark-read"})
]


def options(directory: Path) -> BenchOptions:
    return BenchOptions(
        seconds=0.2,
        warm_up_s=0.05,
        runs=1,
        messages=20_000,
        directory=directory,
    )


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_benchmark_reports_results_and_deletes_its_files(name: str, tmp_path: Path) -> None:
    for result in run_bench(name, options(tmp_path)):
        assert result.name.startswith(name.split("-")[0])
        assert (result.median("messages_per_s") or 0) > 0
        assert (result.median("bytes_per_s") or 0) > 0
        stolen = result.parameters["stolen"]
        assert isinstance(stolen, float)
        assert 0 <= stolen < 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_benchmark_connects_by_tls_if_requested(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    authority.issue()
    (tmp_path / "stores").mkdir()
    given = replace(options(tmp_path / "stores"), tls=authority.ca_file.parent)
    [result] = run_bench("send-one", given)
    assert result.parameters["tls"] is True
    assert "RAYMQ_TLS_CA" not in os.environ
    system_cas = ProducerConfig(tls=TlsConfig())
    with (
        bench_cluster(given) as cluster,
        pytest.raises(ClientError, match="certificate is not valid"),
        Producer(cluster.nameservers, config=system_cas) as producer,
    ):
        producer.send("T", b"body")


def command_line(name: str, directory: Path, *more: str) -> dict[str, Any]:
    """Run `raymq bench --json` and return its output, which must be one line of JSON."""
    command = [sys.executable, "-m", "cluster.cli.main", "bench", name, "--json", "--runs", "1"]
    command += ["--seconds", "0.2", "--warm-up", "0.1", "--directory", str(directory), *more]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    line: dict[str, Any] = json.loads(done.stdout)
    return line


@pytest.mark.extended
@pytest.mark.spark
def test_spark_read_prints_both_parts_in_one_json_line(tmp_path: Path) -> None:
    line = command_line("spark-read", tmp_path, "--messages", "20000")
    assert line["name"] == "spark-read"
    parts = line["parameters"]["parts"]
    assert list(parts) == ["spark-read-bodies", "spark-read-all"]
    assert all(part["messages_per_s"] > 0 for part in parts.values())


@pytest.mark.extended
def test_command_prints_flush_mode_and_latencies(tmp_path: Path) -> None:
    line = command_line("send-one", tmp_path, "--flush", "sync")
    assert (line["name"], line["parameters"]["flush"]) == ("send-one", "sync")
    assert {"messages_per_s", "bytes_per_s", "p50_ms", "p99_ms", "seconds"} <= set(line)


def test_error_contains_log_of_broker_that_did_not_start(tmp_path: Path) -> None:
    given = BenchOptions(flush="never", directory=tmp_path)
    with pytest.raises(BenchFailed, match="invalid choice: 'never'"), bench_cluster(given):
        pass
    given = BenchOptions(tls=tmp_path, directory=tmp_path)
    with pytest.raises(BenchFailed, match=r"server\.crt"), bench_cluster(given):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended  # cli/test_interrupts.py has one that several signals stop
def test_terminated_benchmark_deletes_its_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cluster.cli.main", "bench", "send-one", "--directory", str(tmp_path)]
    with subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True) as bench:
        logs = eventually(
            lambda: bench.poll() is not None or list(tmp_path.glob("raymq-bench-*/broker.log")),
            "the log of the broker",
        )
        assert logs is not True, "the benchmark exited before it was terminated"
        bench.terminate()
        assert "all processes are stopped" in bench.communicate(timeout=4 * LIMIT_S)[1]
    assert bench.returncode == 130
    assert list(tmp_path.iterdir()) == []
