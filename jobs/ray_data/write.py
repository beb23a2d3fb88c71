"""`write_dataset`: write the rows of a Ray Data dataset to a topic, as a job with a manifest.

Ray retries a write task with the same task index. Therefore a retried task gives each row the same UNIQ_KEY.
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
from jobs.job_errors import OptionInvalid, WriteFailed
from jobs.writing.commit import WriteReceipt, commit, prepare_topic
from jobs.writing.partition_writer import PartitionReceipt, PartitionWriter
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.common.clock import SystemClock


def write_dataset(
    dataset: ray.data.Dataset,
    topic: str,
    *,
    nameservers: Nameservers | None = None,
    body: str = "body",
    key: str | None = None,
    tag: str | None = None,
    sharding_key: str | None = None,
    properties: str | None = None,
    delay: str | int | None = None,
    mode: Literal["append", "errorifexists"] = "append",
    buffer_bytes: int = BUFFER_BYTES,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> WriteReceipt:
    """Write each row of `dataset` as a message to `topic`, and commit all rows when the last one is stored.

    `read_dataset(committed=True)` returns each row of a committed write once. Ordinary consumers see rows as
    soon as they are stored. If Ray retries a task, its rows are stored twice with the same UNIQ_KEY.

    Args:
        dataset: The dataset to write.
        topic: The topic to write to. A new one is created by the first send, if `auto_create_topics` is set.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        body: Column of the message bodies. This and the other columns contain strings, bytes or integers.
        key: Column of the message keys, which the brokers index. Null means no key.
        tag: Column of the message tags. Null means no tag.
        sharding_key: Column by which rows are distributed over the queues. Rows of one task with equal
            values keep their order. None: batches of consecutive rows go to the queues in turn.
        properties: Column of maps from string to string, the user properties. Names that RocketMQ reserves
            are omitted, so that the properties of messages that were read can be written again.
        delay: Column of delays in milliseconds, or the delay of all rows; see `jobs.write_queue`.
        mode: "append", or "errorifexists" to fail if the topic contains messages.
        buffer_bytes: Size of the rows that a task sends in one call.
        concurrency: Maximum number of write tasks at a time.
        ray_remote_args: Ray options of the write tasks, for example {"num_cpus": 1}.

    Raises:
        OptionInvalid: An argument is invalid, or a column is missing.
        TopicNotEmpty: `mode` is "errorifexists" and the topic contains messages.
        WriteFailed: A task failed. The job is not committed.
        CommitFailed: All rows are stored, but it is unknown whether the job is committed.
        ClientError: The topic does not exist and is not created, or a broker cannot be reached.
    """
    columns = WriteColumns(body, key, tag, sharding_key, properties, delay)
    if known := dataset.schema(fetch_if_missing=False):  # else each task checks its blocks
        columns.check(list(known.names))
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
    """Ray Data sink that writes a dataset as one job. Each instance can be used for one write only."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job
        self._receipt: WriteReceipt | None = None

    @property
    def receipt(self) -> WriteReceipt:
        """Return the receipt of the write, which must be committed."""
        assert self._receipt is not None, "the job is not committed: call Dataset.write_datasink first"
        return self._receipt

    def get_name(self) -> str:
        """Return the name that Ray shows for the write tasks."""
        return "RayMQ"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Raise `OptionInvalid` if this sink has committed a job before.

        `schema` is not checked: it may be that of the input of a function that Ray runs in the same task.
        """
        if self._receipt is not None:
            raise OptionInvalid(
                f"job {self._job.job_id} is already committed: create a new QueueDatasink for each write"
            )

    def write(self, blocks: Iterable[Block], ctx: Any) -> bytes:
        """Write the blocks of one task, and return its `PartitionReceipt` as JSON. Raises `WriteFailed`."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        return msgspec.json.encode(PartitionWriter(self._job, ctx.task_idx).write(tables))

    def on_write_complete(self, write_result: WriteResult[bytes]) -> None:
        """Commit the job with the receipts of all tasks. Raises `CommitFailed`."""
        receipts = [msgspec.json.decode(each, type=PartitionReceipt) for each in write_result.write_returns]
        self._receipt = commit(self._job, receipts)


def _write_failed(error: BaseException | None) -> str | None:
    """Return the text of the `WriteFailed` that caused `error`, or None if it has another cause."""
    while error is not None:
        cause = getattr(error, "cause", None)  # RayTaskError
        for each in (error, cause):
            if type(each) is WriteFailed:
                return str(each)
        error = error.__cause__
    return None
