"""Each lane of system tests runs on one worker, marks match the lanes, and repeated tests are reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.eventually import LIMIT_S
from tests.tiers import LANE_MARKS, LANES, in_lane_order, lane_of

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


class Item(NamedTuple):
    nodeid: str
    is_slow: bool = False

    def get_closest_marker(self, name: str) -> bool:
        return self.is_slow and name == "slow"


def test_lanes_and_then_files_with_a_slow_test_begin_first() -> None:
    short, quick, slow = Item("tests/a.py::f"), Item("tests/z.py::f"), Item("tests/z.py::g", is_slow=True)
    java, ray = Item("tests/faults/test_b.py::f"), Item("tests/jobs/reindex/test_d.py::f")
    items: Any = [short, java, quick, ray, slow]
    assert in_lane_order(items) == [ray, java, quick, slow, short]


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

@pytest.mark.faults
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


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of a suite with the hooks of this one.

    It has three files in one lane, two in the other, and three of unit tests.
    """
    suite = tmp_path_factory.mktemp("suite")
    (suite / "conftest.py").write_text((REPO / "tests" / "conftest.py").read_text())
    passes = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n): pass\n"
    texts = dict.fromkeys(FILES, passes)
    for name, text in {**texts, "faults/test_g.py": FAILS_ONCE, "store/test_h.py": LOGS_AND_FAILS}.items():
        path = suite / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (suite / "pytest.ini").write_text(SETTINGS)
    # Sessions that run at the same time remove each other's files from the default directory.
    directories = ["--rootdir", str(suite), "--basetemp", str(suite / "temporary")]
    command = [sys.executable, "-m", "pytest", *directories, "-v", "tests"]
    environment = {"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin", "HOME": str(suite)}
    done = subprocess.run(
        command, cwd=suite, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.stdout + done.stderr


def test_each_lane_runs_on_one_worker(output: str) -> None:
    ran = re.findall(r"^\[(gw\d)\].* PASSED (\S+)", output, re.MULTILINE)
    assert len(ran) == 25, output
    workers = {lane: {worker for worker, nodeid in ran if lane_of(nodeid) == lane} for lane in LANES}
    assert [len(each) for each in workers.values()] == [1, 1]
    assert workers["ray"] != workers["java"]


def test_failed_system_tests_are_repeated_once_and_unit_tests_are_not(output: str) -> None:
    assert "flaky: tests/faults/test_g.py::test_it" in output, output
    assert "FAILED tests/store/test_h.py::test_it" in output
    assert "1 failed, 25 passed, 1 rerun" in output


def test_failure_report_shows_process_logs(output: str) -> None:
    assert re.search(r"last lines of .*/broker\.log", output), output
    assert output.count("line\n") == 199
    assert "refused\n" in output
