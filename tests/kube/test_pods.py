"""The chart runs in pods with namespaces of their own, with a client outside, while pods are lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import NEVER_S
from tests.faults.raft.test_partitions import can_make_networks
from tests.kube.pods import REPO


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(NEVER_S)
@pytest.mark.skipif(not can_make_networks(), reason="needs root, unshare and ip")
def test_client_outside_loses_nothing_while_pods_are_lost_and_added(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-m", "tests.kube.run_pods", str(tmp_path)],
        cwd=REPO, capture_output=True, text=True, check=False, timeout=NEVER_S,
    )  # fmt: skip
    assert done.stdout.endswith("DONE\n"), done.stdout + done.stderr
