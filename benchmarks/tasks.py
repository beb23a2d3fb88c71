"""Tasks of Ray Serve: RayMQ's adapter beside Ray's own one with Celery and Redis, on loopback.

    uv run python -m benchmarks.tasks [--tasks 3000] [--rounds 3] [--json]

needs `redis-server` (Debian's package). Both sides have one process with its default settings (RayMQ
confirms a task when it is on disk; Redis writes its memory to disk from time to time), one replica with five
tasks at a time, and store each result. Rounds alternate between the sides.

    tasks/s      from the first to the last of `--tasks` empty tasks that waited
    enqueue p50  of these tasks, one after the other
    lost         of as many confirmed tasks, if the process of the queue is killed (SIGKILL) after the last
                 one and started again
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray import init, serve, shutdown
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

from jobs.tasks import RayMQAdapterConfig
from tests.ports import free_port

START_TIMEOUT_S = 60.0
IDLE_S = 10.0
"""If no task runs for this time, those that have not run are lost."""
RESULT_S = 2.0
"""Time for the results of the last tasks to be stored."""
SIDES = ("raymq", "celery-redis")


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one side in one round."""

    side: str
    tasks_per_s: float
    enqueue_p50_ms: float
    tasks: int
    lost: int


class QueueProcess:
    """The process that has the queue of one side, and the configurations that lead to it."""

    def __init__(self, side: str, root: Path) -> None:
        self._is_raymq = side == "raymq"
        self._root = root
        self._ports = free_port(), free_port(1)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        first, second = map(str, self._ports)
        command = ["redis-server", "--port", first, "--bind", "127.0.0.1", "--dir", str(self._root)]
        if self._is_raymq:
            command = [sys.executable, "-m", "cluster.standalone", "--store-root", str(self._root)]
            command += ["--nameserver-port", first, "--broker-port", second]
        path, ready = self._root / "log", b"READY" if self._is_raymq else b"Ready to accept connections"
        with path.open("ab") as log:
            size = log.tell()
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        _until(lambda: ready in path.read_bytes()[size:], f"the start of {command[0]}")

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def config(self, queue: str) -> TaskProcessorConfig:
        """Return the configuration of a task queue in this process."""
        address = f"127.0.0.1:{self._ports[0]}"
        if self._is_raymq:
            return TaskProcessorConfig(
                queue_name=queue,
                adapter="jobs.tasks.RayMQTaskProcessor",
                adapter_config=RayMQAdapterConfig(nameservers=address),
            )
        urls = {"broker_url": f"redis://{address}/0", "backend_url": f"redis://{address}/1"}
        return TaskProcessorConfig(queue_name=queue, adapter_config=CeleryAdapterConfig(**urls))


def measure(side: str, tasks: int, root: Path) -> Round:
    """Measure one side."""
    root.mkdir(parents=True)
    process = QueueProcess(side, root)
    with ExitStack() as cleanup:
        cleanup.callback(process.kill)
        process.start()
        config = process.config(f"{side}-speed")
        ids, enqueue_s = _enqueue(config, tasks)
        times_s = _run(config, ids, root / "speed")
        process.kill()
        process.start()
        config = process.config(f"{side}-lost")
        ids, _ = _enqueue(config, tasks)
        process.kill()
        process.start()
        found = len(_run(config, ids, root / "lost"))
    rate = (len(times_s) - 1) / (max(times_s) - min(times_s))
    return Round(side, rate, statistics.median(enqueue_s) * 1000, tasks, tasks - found)


def _enqueue(config: TaskProcessorConfig, tasks: int) -> tuple[list[str], list[float]]:
    """Return the ids of new tasks, and how long each call took."""
    sender, ids, times_s = instantiate_adapter_from_config(config), [], []
    for _ in range(tasks):
        begin_s = time.perf_counter()
        ids.append(sender.enqueue_task_sync("empty").id)
        times_s.append(time.perf_counter() - begin_s)
    return ids, times_s


def _run(config: TaskProcessorConfig, ids: Sequence[str], marks: Path) -> list[float]:
    """Run the tasks with one replica. Return when each began, without those that have no result."""
    marks.touch()

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    @task_consumer(task_processor_config=config)
    class Consumer:
        """Runs empty tasks."""

        @task_handler(name="empty")
        def empty(self) -> float:
            """Append a byte to a file, and return the time."""
            with marks.open("ab") as file:
                file.write(b".")
            return time.time()

    deployment: Any = Consumer
    serve.run(deployment.bind(), name="benchmark", route_prefix=None)
    try:
        ran, progress_s = 0, time.monotonic()
        while ran < len(ids) and time.monotonic() - progress_s < IDLE_S:
            time.sleep(0.2)
            if marks.stat().st_size > ran:
                ran, progress_s = marks.stat().st_size, time.monotonic()
        time.sleep(RESULT_S)
        reader = instantiate_adapter_from_config(config)
        found = [reader.get_task_status_sync(each) for each in ids]
        return [each.result for each in found if each.status == "SUCCESS"]
    finally:
        serve.delete("benchmark")


def _until(is_true: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + START_TIMEOUT_S
    while not is_true():
        if time.monotonic() > end_s:
            raise SystemExit(f"{what} took more than {START_TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not installed: apt-get install redis-server")
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="raymq-tasks-") as root, ExitStack() as cleanup:
        init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
        cleanup.callback(shutdown)
        serve.start(proxy_location="Disabled")
        for number in range(given.rounds):
            for side in SIDES:
                rounds.append(measure(side, given.tasks, Path(root, f"{number}-{side}")))
                print(json.dumps(asdict(rounds[-1])) if given.json else rounds[-1], flush=True)
        serve.shutdown()
    if not given.json:
        _print_summary(rounds)


def _print_summary(rounds: Sequence[Round]) -> None:
    def median(side: str, figure: Callable[[Round], float]) -> float:
        return statistics.median(figure(each) for each in rounds if each.side == side)

    rates = [median(side, lambda each: each.tasks_per_s) for side in SIDES]
    for side, rate in zip(SIDES, rates, strict=True):
        lost = sum(each.lost for each in rounds if each.side == side)
        total = sum(each.tasks for each in rounds if each.side == side)
        p50_ms = median(side, lambda each: each.enqueue_p50_ms)
        print(f"{side:14} {rate:8,.0f} tasks/s   enqueue p50 {p50_ms:.2f} ms   lost {lost:,} of {total:,}")
    print(f"raymq ÷ celery-redis: {rates[0] / rates[1]:.2f}")


if __name__ == "__main__":
    main()
