"""Partitions of a Raft group, symmetric and one-way, while every kind of client works: nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import NEVER_S
from tests.faults.raft.processes import REPO


def can_make_networks() -> bool:
    """Return True if this user may create network namespaces, and connect them."""
    probe = "ip link add probe type bridge && ip link add one type veth peer name two"
    try:
        return subprocess.run(["unshare", "--net", "sh", "-c", probe], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.faults
@pytest.mark.extended
@pytest.mark.timeout(NEVER_S)
# A repeated run has another interleaving: a failure must not be hidden.
@pytest.mark.flaky(reruns=0)
@pytest.mark.skipif(not can_make_networks(), reason="needs root, unshare and ip")
def test_partitions_of_a_raft_group_lose_and_reorder_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.faults.raft.partitions", str(tmp_path)],
        cwd=REPO, capture_output=True, text=True, check=False, timeout=NEVER_S,
    )  # fmt: skip
    assert done.stdout.endswith("DONE\n"), done.stdout + done.stderr
    with capsys.disabled():
        print(done.stdout)  # noqa: T201 - the figures of docs/faults.md
