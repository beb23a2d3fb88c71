"""Real workers of Celery with `raymq://` as the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.exceptions import TaskRevokedError

import jobs.tasks.kombu_transport  # noqa: F401 - makes raymq:// known without an installation
from cluster.client import Admin
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, eventually
from tests.jobs.tasks.celery_worker import Worker


class Tasks:
    """Signatures of the tasks of `celery_app`, for the cluster and the result backend of a worker."""

    def __init__(self, worker: Worker) -> None:
        backend = worker.environment.get("RAYMQ_TEST_BACKEND", "rpc://")
        self.app = celery.Celery("callers", broker=worker.environment["RAYMQ_TEST_BROKER"], backend=backend)

    def __getattr__(self, name: str) -> Any:
        return self.app.signature(f"tests.jobs.tasks.celery_app.{name}")

    def close(self) -> None:
        if self.app.conf.result_backend.startswith("rpc"):
            with suppress(AttributeError):  # it has not been used
                self.app.backend.result_consumer.stop()
        self.app.close()


@pytest.fixture
def open_app() -> Iterator[Callable[[Worker], Tasks]]:
    """Yield a function that returns the tasks of a worker."""
    opened: list[Tasks] = []

    def opens(worker: Worker) -> Tasks:
        opened.append(Tasks(worker))
        return opened[-1]

    yield opens
    for tasks in opened:
        tasks.close()


def of_test(cluster: Cluster, tmp_path: Path) -> str:
    """Return the address of the cluster with a namespace of this test."""
    return f"{cluster.address}/{tmp_path.name.replace('[', '-').replace(']', '')}"


@pytest.mark.slow
def test_worker_runs_tasks(cluster: Cluster, tmp_path: Path, open_app: Any) -> None:
    with Worker(tmp_path, of_test(cluster, tmp_path), "w1") as worker:
        tasks = open_app(worker)
        # results and groups
        assert tasks.add.delay(1, 2).get(timeout=LIMIT_S) == 3
        group = celery.group(tasks.add.clone((number, 1)) for number in range(40))()
        assert group.get(timeout=LIMIT_S) == list(range(1, 41))
        # retries and delays
        assert tasks.stubborn.delay(2).get(timeout=LIMIT_S) == 2
        assert worker.noted("stubborn") == 3
        later = tasks.add.apply_async((5, 5), countdown=1)
        revoked = tasks.add.apply_async((6, 6), countdown=1)
        revoked.revoke()
        assert later.get(timeout=LIMIT_S) == 10
        with pytest.raises(TaskRevokedError):
            revoked.get(timeout=LIMIT_S)
        assert worker.noted("add-6-6") == 0
        # remote control
        assert tasks.app.control.ping(destination=["w1@test"], timeout=LIMIT_S) == [
            {"w1@test": {"ok": "pong"}}
        ]
        tasks.app.control.broadcast("shutdown", destination=["w1@test"])
        assert worker.process.wait(LIMIT_S) == 0
    with Admin(cluster.address) as admin:  # queues of this worker alone are gone
        assert [topic for topic in admin.topics() if "pidbox" in topic and "w1" in topic] == []


@pytest.mark.extended
def test_chord_runs_with_another_result_backend(cluster: Cluster, tmp_path: Path, open_app: Any) -> None:
    results = tmp_path / "results"
    results.mkdir()
    with Worker(
        tmp_path,
        of_test(cluster, tmp_path),
        "w1",
        "--pool",
        "threads",
        RAYMQ_TEST_BACKEND=f"file://{results}",
    ) as worker:
        tasks = open_app(worker)
        chord = celery.chord(tasks.add.clone((number, number)) for number in range(5))(tasks.total)
        assert chord.get(timeout=LIMIT_S) == 20


@pytest.mark.extended
def test_task_of_a_killed_worker_runs_again(cluster: Cluster, tmp_path: Path, open_app: Any) -> None:
    gate, address = tmp_path / "gate", of_test(cluster, tmp_path)
    with Worker(tmp_path, address, "w1", RAYMQ_TEST_VISIBILITY_S="1") as first:
        tasks = open_app(first)
        result = tasks.hold.delay("late", str(gate))
        eventually(lambda: first.noted("begin-late") == 1)
        with Worker(tmp_path, address, "w2", RAYMQ_TEST_VISIBILITY_S="1") as second:
            # `second` has started meanwhile, which takes longer than the claim: it was renewed
            assert first.noted("begin-late") == 1
            first.kill()
            eventually(lambda: second.noted("begin-late") == 2)
            gate.touch()
            assert result.get(timeout=LIMIT_S) == "late"


@pytest.mark.extended
def test_stopped_worker_finishes_its_tasks_and_returns_others(
    cluster: Cluster, tmp_path: Path, open_app: Any
) -> None:
    gate, address = tmp_path / "gate", of_test(cluster, tmp_path)
    with Worker(tmp_path, address, "w1", "-c", "1", "--prefetch-multiplier", "4") as first:
        tasks = open_app(first)
        results = [tasks.hold.delay(str(number), str(gate)) for number in range(4)]
        eventually(lambda: "begin-" in first.log.read_text() if first.log.exists() else False)
        first.process.terminate()
        eventually(lambda: "Warm shutdown" in first.output())
        gate.touch()
        assert first.process.wait(LIMIT_S) == 0
        with Worker(tmp_path, address, "w2") as second:
            assert [each.get(timeout=LIMIT_S) for each in results] == ["0", "1", "2", "3"]
            assert sum(second.noted(f"end-{number}") for number in range(4)) == 4


@pytest.mark.extended
def test_worker_survives_a_restart_of_the_broker(
    clusters: Callable[..., Cluster], tmp_path: Path, open_app: Any
) -> None:
    cluster = clusters(brokers=1)
    with Worker(tmp_path, cluster.address, "w1") as worker:
        tasks = open_app(worker)
        assert tasks.add.delay(1, 1).get(timeout=LIMIT_S) == 2
        cluster.stop_broker("a")
        cluster.start_broker("a")
        eventually(lambda: tasks.app.control.ping(destination=["w1@test"], timeout=2))
        tasks.add.delay(2, 2)
        eventually(lambda: worker.noted("add-2-2") == 1)
