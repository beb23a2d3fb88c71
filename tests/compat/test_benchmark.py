"""The comparison with RocketMQ runs: a second of it, on our side alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.build import JavaKit

pytestmark = pytest.mark.java

REPO = Path(__file__).parent.parent.parent
TIMEOUT_S = 90


@pytest.mark.parametrize("load", ["java-producer", "java-push", "java-end-to-end"])
def test_the_benchmark_prints_its_figures(kit: JavaKit, load: str) -> None:
    options = [
        "--only",
        "raymq",
        "--rounds",
        "1",
        "--warmup",
        "1",
        "--seconds",
        "1",
        "--messages",
        "20000",
        "--load",
        load,
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.versus_rocketmq", *options],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["name"] == f"versus-rocketmq {load}"
    assert report["medians"]["raymq"]["messages_per_s"] > 0
    assert len(report["rounds"]["raymq"]) == 1
