"""SplitsReader: the part of a read that runs in the Python workers of Spark.

A split is a range of offsets of one queue (`jobs.reading.splits`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache

import numpy as np
import pyarrow as pa

from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from jobs.job_errors import DataLoss, FetchFailed, MissingRange, merge_missing
from jobs.reading.chunk import ChunkSource
from jobs.reading.row_filters import RowFilter, SqlRows, TagRows
from jobs.reading.splits import Split
from jobs.reading.table_files import TableSplit
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

AnySplit = Split | TableSplit


class SplitsReader:
    """A function for Spark's `mapInArrow` that maps indexes of splits to batches of messages.

    Spark pickles this object, with the list of splits, and sends it to the workers.
    """

    def __init__(
        self,
        splits: Sequence[AnySplit],
        columns: Sequence[str],
        fail_on_data_loss: bool,
        map_files: bool,
        selector: MessageSelector = ALL_MESSAGES,
        row_filters: Sequence[RowFilter] = (),
    ) -> None:
        """Create a reader of `splits`.

        Args:
            splits: The splits.
            columns: The columns of the batches (see `jobs.reading.schema`).
            fail_on_data_loss: Raise DataLoss if messages cannot be read; otherwise log and skip them, and add
                their offsets to `missing`.
            map_files: Map the files of a store on the worker's machine instead of fetching from the broker.
            selector: Selects messages by tag or SQL92 expression.
            row_filters: Skip messages that one of these filters does not return.
        """
        self.columns = tuple(columns)
        self.missing: list[MissingRange] = []
        self._splits = tuple(splits)
        self._fail_on_data_loss = fail_on_data_loss
        self._map_files = map_files
        self._selector = selector
        by_tag = (TagRows(selector.tags),) if selector.tags else ()
        self._row_filters = (*by_tag, *row_filters)
        # The sources of the log evaluate SQL92 expressions on records, which tables do not have.
        by_sql = (SqlRows(selector),) if selector.type == "SQL92" else ()
        self._table_filters = (*self._row_filters, *by_sql)

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the splits whose indexes are in the first column of the batches."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.read_split(self._splits[number])
        freeze_loaded_objects()

    def read_all(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages of all splits, one split after the other. Raises as `read_split` does."""
        for split in self._splits:
            yield from self.read_split(split)

    def read_split(self, split: AnySplit) -> Iterator[pa.RecordBatch]:
        """Yield the selected messages of one split in order of offset; of a table, in the order of its files.

        Raises `DataLoss` with all missing ranges of the split if messages do not exist or are damaged. If the
        reader was created with `fail_on_data_loss` False, such messages are logged and skipped instead.
        Raises `FetchFailed` if the broker of a fetched split cannot be reached, or a file cannot be read.
        """
        if isinstance(split, TableSplit):
            batches = split.batches(self._with_columns_of(self._table_filters))
            yield from self._filtered(batches, split.queue, self._table_filters)
            return
        columns = self._with_columns_of(self._row_filters)
        try:
            opened = self._open(split, columns)
        except FetchFailed as error:
            raise _of_split(error, split, split.begin) from error
        with closing(opened) as source:
            yield from self._filtered(self._read_from(source, split), split.queue, self._row_filters)

    def _with_columns_of(self, filters: Sequence[RowFilter]) -> tuple[str, ...]:
        """Return the columns of the reader, and the others that `filters` read."""
        return tuple(dict.fromkeys((*self.columns, *(name for each in filters for name in each.columns))))

    def _filtered(
        self, batches: Iterable[pa.RecordBatch], queue: MessageQueue, filters: Sequence[RowFilter]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            masks = [each.mask(queue, batch) for each in filters]
            shown = batch.select(self.columns)
            is_complete = all(mask.all() for mask in masks)
            yield shown if is_complete else shown.filter(pa.array(np.logical_and.reduce(masks)))

    def _read_from(self, source: ChunkSource, split: Split) -> Iterator[pa.RecordBatch]:
        offset = split.begin
        missing: list[MissingRange] = []
        while offset < split.end:
            try:
                for chunk in source.read(offset):
                    missing += [
                        MissingRange(*split.queue, each.begin, each.end, each.reason) for each in chunk.lost
                    ]
                    # After a loss, the split is only read further to list all its missing ranges.
                    if chunk.batch is not None and not (missing and self._fail_on_data_loss):
                        yield chunk.batch
                    offset = chunk.next_offset
            except FetchFailed as error:
                if missing and self._fail_on_data_loss:
                    break
                raise _of_split(error, split, offset) from error
        self._report(merge_missing(missing))

    def _report(self, missing: Sequence[MissingRange]) -> None:
        if missing and self._fail_on_data_loss:
            raise DataLoss(missing)
        self.missing += missing
        # The logger is not created at import: Spark's worker configures logging later.
        for each in missing:
            get_logger(__name__).warning("offset_range_missing", range=str(each))

    def _open(self, split: Split, columns: Sequence[str]) -> ChunkSource:
        from jobs.reading.fetched import FetchedSplit
        from jobs.reading.mapped import MappedSplit, is_local

        if self._map_files and is_local(split.location):
            return MappedSplit(split, columns, self._selector)
        return FetchedSplit(split, columns, self._selector)


def _of_split(error: FetchFailed, split: Split, offset: int) -> FetchFailed:
    """Return an error that adds to `error` the queue of `split` and the offsets that were not read."""
    topic, broker_name, queue_id = split.queue
    return FetchFailed(
        f"{topic}/{broker_name}/{queue_id} [{offset}, {split.end}): {error}. If retries of the task fail too,"
        f" start broker {broker_name} and run the job again; the files of a store on this machine are read"
        " without a broker"
    )


@cache
def freeze_loaded_objects() -> None:
    """Exclude all existing objects from Python's garbage collection, once per process.

    Spark's worker runs a garbage collection before each task. With numba and our kernels loaded it takes
    0.16 s, longer than reading half a million messages.
    """
    gc.collect()
    gc.freeze()
