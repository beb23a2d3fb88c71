"""The benchmark against RocketMQ runs: one second, one system at a time, once on Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from tests.compat.build import JavaKit
from tests.eventually import LIMIT_S

pytestmark = [pytest.mark.java, pytest.mark.extended]

REPO = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("load", "side", "release", "how", "other_processes"),
    [
        ("java-producer", "raymq", "5.3.3", [], {"nameserver", "rebalancer", "ray"}),
        ("java-push", "raymq", "5.3.3", ["--without-ray"], set()),
        ("java-ordered", "raymq", "5.3.3", ["--without-ray"], set()),
        ("java-end-to-end", "raymq", "5.5.0", ["--without-ray", "--rocketmq", "5.5.0"], set()),
        ("java-producer", "rocketmq", "5.5.0", ["--rocketmq", "5.5.0"], set()),
    ],
)
def test_versus_rocketmq_benchmark_reports_figures(
    kit: JavaKit, load: str, side: str, release: str, how: Sequence[str], other_processes: Collection[str]
) -> None:
    options = [
        *how,
        "--only",
        side,
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
    [line] = run(options).splitlines()
    report = json.loads(line)
    assert report["name"] == f"versus-rocketmq {load}"
    assert report["parameters"]["rocketmq"] == release
    assert report["medians"][side]["messages_per_s"] > 0
    assert len(report["rounds"][side]) == 1
    assert report["medians"][side]["broker_anonymous_mib"] > 0
    assert set(report["others_anonymous_mib"]) == other_processes


def test_raft_groups_are_compared_with_both_automatic_modes(kit: JavaKit) -> None:
    report = json.loads(run(["--raft", "--rounds", "1", "--warmup", "1", "--seconds", "1"]))
    assert set(report["messages_per_s"]) == {"raymq", "raymq-single", "dledger", "controller"}
    assert set(report["ratios"]) == {"raymq/dledger", "raymq/controller", "raymq/raymq-single"}


def run(options: Sequence[str]) -> str:
    """Return the standard output of the benchmark."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.versus_rocketmq", *options],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
