"""PartitionWriter: sends the rows of one partition to a topic, and returns their queue offsets.

One thread sends a buffer of rows while the caller's thread fills the next buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cluster.client import ClientError, Producer
from cluster.client.results import TableReceipt
from jobs.delayed_rows import DelayedRows, delays_of
from jobs.job_errors import WriteFailed
from jobs.manifest import PartitionReceipt, QueueRange, merge_ranges
from jobs.write_job import DELAYED, WriteJob
from store.message.message_queue import MessageQueue

WRITER_GROUP = "RAYMQ_BULK_WRITER"


@dataclass(frozen=True)
class _Sending:
    """A buffer that is being sent: rows [begin, end) of the partition."""

    begin: int
    end: int
    result: Future[TableReceipt]


class PartitionWriter:
    """Writes one partition of a job."""

    def __init__(
        self, job: WriteJob, partition: int, attempt: int = 0, queue: MessageQueue | None = None
    ) -> None:
        """Create the writer.

        Args:
            job: The job.
            partition: Index of the partition.
            attempt: Attempt number of the Spark or Ray task.
            queue: Queue to which all rows are sent; by default they are distributed.
        """
        self._job = job
        self._partition = partition
        self._attempt = attempt
        self._queue = queue
        self._uniq_keys = job.uniq_keys(partition)
        self._delayed = DelayedRows(job, partition + DELAYED)

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> PartitionReceipt:
        """Send all rows, wait until they are acknowledged, and return their offsets.

        The offsets of delayed rows are not known, because they are not in their queues yet.

        Raises `WriteFailed` if rows cannot be sent. Rows that were sent before the error remain in the topic
        but are not committed.
        """
        ranges: list[QueueRange] = []
        rows = 0
        with Producer(self._job.nameservers, WRITER_GROUP) as producer, ThreadPoolExecutor(1) as sender:
            sending: _Sending | None = None
            for table in self._buffers(batches):
                ranges += self._stored(sending)
                begin, rows = rows, rows + table.num_rows
                sending = _Sending(begin, rows, sender.submit(self._send, producer, table))
            ranges += self._stored(sending)
        return PartitionReceipt(self._partition, self._attempt, rows, merge_ranges(ranges))

    def _buffers(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows in tables of about `buffer_bytes`, with only the columns that the job writes."""
        names = list(dict.fromkeys(self._job.columns.named().values()))
        held: list[pa.Table] = []
        held_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
            held.append(table.select(names))
            held_bytes += held[-1].nbytes
            if held_bytes >= self._job.buffer_bytes:
                yield pa.concat_tables(held)
                held, held_bytes = [], 0
        if held:
            yield pa.concat_tables(held)

    def _send(self, producer: Producer, table: pa.Table) -> TableReceipt:
        columns = self._job.columns
        if columns.delay:
            delays = delays_of(table, columns.delay)
            is_delayed = pc.greater(delays, 0)
            self._delayed.send(producer, table.filter(is_delayed), delays.filter(is_delayed))
            table = table.filter(pc.invert(is_delayed))
        return producer.send_table(
            self._job.topic,
            table,
            body=columns.body,
            tags=columns.tag,
            keys=columns.key,
            sharding_key=columns.sharding_key,
            queue=self._queue,
            properties=columns.properties,
            uniq_keys=self._uniq_keys,
        )

    def _stored(self, sending: _Sending | None) -> list[QueueRange]:
        if sending is None:
            return []
        with self._named_errors(sending):
            receipt = sending.result.result()
        return [
            QueueRange(queue.broker_name, queue.queue_id, begin, end)
            for queue, begin, end in receipt.queues.runs()
        ]

    @contextmanager
    def _named_errors(self, sending: _Sending) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise WriteFailed(
                f"topic {self._job.topic}: rows [{sending.begin}, {sending.end}) of partition"
                f" {self._partition}, attempt {self._attempt}, were not written: {error}. The job is not"
                " committed: fix the cause and write again. Reads with committed=True skip the rows that this"
                " job has stored"
            ) from error
