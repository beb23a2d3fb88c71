"""The benchmark of attacks on a gateway, for a second each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.actors.gateway.attacks import CONNECTIONS

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_attacks_on_a_gateway_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.gateway_attacks", "--seconds", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [line.split(":")[0] for line in done.stdout.splitlines()]
    for fill in CONNECTIONS:
        name = fill.__name__
        assert [each for each in found if each.startswith(name)] == [
            f"{name} before", f"{name} attacked", name,
        ]  # fmt: skip
    assert "p99 –" not in done.stdout
