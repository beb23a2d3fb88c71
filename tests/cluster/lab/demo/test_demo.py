"""`raymq demo` with few flights: all counts agree, and an interrupt leaves no process and no file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.eventually import LIMIT_S, eventually

pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]

REPO = Path(__file__).parents[4]
FLIGHTS = 12_000
WHOLE_TIMEOUT_S = 5 * LIMIT_S


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a directory for temporary files; its path is short because Ray creates sockets below it."""
    path = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def start(root: Path, *options: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY")}
    return subprocess.Popen(
        [sys.executable, "-m", "cluster.cli.main", "demo", "--flights", str(FLIGHTS), *options],
        env=environment | {"TMPDIR": str(root), "COLUMNS": "140"},
        cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def processes_using(root: Path) -> list[str]:
    """Return the running processes whose TMPDIR is `root`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(root) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def test_demo_counts_agree_after_a_broker_is_killed(root: Path) -> None:
    process = start(root)
    output, _ = process.communicate(timeout=WHOLE_TIMEOUT_S)
    assert process.returncode == 0, output
    assert "All counts agree" in output
    facts = dict(re.findall(r"│ ([a-z][^│]*?) +│ +([^│]*?) *│", output))
    assert (facts["lost"], facts["out of order per aircraft"]) == ("0", "0")
    assert re.fullmatch(r"[\d.]+ s", facts["broker killed, serving again after"])
    assert processes_using(root) == []
    assert list(root.glob("raymq-demo-*")) == []


def test_interrupted_demo_leaves_no_process_and_no_file(root: Path) -> None:
    process = start(root)

    def has_store() -> bool:
        assert process.poll() is None, process.communicate()
        return any(True for _ in root.glob("raymq-demo-*/store/broker-*-0/raymq.json"))

    eventually(has_store, "the store of a broker", within_s=120)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=2 * LIMIT_S)
    assert (process.returncode, output.count("all processes are stopped")) == (130, 1), output
    assert processes_using(root) == []
    assert list(root.glob("raymq-demo-*")) == []


@pytest.mark.extended
def test_demo_with_console_serves_it_until_interrupted(root: Path) -> None:
    process = start(root, "--console")
    assert process.stdout is not None
    output = ""
    while "until Ctrl-C" not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    found = re.search(r"console at (http://127\.0\.0\.1:\d+/)", output)
    assert found is not None, output
    with urllib.request.urlopen(f"{found[1]}api/v1/topics", timeout=LIMIT_S) as response:
        assert "flights" in [row["topic"] for row in json.load(response)["data"]["rows"]]
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=2 * LIMIT_S)
    assert process.returncode == 0, output + rest
    assert processes_using(root) == []
    assert list(root.glob("raymq-demo-*")) == []
