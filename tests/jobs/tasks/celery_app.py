"""The Celery application of the tests. Its tasks append lines to the file RAYMQ_TEST_LOG."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from tests.eventually import eventually

app = Celery(
    "tests", broker=os.environ["RAYMQ_TEST_BROKER"], backend=os.environ.get("RAYMQ_TEST_BACKEND", "rpc://")
)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": float(os.environ.get("RAYMQ_TEST_VISIBILITY_S", "60"))},
)


def note(text: str) -> None:
    with Path(os.environ["RAYMQ_TEST_LOG"]).open("a") as log:
        log.write(f"{text} {time.time()}\n")


@app.task
def add(left: int, right: int) -> int:
    note(f"add-{left}-{right}")
    return left + right


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def stubborn(self: Any, failures: int) -> int:
    note("stubborn")
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def hold(name: str, gate: str) -> str:
    """Run until the file `gate` exists."""
    note(f"begin-{name}")
    eventually(Path(gate).exists)
    note(f"end-{name}")
    return name
