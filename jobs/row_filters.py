"""RowFilter: decides which rows of a batch a read returns, by the values of some columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.message.message_queue import MessageQueue


class RowFilter(Protocol):
    """A filter of rows that needs the columns in `columns` (see `jobs.schema`)."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that `mask` reads."""

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the rows that the read returns; all rows are messages of `queue`."""


class TagRows:
    """Keeps the messages that have one of some tags, compared as text."""

    columns = ("tags",)

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tuple(tags)

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the messages with one of the tags."""
        found: NDArray[np.bool_] = pc.is_in(batch.column("tags"), pa.array(self._tags, pa.string())).to_numpy(
            zero_copy_only=False
        )
        return found
