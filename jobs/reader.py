"""The part of a read that runs in Spark's Python workers: numbers of splits in, batches of messages out."""

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
    """The function that `mapInArrow` runs; it is pickled with the splits in it."""

    def __init__(
        self, splits: Sequence[Split], columns: Sequence[str], fail_on_data_loss: bool, map_files: bool
    ) -> None:
        self.columns = tuple(columns)
        self._splits = tuple(splits)
        self._fail_on_data_loss = fail_on_data_loss
        self._map_files = map_files

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the messages of the splits whose numbers come in."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.read_split(self._splits[number])
        keep_worker_light()

    def read_split(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Give one split's messages in order; what is lost fails the read, or is logged and passed over."""
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
        # No logger at the module's level: Spark's worker has its own way of setting up logging.
        for each in missing:
            get_logger(__name__).warning("read_range_missing", range=str(each))

    def _open(self, split: Split) -> Source:
        from jobs.fetched import FetchedSplit
        from jobs.mapped import MappedSplit, lies_here

        if self._map_files and lies_here(split.place):
            return MappedSplit(split, self.columns)
        return FetchedSplit(split, self.columns)


@cache
def keep_worker_light() -> None:
    """Take what is loaded by now out of the garbage collector's sight, once a process.

    Spark's worker collects garbage before each task that it takes up, and with numba and our kernels loaded
    that costs 0.16 s: more than reading half a million messages.
    """
    gc.collect()
    gc.freeze()
