"""Tasks and sessions of Ray Serve on the Ray that runs RayMQ: replicas are killed, added and removed."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.client import Admin
from tests.cluster.conftest import REPO, RayMQ
from tests.cluster.ray_helpers import kill_process, submit_job
from tests.eventually import eventually
from tests.jobs.tasks.processors import result_of
from tests.test_pages import blocks_of

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TASKS = 300


@pytest.fixture(scope="module", autouse=True)
def serving() -> Iterator[None]:
    """Stop Serve after the tests of this file."""
    yield
    sys.modules["ray.serve"].shutdown()


def test_each_task_has_a_result_when_a_replica_is_killed(running: RayMQ, topic: str) -> None:
    from tests.cluster.task_deployments import config_of, deployed, deployment_of, sender_of

    config = config_of(topic)
    with deployed(deployment_of(config, num_replicas=2)):
        sender = sender_of(config)
        killed = int(result_of(sender, sender.enqueue_task_sync("square", [0]).id).result[1])
        ids = []
        for number in range(TASKS):
            ids.append(sender.enqueue_task_sync("square", [number]).id)
            if number == TASKS // 2:
                os.kill(killed, signal.SIGKILL)
        found = [result_of(sender, each) for each in ids]
        assert {each.status for each in found} == {"SUCCESS"}
        assert [each.result[0] for each in found] == [number * number for number in range(TASKS)]
        assert len({each.result[1] for each in found} - {killed}) >= 1


@pytest.mark.extended
def test_no_task_is_lost_by_kills_and_a_rolled_deployment(running: RayMQ, topic: str, tmp_path: Path) -> None:
    from tests.cluster.task_deployments import config_of, deployed, deployment_of, run, sender_of

    config, hung = config_of(topic, max_run_ms=15_000), tmp_path / "hung"
    with deployed(deployment_of(config, num_replicas=3)):
        sender = sender_of(config)
        taken_over = sender.enqueue_task_sync("hang_once", [str(hung)]).id
        ids: list[str] = []
        killed: list[int] = []

        def kill_replica() -> None:
            killed.append(int(result_of(sender, ids[-1]).result[1]))
            os.kill(killed[-1], signal.SIGKILL)

        steps: dict[int, Callable[[], object]] = {
            1_500: kill_replica,
            3_000: lambda: kill_process("broker-a-0"),
            4_500: kill_replica,
            6_000: lambda: run(deployment_of(config, num_replicas=3)),
            8_000: kill_replica,
        }
        for number in range(10_000):
            ids.append(sender.enqueue_task_sync("square", [number]).id)
            steps.get(number, lambda: None)()
        found = [result_of(sender, each) for each in ids]
        assert Counter(each.status for each in found) == {"SUCCESS": 10_000}
        assert [each.result[0] for each in found] == [number * number for number in range(10_000)]
        before, after = (
            {each.result[1] for each in found[part]} for part in (slice(6_000), slice(8_000, None))
        )
        assert len(killed) == 3
        assert not before & after  # the deployment was rolled
        assert result_of(sender, taken_over).status == "SUCCESS"
        print(f"results stored twice: {stored(running, f'{topic}_results') - 10_001}")  # noqa: T201 - a report


@pytest.mark.extended
def test_program_of_the_page_runs_as_a_job(running: RayMQ, tmp_path: Path) -> None:
    program = next(each.text for each in blocks_of("docs/tasks.md") if each.language == "python")
    (tmp_path / "thumbnails.py").write_text(program)
    done = submit_job(running, tmp_path, "python", "thumbnails.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 thumbnails, the last one has" in done.stdout


@pytest.mark.extended
def test_chat_sessions_are_answered_in_order_though_a_replica_is_killed(running: RayMQ) -> None:
    program = (sys.executable, "chat_sessions.py", "300", ";".join(running.nameservers))
    done = submit_job(running, REPO / "docs" / "examples", *program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 sessions opened on" in done.stdout
    assert "sessions opened again" in done.stdout
    assert "900 answers in" in done.stdout


def stored(raymq: RayMQ, topic: str) -> int:
    with Admin(";".join(raymq.nameservers)) as admin:
        return sum(admin.end_offsets(topic).values())


def test_replicas_follow_the_backlog_from_zero_and_back(running: RayMQ, topic: str, tmp_path: Path) -> None:
    from tests.cluster.task_deployments import (
        autoscaled,
        config_of,
        deployed,
        deployment_of,
        replicas,
        sender_of,
    )

    config, released = config_of(topic), tmp_path / "released"
    with deployed(deployment_of(config, **autoscaled(topic))):
        assert replicas() == 0
        sender = sender_of(config)
        ids = [sender.enqueue_task_sync("hold", [str(released)]).id for _ in range(10)]
        eventually(lambda: replicas() == 2, "two replicas")
        released.touch()
        assert {result_of(sender, each).status for each in ids} == {"SUCCESS"}
        eventually(lambda: replicas() == 0, "no replica")
