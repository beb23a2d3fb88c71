"""The main job, shortened: it must agree with itself, and an interrupt must leave nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.eventually import LIMIT_S, eventually

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]

REPO = Path(__file__).parent.parent.parent.parent
FLIGHTS = 12_000
WHOLE_TIMEOUT_S = 5 * LIMIT_S


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path for temporary files: Ray's sockets lie below it."""
    path = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def start(place: Path) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY")}
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.cli.main", "demo", "--flights", str(FLIGHTS)],
        env=environment | {"TMPDIR": str(place), "COLUMNS": "140"},
        cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def left_behind(place: Path) -> list[str]:
    """The processes that were started for a demo with its temporary files at `place`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(place) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def test_all_three_agree_although_a_broker_dies_in_the_middle(place: Path) -> None:
    process = start(place)
    output, _ = process.communicate(timeout=WHOLE_TIMEOUT_S)
    assert process.returncode == 0, output
    assert "All three agree" in output
    facts = dict(re.findall(r"│ ([a-z][^│]*?) +│ +([^│]*?) *│", output))
    assert (facts["lost"], facts["out of order for their aircraft"]) == ("0", "0")
    assert re.fullmatch(r"[\d.]+ s", facts["a broker was killed, and back after"])
    assert left_behind(place) == []
    assert list(place.glob("raymq-demo-*")) == []


def test_an_interrupt_leaves_nothing_running(place: Path) -> None:
    process = start(place)

    def has_store() -> bool:
        assert process.poll() is None, process.communicate()
        return any(True for _ in place.glob("raymq-demo-*/store/broker-*-0/raymq.json"))

    eventually(has_store, "a broker's store", within_s=120)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=2 * LIMIT_S)
    assert (process.returncode, output.count("all processes are stopped")) == (130, 1), output
    assert left_behind(place) == []
    assert list(place.glob("raymq-demo-*")) == []
