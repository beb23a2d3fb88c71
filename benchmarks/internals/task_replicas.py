"""Replicas of a task consumer on Ray Serve beside the backlog of its queue, from zero and back.

    uv run python -m benchmarks.internals.task_replicas [--output DIR]

The consumer has no replica at first. Tasks of half a second arrive in bursts (`BURSTS`). The output has a
line for each: the seconds until Serve began to start one more replica, and until one more ran. With
`--output`, the plots of autoscaling reports are drawn there (the extra `report`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from ray import init, serve, shutdown
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

from benchmarks.experiments.plots import Plot, draw
from benchmarks.tasks import QueueProcess
from jobs.tasks import RayMQQueueAutoscalingPolicy

TASK_S = 0.5
BURSTS = ((5.0, 40), (25.0, 400))
"""When tasks arrive, in seconds of the run, and how many."""
RUN_S = 110.0
SAMPLE_S = 0.2
TASKS_PER_REPLICA, REPLICAS_MAX, DOWNSCALE_DELAY_S = 20, 4, 10
APPLICATION = "replicas"


class Sample(NamedTuple):
    """The state at one time of the run. Replicas that start are not among those that run."""

    time_s: float
    waiting: int
    running: int
    replicas_starting: int
    replicas_running: int


def deployment_of(config: TaskProcessorConfig) -> Any:
    """Return the deployment of a consumer that is scaled with its queue."""
    where = config.adapter_config.model_dump()
    settings = {
        "queue_name": config.queue_name,
        "tasks_per_replica": TASKS_PER_REPLICA,
        "adapter_config": where,
    }
    policy = AutoscalingPolicy(policy_function=RayMQQueueAutoscalingPolicy, policy_kwargs=settings)
    scaling = AutoscalingConfig(
        min_replicas=0,
        initial_replicas=0,
        max_replicas=REPLICAS_MAX,
        upscale_delay_s=0,
        downscale_delay_s=DOWNSCALE_DELAY_S,
        policy=policy,
    )

    @serve.deployment(ray_actor_options={"num_cpus": 0}, autoscaling_config=scaling)
    @task_consumer(task_processor_config=config)
    class Consumer:
        """Runs tasks that wait."""

        @task_handler(name="wait")
        def wait(self) -> None:
            """Take as long as a task does."""
            time.sleep(TASK_S)

    return Consumer


def enqueue(sender: Any, count: int) -> None:
    """Enqueue the tasks of a burst."""
    for _ in range(count):
        sender.enqueue_task_sync("wait")


def measure(config: TaskProcessorConfig) -> tuple[list[Sample], list[float]]:
    """Return samples of a run, and the times at which the bursts began."""
    serve.run(deployment_of(config).bind(), name=APPLICATION, route_prefix=None)
    sender = instantiate_adapter_from_config(config)
    samples: list[Sample] = []
    arrivals: list[float] = []
    begin_s = time.monotonic()
    while (now_s := time.monotonic() - begin_s) < RUN_S:
        if len(arrivals) < len(BURSTS) and now_s >= BURSTS[len(arrivals)][0]:
            arrivals.append(now_s)
            Thread(target=enqueue, args=(sender, BURSTS[len(arrivals) - 1][1])).start()
        load = sender.get_metrics_sync()
        (status,) = serve.status().applications[APPLICATION].deployments.values()
        states = status.replica_states
        replicas = states.get("STARTING", 0), states.get("RUNNING", 0)
        samples.append(
            Sample(time.monotonic() - begin_s, load["waiting"] or 0, load["running"] or 0, *replicas)
        )
        time.sleep(SAMPLE_S)
    return samples, arrivals


def reactions_s(samples: Sequence[Sample], arrival_s: float) -> list[float | None]:
    """Return the seconds from an arrival until one more replica was started, and until one more ran."""
    *_, before = (each for each in samples if each.time_s <= arrival_s)
    after = [each for each in samples if each.time_s > arrival_s]
    known = before.replicas_starting + before.replicas_running
    started = (each.time_s for each in after if each.replicas_starting + each.replicas_running > known)
    ran = (each.time_s for each in after if each.replicas_running > before.replicas_running)
    times_s = (next(started, None), next(ran, None))
    return [None if time_s is None else round(time_s - arrival_s, 1) for time_s in times_s]


def draw_plots(samples: Sequence[Sample], output: Path) -> None:
    """Draw the backlog and the replicas."""
    output.mkdir(parents=True, exist_ok=True)

    def column(field: str) -> list[float]:
        return [float(getattr(each, field)) for each in samples]

    backlog = (("waiting", column("waiting"), False), ("running", column("running"), False))
    replicas = (
        ("running", column("replicas_running"), True),
        ("starting", column("replicas_starting"), True),
    )
    for plot in (
        Plot("tasks-backlog.png", "Tasks of the queue", "tasks", backlog),
        Plot("tasks-replicas.png", "Replicas of the consumer", "replicas", replicas),
    ):
        draw(plot, column("time_s"), (), "measured", output / plot.file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.internals.task_replicas", description=__doc__)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="raymq-replicas-") as root, ExitStack() as cleanup:
        process = QueueProcess("raymq", Path(root))
        cleanup.callback(process.kill)
        process.start()
        init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
        cleanup.callback(shutdown)
        serve.start(proxy_location="Disabled")
        samples, arrivals = measure(process.config("replicas"))
        serve.shutdown()
    for arrival_s, (_, tasks) in zip(arrivals, BURSTS, strict=True):
        started_s, ran_s = reactions_s(samples, arrival_s)
        print(f"{tasks} tasks: one more replica was started after {started_s} s, and ran after {ran_s} s")
    replicas = [each.replicas_running for each in samples]
    print(f"replicas: at most {max(replicas)}, at the end {replicas[-1]}")
    if given.output is not None:
        draw_plots(samples, given.output)


if __name__ == "__main__":
    main()
