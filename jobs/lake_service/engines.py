"""Engines of a round: Ray tasks on the nodes of the brokers, or the executors of Spark (RayDP)."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from cluster.client.config import CREDENTIALS_ENV
from jobs.job_errors import JobError, LakeUnavailable
from jobs.lake.round import Engine
from jobs.lake.write_rows import WriteTask, WrittenRows
from jobs.lake_service.process_settings import LakeProcessSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_TIMEOUT_S = 3_600.0
"""A round whose tasks take longer is cancelled; the next one begins again."""


@contextmanager
def engine_of(settings: LakeProcessSettings) -> Iterator[Engine]:
    """Yield the engine of a lake, whose tasks sign their requests as the lake does.

    Raises `JobError` if Spark cannot be started.
    """
    keys = settings.credentials_file
    environment = {} if keys is None else {CREDENTIALS_ENV: str(keys)}
    if settings.engine == "ray":
        yield RayEngine(environment)
        return
    from jobs.spark.session import raydp_session

    of_executors = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    with raydp_session(settings.group, settings.spark_executors, settings=of_executors) as spark:
        yield SparkEngine(spark)


class RayEngine:
    """Runs each task as a Ray task on the node that has the files, if it has a free CPU."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Create the engine; `environment` has further variables of the tasks."""
        self._options = {"runtime_env": {"env_vars": dict(environment)}} if environment else {}

    @property
    def parallelism(self) -> int:
        """The number of CPUs of the Ray cluster."""
        import ray

        return max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        """Run all tasks. Raises the error of a task, and `LakeUnavailable` if they take too long."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = {each["NodeManagerAddress"]: each["NodeID"] for each in ray.nodes() if each["Alive"]}
        run = ray.remote(WriteTask.run)
        running = []
        for task in tasks:
            node = nodes.get(task.node_ip)
            strategy = "DEFAULT" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
            chosen = run.options(scheduling_strategy=strategy, max_retries=2, **self._options)
            running.append(chosen.remote(task))
        # Also after a failure: the next round must not begin beside its tasks.
        _, late = ray.wait(running, num_returns=len(running), timeout=TASKS_TIMEOUT_S, fetch_local=False)
        if late:
            # Only tasks that hang: Ray aborts this process if a task ends while it is cancelled.
            for each in late:
                ray.cancel(each)
            raise LakeUnavailable(f"the tasks of a round took longer than {TASKS_TIMEOUT_S:g} s")
        try:
            return list(ray.get(running))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, JobError):
                raise error.cause from None
            raise LakeUnavailable(f"a task of a round failed: {error.cause}") from error
        except ray.exceptions.RayError as error:
            raise LakeUnavailable(f"a task of a round was lost: {error}") from error


class SparkEngine:
    """Runs each task in a Python worker of Spark, on the node of its broker if it has an executor."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark can run at the same time."""
        return max(self._spark.sparkContext.defaultParallelism, 1)

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        """Run all tasks. Raises the error of a task, and `LakeUnavailable` if they take too long."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from jobs.spark.placement import split_indexes

        given = tuple(tasks)

        def write(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                results = [_attempt(given[number]) for number in batch.column(0).to_pylist()]
                yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])

        indexes = split_indexes(self._spark, [each.splits[0] for each in given])
        context, group = self._spark.sparkContext, str(uuid.uuid4())
        context.setJobGroup(group, "a round of a lake", interruptOnCancel=True)
        limit = threading.Timer(TASKS_TIMEOUT_S, context.cancelJobGroup, [group])
        limit.start()
        try:
            rows = indexes.mapInArrow(write, "result binary").collect()
        except (Py4JError, PySparkException) as error:
            if context._jsc.sc().isStopped():  # noqa: SLF001 - PySpark has no public way to know it
                raise  # a restarted process has a new session
            text = str(error).partition("Driver stacktrace")[0].strip()
            *_, reason = (line for line in text.splitlines() if not line.startswith("\tat "))
            raise LakeUnavailable(f"Spark's job of a round failed: {reason}") from error
        finally:
            limit.cancel()
        # the results of this job's own tasks
        results = [pickle.loads(row.result) for row in rows]
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


def _attempt(task: WriteTask) -> bytes:
    """Return the pickled result of a task, or its error: Spark would retry a task that raises one."""
    try:
        return pickle.dumps(task.run())
    except JobError as error:
        return pickle.dumps(error)
