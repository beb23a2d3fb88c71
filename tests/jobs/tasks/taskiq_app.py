"""The taskiq broker of the tests. Its task appends lines to the file RAYMQ_TEST_LOG."""

from __future__ import annotations

import os
from pathlib import Path

from jobs.tasks.taskiq_broker import RayMQBroker
from tests.eventually import eventually

broker = RayMQBroker(os.environ["RAYMQ_TEST_NAMESERVERS"], os.environ["RAYMQ_TEST_QUEUE"], invisible_ms=1_000)


@broker.task
def hold(name: str, gate: str) -> None:
    """Run until the file `gate` exists."""
    log = Path(os.environ["RAYMQ_TEST_LOG"])
    with log.open("a") as lines:
        lines.write(f"begin-{name}\n")
    eventually(Path(gate).exists)
    with log.open("a") as lines:
        lines.write(f"end-{name}\n")
