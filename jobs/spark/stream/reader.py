"""StreamManifestReader: reads the messages of a batch in the Python workers of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext

from cluster.client import ClientError
from jobs.job_errors import FetchFailed
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader, freeze_loaded_objects
from jobs.reading.splits import Split
from jobs.reading.table_files import TableSource
from jobs.spark.stream.stream_errors import CheckpointMismatch, StreamFailed
from jobs.spark.stream.stream_manifest import Row, split_of, table_split_of

QUERY_ID = "sql.streaming.queryId"
"""Local property of Spark's tasks that contains the id of their streaming query."""


class StreamManifestReader:
    """A function for `mapInArrow` that reads the messages of the manifest rows that it receives."""

    def __init__(
        self,
        reader: SplitsReader,
        nameservers: Sequence[str],
        checkpoint: str,
        tables: Mapping[str, TableSource] | None = None,
    ) -> None:
        """Create a reader of the stream with checkpoint `checkpoint`; `tables` have the history of topics."""
        self._tables = dict(tables or {})
        self._reader = reader
        self._nameservers = nameservers
        self._checkpoint = checkpoint

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the splits in `batches`, which contain manifest rows.

        Raises `StreamFailed` if the planner failed, `CheckpointMismatch` if the manifest belongs to another
        query, and the errors of `SplitsReader`.
        """
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        for batch in batches:
            for row in batch.to_pylist():
                self._check(row, query_id)
                if row.get("history") is not None:
                    yield from self._reader.read_split(table_split_of(row, self._tables))
                elif row["begin"] < row["end"]:
                    yield from self._read(split_of(row))
        freeze_loaded_objects()

    def _check(self, row: Row, query_id: str | None) -> None:
        if row["fault"] is not None:
            raise StreamFailed(row["fault"])
        if query_id is not None and row["queryId"] != query_id:
            raise CheckpointMismatch(
                f"the stream with checkpoint {self._checkpoint} belongs to query {row['queryId']}, not to"
                f" query {query_id}: give each query its own checkpointLocation, the same for read_stream and"
                " writeStream"
            )

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the messages of `split`. If the fetch fails, retry at the current address of the broker.

        A batch that is repeated after a restart contains the address that the broker had when the batch was
        planned.
        """
        batches = self._reader.read_split(split)
        try:
            first = next(batches, None)
        except FetchFailed as error:
            batches = self._reader.read_split(self._relocated(split, error))
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches

    def _relocated(self, split: Split, error: FetchFailed) -> Split:
        """Return `split` with the current location of its queue. Raises `error` if that is unknown.

        Its range remains one of the epoch in which it was planned, unless another replica is read.
        """
        try:
            states = describe_topic(self._nameservers, split.queue.topic)
        except ClientError:
            raise error from None
        location = next((each.location for each in states if each.queue == split.queue), split.location)
        if location.address == split.location.address:
            location = replace(location, history=split.location.history)
        return Split(split.queue, split.begin, split.end, location)
