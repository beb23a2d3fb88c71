"""Tasks of Ray Serve on the Ray that runs RayMQ: replicas are killed, added and removed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import RayMQ
from tests.eventually import eventually
from tests.jobs.tasks.processors import result_of

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
