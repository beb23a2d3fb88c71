"""Each lane of system tests runs on one worker, marks match the lanes, and repeated tests are reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import LIMIT_S
from tests.tiers import LANE_MARKS, LANES, lane_of

REPO = Path(__file__).parent.parent


@pytest.mark.parametrize("lane", LANES)
def test_marked_tests_are_in_their_lane(request: pytest.FixtureRequest, lane: str) -> None:
    marked = [
        item.nodeid
        for item in request.session.items
        if any(item.get_closest_marker(mark) for mark in LANE_MARKS[lane])
    ]
    misplaced = {nodeid.partition("::")[0] for nodeid in marked if lane_of(nodeid) != lane}
    assert not misplaced, "add these files to LANES in tests/tiers.py"


FILES = (
    "compat/test_a.py",
    "faults/test_b.py",
    "cluster/test_ray_c.py",
    "jobs/reindex/test_d.py",
    "store/test_e.py",
    "store/test_f.py",
)
SETTINGS = """
[pytest]
timeout = 300
addopts = -p no:cacheprovider --import-mode=importlib --no-loadscope-reorder -n 4
markers =
    ray:
    faults:
"""
FAILS_ONCE = """
from pathlib import Path
import pytest

{mark}
def test_it():
    ran_before = Path(__file__ + ".ran")
    if not ran_before.exists():
        ran_before.touch()
        pytest.fail()
"""
LOGS_AND_FAILS = """
def test_it(tmp_path):
    (tmp_path / "broker.log").write_text("line\\n" * 300 + "refused\\n")
    assert False
"""


@pytest.fixture
def small_suite(tmp_path: Path) -> Path:
    """Create a suite with two files in each lane, two files of unit tests, and the hooks of this suite."""
    (tmp_path / "conftest.py").write_text((REPO / "tests" / "conftest.py").read_text())
    for name in FILES:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n): pass\n")
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    return tmp_path


def run(suite: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # Sessions that run at the same time remove each other's files from the default directory.
    directories = ["--rootdir", str(suite), "--basetemp", str(suite / "temporary")]
    command = [sys.executable, "-m", "pytest", *directories, *options, "tests"]
    environment = {"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin", "HOME": str(suite)}
    return subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_each_lane_runs_on_one_worker(small_suite: Path) -> None:
    done = run(small_suite, "-v")
    ran = re.findall(r"^\[(gw\d)\].* PASSED (\S+)", done.stdout, re.MULTILINE)
    assert len(ran) == 24, done.stdout + done.stderr
    workers = {lane: {worker for worker, nodeid in ran if lane_of(nodeid) == lane} for lane in LANES}
    assert [len(each) for each in workers.values()] == [1, 1]
    assert workers["ray"] != workers["java"]


def test_failed_system_tests_are_repeated_once_and_unit_tests_are_not(small_suite: Path) -> None:
    (small_suite / "tests/faults/test_b.py").write_text(FAILS_ONCE.format(mark="@pytest.mark.faults"))
    (small_suite / "tests/store/test_e.py").write_text(FAILS_ONCE.format(mark=""))
    done = run(small_suite)
    assert "flaky: tests/faults/test_b.py::test_it" in done.stdout, done.stdout + done.stderr
    assert "FAILED tests/store/test_e.py::test_it" in done.stdout
    assert "1 failed, 17 passed, 1 rerun" in done.stdout


def test_failure_report_shows_process_logs(small_suite: Path) -> None:
    (small_suite / "tests/store/test_e.py").write_text(LOGS_AND_FAILS)
    done = run(small_suite)
    assert re.search(r"last lines of .*/broker\.log", done.stdout), done.stdout + done.stderr
    assert done.stdout.count("line\n") == 199
    assert "refused\n" in done.stdout
