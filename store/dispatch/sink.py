"""DispatchSink: whatever is derived from the records of the log takes them here (design section 4).

A sink is registered with the dispatcher, which hands it every dispatched record: a slice of the log at a
time, in columns, so that a kernel can work on all of them at once. Consume queues and index are two sinks.

    accept(batch)    the next records; or again those of a step that failed, or of before a restart
    rewind(offset)   the log was truncated: nothing at or after `offset` exists any more
    missing_from       the sink's own checkpoint: after a start, dispatch resumes here if not before
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store.commitlog.mapped_file import MappedFile
from store.kernels import units as kernel


class RecordBatch(NamedTuple):
    """The records of one slice of the log, as `kernels.units` lays them out.

    All arrays are the dispatcher's own buffers: copy what must outlive `accept`.
    """

    file: MappedFile
    rows: NDArray[np.int64]
    """One row per record, in the order of the log (`kernels.units.ROW_…`)."""
    groups: NDArray[np.int64]
    """One row per queue that got records (`kernels.units.GROUP_…`)."""
    units: NDArray[np.uint8]
    """The consume-queue units of all groups, those of one group side by side."""
    keys: NDArray[np.int64]
    """One row per key of a record (`kernels.index.KEY_…`)."""
    is_recovery: bool
    """Whether a start, a rebuild or a verification dispatches: what a sink holds may be damaged."""

    def records(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the physical offset and the bytes of each record."""
        for position, size in self.rows[:, : kernel.ROW_SIZE + 1].tolist():
            yield self.file.base + position, self.file.view[position : position + size]


class DispatchSink(Protocol):
    """Derives something from every dispatched record. Called on the store's thread only."""

    def accept(self, batch: RecordBatch) -> None:
        """Take the records of a batch, and skip those that it has.

        Raises OSError, StoreError: sends are refused then, and the batch comes again after a second.
        """

    def rewind(self, offset: int) -> None:
        """Forget all records at or after a physical offset. Raises OSError, StoreError."""

    @property
    def missing_from(self) -> int | None:
        """The first physical offset whose record may be missing after a start; None if none is."""
