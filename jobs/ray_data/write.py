"""`write_dataset`: write the rows of a Ray Data dataset to a topic, with a manifest as `jobs.write` does.

Ray retries a write task with the index that it had, so a retried row gets the same UNIQ_KEY again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import pyarrow as pa
import ray.data
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from cluster.client.config import ClientConfig, Nameservers
from jobs.commit import WriteReceipt, commit, prepare_topic
from jobs.job_errors import OptionInvalid, WriteFailed
from jobs.manifest import PartitionReceipt
from jobs.partition_writer import PartitionWriter
from jobs.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.clock import SystemClock


def write_dataset(
    dataset: ray.data.Dataset,
    topic: str,
    *,
    nameservers: Nameservers | None = None,
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    sharding_key: str | None = None,
    mode: Literal["append", "errorifexists"] = "append",
    buffer_bytes: int = BUFFER_BYTES,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> WriteReceipt:
    """Write each row of `dataset` as a message to `topic`, and commit all when the last one is stored.

    `read_dataset(committed=True)` returns each row of a committed write once. Other consumers see rows as
    they arrive, and those of a task that Ray retried twice, with the same UNIQ_KEY.

    Args:
        dataset: The rows.
        topic: An existing topic.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        body: Column of the bodies; strings, bytes or integers, as in the other columns.
        key: Column of the keys, by which messages are indexed. Null means no key.
        tag: Column of the tags. Null means no tag.
        sharding_key: Column by which rows are distributed over the queues. Rows of one task with equal
            values keep their order. None: consecutive rows go to one queue, the next rows to the next.
        mode: "append", or "errorifexists" to fail if the topic contains messages.
        buffer_bytes: Size of the rows that a task sends with one call.
        concurrency: Maximum number of write tasks at a time.
        ray_remote_args: Ray's options of the write tasks.

    Raises:
        OptionInvalid: An argument is invalid, or a column is missing.
        TopicNotEmpty: `mode` is "errorifexists" and the topic contains messages.
        WriteFailed: A task failed; the job is not committed.
        CommitFailed: All rows are stored, but the manifest may not be.
        ClientError: The topic does not exist, or a broker cannot be reached.
    """
    columns = WriteColumns(body, key, tag, sharding_key)
    addresses = ClientConfig(nameservers).addresses()
    job = new_job(topic, addresses, columns, buffer_bytes, SystemClock().wall_ms())
    prepare_topic(job, mode)
    sink = QueueDatasink(job)
    try:
        dataset.write_datasink(sink, ray_remote_args=ray_remote_args, concurrency=concurrency)
    except Exception as error:
        cause = _write_failed(error)
        if cause is None:
            raise
        raise WriteFailed(cause) from error
    return sink.receipt


class QueueDatasink(Datasink[bytes]):
    """Writes a dataset as one job and commits it. Used for one write."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job
        self._receipt: WriteReceipt | None = None

    @property
    def receipt(self) -> WriteReceipt:
        """Return the receipt of the committed write."""
        assert self._receipt is not None, "the dataset is not written yet"
        return self._receipt

    def get_name(self) -> str:
        """Return the name of the write tasks."""
        return "RayMQ"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Check the columns before the first task starts. Raises `OptionInvalid`."""
        if self._receipt is not None:
            raise OptionInvalid(f"job {self._job.job_id} is committed: create a new QueueDatasink")
        if schema is not None:
            self._job.columns.check(list(schema.names))

    def write(self, blocks: Iterable[Block], ctx: Any) -> bytes:
        """Write the blocks of one task and return the receipt. Raises `WriteFailed`."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        return msgspec.json.encode(PartitionWriter(self._job, ctx.task_idx).write(tables))

    def on_write_complete(self, write_result: WriteResult[bytes]) -> None:
        """Commit the job. Raises `CommitFailed`."""
        receipts = [msgspec.json.decode(each, type=PartitionReceipt) for each in write_result.write_returns]
        self._receipt = commit(self._job, receipts)


def _write_failed(error: BaseException | None) -> str | None:
    """Return the message of the `WriteFailed` that caused `error`, or None."""
    while error is not None:
        cause = getattr(error, "cause", None)  # RayTaskError
        for each in (error, cause):
            if type(each) is WriteFailed:
                return str(each)
        error = error.__cause__
    return None
