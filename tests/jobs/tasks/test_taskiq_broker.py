"""Real workers of taskiq with RayMQ as the broker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from taskiq import AsyncBroker

from cluster.client import Admin
from jobs.tasks.taskiq_broker import RayMQBroker
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, eventually

REPO = Path(__file__).parents[3]
TASK = "tests.jobs.tasks.taskiq_app:hold"


def noted(root: Path, text: str) -> int:
    log = root / "tasks.log"
    return log.read_text().split().count(text) if log.exists() else 0


@contextmanager
def worker(root: Path, cluster: Cluster, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `taskiq worker` in a group of processes of its own."""
    environment = {
        **os.environ,
        "RAYMQ_TEST_NAMESERVERS": cluster.address,
        "RAYMQ_TEST_QUEUE": queue,
        "RAYMQ_TEST_LOG": str(root / "tasks.log"),
    }
    command = [sys.executable, "-m", "taskiq", "worker", "-w", "1", "tests.jobs.tasks.taskiq_app:broker"]
    process = subprocess.Popen(command, cwd=REPO, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LIMIT_S)


def kick(cluster: Cluster, queue: str, *names: str, gate: Path, **labels: object) -> None:
    async def story() -> None:
        broker: AsyncBroker = RayMQBroker(cluster.address, queue)
        await broker.startup()
        task = broker.register_task(lambda: None, TASK)
        for name in names:
            await task.kicker().with_labels(**labels).kiq(name, str(gate))
        await broker.shutdown()

    asyncio.run(story())


@pytest.mark.slow
def test_worker_of_taskiq_keeps_its_tasks_until_it_dies(cluster: Cluster, tmp_path: Path) -> None:
    queue, gate = "taskiq-jobs", tmp_path / "gate"
    kick(cluster, queue, "long", gate=gate)
    kick(cluster, queue, "later", gate=gate, delay=1)
    with worker(tmp_path, cluster, queue) as first:
        eventually(lambda: noted(tmp_path, "begin-long") == noted(tmp_path, "begin-later") == 1)
        with worker(tmp_path, cluster, queue) as second:
            with Admin(cluster.address) as admin:
                # the second worker starts, which takes longer than a claim that is not renewed
                def members() -> int:
                    known = admin.group_connection(queue)
                    return len(known.connections) if known is not None else 0

                eventually(lambda: members() == 2)
            assert noted(tmp_path, "begin-long") == 1
            os.killpg(first.pid, signal.SIGKILL)
            eventually(lambda: noted(tmp_path, "begin-long") == noted(tmp_path, "begin-later") == 2)
            gate.touch()
            eventually(lambda: noted(tmp_path, "end-long") == noted(tmp_path, "end-later") == 1)
            with Admin(cluster.address) as admin:
                eventually(
                    lambda: sum(each.lag or 0 for each in admin.group_stats(queue).offsets.values()) == 0
                )
            second.terminate()
            assert second.wait(LIMIT_S) == 0
