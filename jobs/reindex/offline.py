"""`reindex_store`: recreate or check the consume queues and index files of a store with Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from jobs.job_errors import ReindexFailed
from jobs.reading.reader import freeze_loaded_objects
from jobs.spark.write_queue import showing_description
from store.disk.files import explain
from store.store_errors import StoreError
from store.tools.reindex.run import Reindexed, Task, reindex
from store.tools.reindex.store_files import find_store


def reindex_store(
    spark: SparkSession,
    store: str | Path,
    *,
    check: bool = False,
    log_paths: Sequence[str | Path] = (),
    message_delay_level: str | None = None,
    with_index: bool = True,
) -> Reindexed:
    """Recreate the consume queues and index files of a stopped store from its CommitLog alone.

    The new files are written into `raymq.reindex` in the store's directory, and put in place by rename. For
    all records in the log they equal, byte for byte, those that the broker wrote. The log is not changed. No
    broker can open the store meanwhile. The job needs about a quarter of the log's size on the store's disk,
    in addition to the new files.

    Args:
        spark: The session. All executors need access to the store's directory.
        store: The directory of the store, the parent of `commitlog`.
        check: Compare the existing files with the log instead of replacing them. This is also possible while
            a broker has the store open, up to the position of the broker's last checkpoint.
        log_paths: Directories of the CommitLog, if they are neither in raymq.json nor `commitlog`.
        message_delay_level: The broker's delay levels, if they are not RocketMQ's: the units of delayed
            messages depend on them.
        with_index: Recreate or check the index files too; a re-index with False removes them.

    Raises:
        ReindexFailed: There is no store, a broker has it open and `check` is False, its files cannot be read,
            or the disk is full. A broker can open the store after any error.
    """
    if spark.sparkContext.getConf().get("spark.speculation") == "true":
        raise ReindexFailed(
            "two attempts of a task would write the same files: set spark.speculation to false"
        )
    with errors_raised():
        return reindex(
            SparkEngine(spark),
            Path(store),
            check=check,
            log_paths=[Path(path) for path in log_paths],
            message_delay_level=message_delay_level,
            with_index=with_index,
        )


def require_store(
    store: str | Path, log_paths: Sequence[str | Path], message_delay_level: str | None, *, check: bool
) -> None:
    """Raise ReindexFailed if `reindex_store` would refuse the store, without starting Spark."""
    with errors_raised():
        find_store(Path(store), [Path(path) for path in log_paths], message_delay_level, may_be_open=check)


@contextmanager
def errors_raised() -> Iterator[None]:
    """Raise ReindexFailed for the errors of the store and of its files."""
    try:
        yield
    except StoreError as error:
        raise ReindexFailed(str(error)) from error
    except OSError as error:
        raise ReindexFailed(_text(error)) from error


@dataclass(frozen=True)
class _Failure:
    """The reason why a task failed, as its result: Spark would retry a task that raises an exception."""

    reason: str


class SparkEngine:
    """Runs each task of a re-index as one Spark task."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run at the same time."""
        return self._context.defaultParallelism

    def run(self, description: str, tasks: Sequence[Task]) -> list[Any]:
        """Run all tasks in one stage. Return their results in the order of `tasks`.

        `description` is shown in the Spark UI. Raises ReindexFailed with the reason if a task raised
        StoreError or OSError.
        """
        with showing_description(self._context, description):
            results = self._context.parallelize(tasks, len(tasks)).map(_attempt).collect()
        for result in results:
            if isinstance(result, _Failure):
                raise ReindexFailed(result.reason)
        return results


def _attempt(task: Task) -> Any:
    freeze_loaded_objects()
    try:
        return task()
    except StoreError as error:
        return _Failure(str(error))
    except OSError as error:
        return _Failure(_text(error))


def _text(error: OSError) -> str:
    return f"{error.filename}: {explain(error)}" if error.filename else explain(error)
