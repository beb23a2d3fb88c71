"""RayMQQueueAutoscalingPolicy: replicas from waiting tasks and their age."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from jobs.job_errors import OptionInvalid
from jobs.tasks import RayMQQueueAutoscalingPolicy
from jobs.tasks.serve.autoscaling_policy import wanted_replicas
from jobs.tasks.serve.task_queue import Backlog
from tests.cluster.client.conftest import Cluster
from tests.eventually import eventually
from tests.jobs.tasks.processors import Processors


@pytest.mark.parametrize(
    ("waiting", "running", "oldest_s", "current", "wanted"),
    [
        (0, 0, None, 3, 0),
        (1, 0, 0.1, 0, 1),
        (100, 20, 1.0, 2, 12),
        (0, 15, None, 2, 2),
        (5, 0, 60.0, 2, 4),  # twice as old as it should be
        (5, 0, 29.0, 2, 1),
        (5, 0, 60.0, 0, 2),
        (None, 3, 60.0, 2, None),
        (3, None, 60.0, 2, None),
        (30, 0, None, 2, 3),
    ],
)
def test_replicas_are_computed_from_tasks_and_age(
    waiting: int | None, running: int | None, oldest_s: float | None, current: int, wanted: int | None
) -> None:
    assert wanted_replicas(Backlog(waiting, running, oldest_s), current, 10, 30) == wanted


@pytest.mark.parametrize("option", ["tasks_per_replica", "age_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_invalid_target_is_refused(option: str, value: float) -> None:
    with pytest.raises(OptionInvalid, match=option):
        RayMQQueueAutoscalingPolicy("queue", **{option: value})


@dataclass
class Context:
    """The figures of Serve that the policy reads."""

    current_num_replicas: int = 1
    target_num_replicas: int = 3
    config: Any = field(default_factory=lambda: Config())


class Config:
    def get_target_ongoing_requests(self) -> float:
        return 2


def test_policy_reads_the_load_and_keeps_the_target_while_it_is_unknown(
    cluster: Cluster, processors: Processors
) -> None:
    sender = processors.make()
    for _ in range(7):
        sender.enqueue_task_sync("add", [1])
    where = {"nameservers": cluster.address}
    policy = RayMQQueueAutoscalingPolicy(processors.queue, where, poll_interval_s=0)

    wanted, figures = policy(Context())  # type: ignore[arg-type]

    assert (wanted, figures["waiting"]) == (3, None)
    eventually(lambda: policy(Context())[0] == 4)  # type: ignore[arg-type]
    assert policy(Context())[1]["waiting"] == 7  # type: ignore[arg-type]


def test_load_of_an_unreachable_cluster_is_unknown() -> None:
    policy = RayMQQueueAutoscalingPolicy("queue", {"nameservers": "127.0.0.1:1"}, poll_interval_s=0)
    policy(Context())  # type: ignore[arg-type]
    for _ in range(20):
        assert policy(Context())[0] == 3  # type: ignore[arg-type]


def test_queue_that_does_not_exist_has_no_tasks(cluster: Cluster) -> None:
    policy = RayMQQueueAutoscalingPolicy("no-queue", {"nameservers": cluster.address}, poll_interval_s=0)
    eventually(lambda: policy(Context())[0] == 0)  # type: ignore[arg-type]
