"""A process imports what it uses: libraries that take 0.1 s or more are imported where they are needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"cryptography.x509", "numba", "numpy", "pandas", "pyarrow", "pyspark", "ray"}


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("cluster.cli.entry", HEAVY | {"cluster.client", "cluster.launch", "structlog"}),
        ("cluster.launch", HEAVY | {"cluster.client"}),
        ("actors.nameserver.service", HEAVY),
        ("actors.rebalancer.service", HEAVY),
        ("actors.broker.service", HEAVY - {"numba", "numpy"}),
    ],
)
def test_module_does_not_import_heavy_libraries_that_it_does_not_use(module: str, unneeded: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)

    assert not unneeded & set(run.stdout.split())
