"""DispatchSink: the interface of everything that is derived from log records.

See docs/extending.md#dispatch-sink.

The dispatcher passes every dispatched record to each registered sink. Records come in batches of columns, one
slice of the log at a time, so that a kernel can process a whole batch. Consume queues and index are two such
sinks.

    accept(batch)    the next records; also the records of a failed step, or of the time before a restart
    rewind(offset)   the log was truncated: records at or after `offset` no longer exist
    missing_from     after a start, dispatch resumes at this offset or before it
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store.commitlog.mapped_file import MappedFile
from store.kernels import units as kernel


class RecordBatch(NamedTuple):
    """The records of one slice of the log, with their units and keys, as filled by `kernels.units`.

    All arrays are buffers that the dispatcher reuses: a sink must copy data that it keeps after `accept`.
    """

    file: MappedFile
    rows: NDArray[np.int64]
    """One row per record, in the order of the log (`kernels.units.ROW_…`)."""
    groups: NDArray[np.int64]
    """One row per queue that has records in this batch (`kernels.units.GROUP_…`)."""
    units: NDArray[np.uint8]
    """The consume queue units of the batch; the units of one queue are contiguous."""
    keys: NDArray[np.int64]
    """One row per key of a record (`kernels.index.KEY_…`)."""
    is_recovery: bool
    """True during recovery, rebuild or verification: data that a sink already has may be damaged."""

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the CommitLog offset and the bytes of each record."""
        for position, size in self.rows[:, : kernel.ROW_SIZE + 1].tolist():
            yield self.file.base + position, self.file.view[position : position + size]


class DispatchSink(Protocol):
    """Derives data from every dispatched record. Called only on the store's thread."""

    def accept(self, batch: RecordBatch) -> None:
        """Process the records of a batch, except those that were already processed.

        Raises OSError or StoreError on failure. The store then refuses appends, and passes the batch again
        after one second.
        """

    def rewind(self, offset: int) -> None:
        """Drop all data of records at or after the CommitLog offset `offset`, because the log was truncated.

        Raises OSError, StoreError.
        """

    @property
    def missing_from(self) -> int | None:
        """The CommitLog offset from which on the sink needs records again after a start.

        None if it has all.
        """
