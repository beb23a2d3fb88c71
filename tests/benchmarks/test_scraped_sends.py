"""The benchmark of sends while a broker is scraped, with few queues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_sends_and_scrapes_are_measured() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.scraped_sends",
        "--queues",
        "8",
        "--groups",
        "2",
        "--scrapes",
        "2",
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, _, ratio = done.stdout.splitlines()
    assert first.startswith("8 queues, 2 groups: ")
    assert float(ratio)
