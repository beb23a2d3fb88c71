"""RowFilter: decides which rows of a batch a read returns, by the values of some columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from cluster.client import MessageSelector
from jobs.job_errors import BodyInvalid
from jobs.reading.schema import BODY_ERROR
from jobs.reading.selection import compiled_filter
from store.message.message_queue import MessageQueue
from store.reading.sql_filter import SqlFilter

PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
MODES = (PERMISSIVE, DROPMALFORMED, FAILFAST)
"""The modes of Spark's readers: what happens to a message whose body cannot be decoded."""


class RowFilter(Protocol):
    """A filter of rows that needs the columns in `columns` (see `jobs.reading.schema`)."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that `mask` reads."""

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the rows that the read returns; all rows are messages of `queue`."""


class DecodableRows:
    """Keeps the messages whose bodies could be decompressed, or fails if there are others."""

    columns = (BODY_ERROR, "queueOffset")

    def __init__(self, mode: str) -> None:
        """Create a filter for DROPMALFORMED or FAILFAST, one of MODES."""
        self._is_fatal = mode == FAILFAST

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the messages with decompressed bodies. Raises `BodyInvalid` in mode FAILFAST."""
        errors = batch.column(BODY_ERROR)
        found: NDArray[np.bool_] = errors.is_null().to_numpy(zero_copy_only=False)
        if self._is_fatal and not found.all():
            row = int(np.argmin(found))
            topic, broker_name, queue_id = queue
            raise BodyInvalid(
                f"{topic}/{broker_name}/{queue_id} offset {batch.column('queueOffset')[row]}: {errors[row]}."
                " Use mode='PERMISSIVE' or 'DROPMALFORMED'"
            )
        return found


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


class SelectedRows:
    """Keeps the messages of the log for which an expression on columns of the read is true."""

    def __init__(self, expression: pc.Expression, columns: Sequence[str]) -> None:
        self._expression = expression
        self.columns = tuple(columns)

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of these messages; null counts as false."""
        rows = ds.dataset(pa.Table.from_batches([batch])).scanner(columns={"is_true": self._expression})
        found = rows.to_table().column("is_true").fill_null(False)
        mask: NDArray[np.bool_] = found.to_numpy()
        return mask


class SqlRows:
    """Keeps the messages of a table whose properties match a SQL92 expression, as brokers evaluate it."""

    columns = ("properties",)

    def __init__(self, selector: MessageSelector) -> None:
        self._selector = selector

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of these messages."""
        compiled = compiled_filter(self._selector)
        assert isinstance(compiled, SqlFilter)
        matches = compiled.matches_properties
        rows = batch.column("properties").to_pylist()
        return np.fromiter((matches(dict(row or ())) for row in rows), np.bool_, len(rows))
