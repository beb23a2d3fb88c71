"""Home directories of runs: what a killed run has left is ended by the next one, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.experiments.run_home import run_home

DRIVER = """
import os, subprocess, sys
from benchmarks.experiments.run_home import run_home
from cluster.control.session.ray_head import MARK_ENV, HeadRecord, write_record

with run_home() as home:
    write_record(home, HeadRecord(sys.argv[1]))
    environment = os.environ | {MARK_ENV: sys.argv[1]}
    node = subprocess.Popen(["sleep", "300"], env=environment, stdout=subprocess.DEVNULL)
    print(home, node.pid, flush=True)
    sys.stdin.read()
"""


class Driver:
    """A process that runs an experiment, with one process that has the mark of the run."""

    def __init__(self, mark: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, mark], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        home, pid = self.process.stdout.readline().split()
        self.home = Path(home)
        self.node = psutil.Process(int(pid))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def has_node(self) -> bool:
        return self.node.is_running() and self.node.status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary directory of the test for the homes of runs."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def drivers(directory: Path) -> Iterator[list[Driver]]:
    found = [Driver(f"test-{os.getpid()}-{name}") for name in ("first", "second")]
    yield found
    for driver in found:
        driver.kill()
        if driver.has_node:
            driver.node.kill()


def test_next_run_ends_what_a_killed_run_has_left_and_nothing_else(drivers: list[Driver]) -> None:
    killed, alive = drivers
    assert killed.home != alive.home
    killed.kill()
    assert killed.has_node

    with run_home() as home:
        assert not killed.has_node
        assert not killed.home.exists()
        assert alive.has_node
        assert alive.home.exists()
        assert home not in (killed.home, alive.home)


def test_reused_pid_is_not_taken_for_the_driver(directory: Path) -> None:
    leftover = directory / f"raymq-experiment-{os.getpid()}-1000000000"
    leftover.mkdir()

    with run_home() as home:
        assert not leftover.exists()
        assert home.is_dir()
    assert not home.exists()
