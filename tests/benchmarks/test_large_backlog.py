"""The benchmark with a backlog larger than memory reads a small one completely."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import LIMIT_S

REPO = Path(__file__).parent.parent.parent


@pytest.mark.extended
@pytest.mark.spark
def test_benchmark_reads_all_messages_in_each_way(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.large_backlog", "--bytes", "50000000", "--json"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        cwd=REPO, capture_output=True, text=True, timeout=10 * LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["messages"] > 100_000
    read = {each["name"]: each["messages"] for each in report["results"]}
    assert read == dict.fromkeys(("aggregate", "sort", "ray-data"), report["messages"])
    assert all(min(each["peak_mib"].values()) > 0 for each in report["results"])
    assert list(tmp_path.iterdir()) == []
