"""SplitsReader: the part of a read that runs in the Python workers of Spark.

A split is a range of offsets of one queue (`jobs.splits`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache

import pyarrow as pa

from jobs.chunk import Source
from jobs.job_errors import DataLoss, MissingRange
from jobs.splits import Split
from store.logs import get_logger


class SplitsReader:
    """A function for Spark's `mapInArrow` that maps indexes of splits to batches of messages.

    Spark pickles this object, with the list of splits, and sends it to the workers.
    """

    def __init__(
        self, splits: Sequence[Split], columns: Sequence[str], fail_on_data_loss: bool, map_files: bool
    ) -> None:
        self.columns = self._read_columns = tuple(columns)
        self._splits = tuple(splits)
        self._fail_on_data_loss = fail_on_data_loss
        self._map_files = map_files

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

    def read_split(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one split in order of offset.

        Raises `DataLoss` if messages cannot be read. If the reader was created with `fail_on_data_loss`
        False, such messages are logged and skipped instead.
        """
        with closing(self._open(split)) as source:
            yield from self._read_from(source, split)

    def _read_from(self, source: Source, split: Split) -> Iterator[pa.RecordBatch]:
        offset = split.begin
        while offset < split.end:
            chunk = source.read(offset)
            if chunk.lost:
                self._report(
                    [MissingRange(*split.queue, each.begin, each.end, each.reason) for each in chunk.lost]
                )
            if chunk.batch is not None:
                yield chunk.batch
            offset = chunk.next_offset

    def _report(self, missing: Sequence[MissingRange]) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(missing)
        # The logger is not created at import: Spark's worker configures logging later.
        for each in missing:
            get_logger(__name__).warning("offset_range_missing", range=str(each))

    def _open(self, split: Split) -> Source:
        from jobs.fetched import FetchedSplit
        from jobs.mapped import MappedSplit, is_local

        if self._map_files and is_local(split.location):
            return MappedSplit(split, self._read_columns)
        return FetchedSplit(split, self._read_columns)


@cache
def freeze_loaded_objects() -> None:
    """Exclude all existing objects from Python's garbage collection, once per process.

    Spark's worker runs a garbage collection before each task. With numba and our kernels loaded it takes
    0.16 s, longer than reading half a million messages.
    """
    gc.collect()
    gc.freeze()
