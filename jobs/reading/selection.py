"""Select messages by tag or by SQL92 expression while a split is read, before they become rows.

    consume queue unit ── tags code ──► record ── SQL92 expression ──► row ── text of the tag ──► selected

The first two steps use the filters of the broker. The last step is necessary because different tags may have
the same tags code. A record that is too damaged for a step is selected, so that the read reports it as lost.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class

import numpy as np
from numpy.typing import NDArray

from cluster.client import ClientError, MessageSelector
from cluster.client.message_selector import ALL_MESSAGES
from jobs.job_errors import OptionInvalid
from jobs.reading.chunk import Numbers
from store.consumequeue.unit import FILLER_SIZE
from store.message.record import MAGIC_V1, MAGIC_V2
from store.reading.message_filter import MATCH_ALL, MessageFilter, TagFilter
from store.reading.sql_filter import SqlFilter
from store.store_errors import StoreError

UNIT = np.dtype([("position", ">i8"), ("size_bytes", ">i4"), ("tags_code", ">i8")])
"""A unit of a consume queue (see `store.consumequeue.unit`)."""

Rows = NDArray[np.bool_] | slice
"""An index of the selected elements of an array: a mask, or a slice if all are selected."""
ALL_ROWS = slice(None)

_SIZE_AND_MAGIC = Struct(">ii")  # a record begins with them


def parse_selector(tags: str | None, sql: str | None) -> MessageSelector:
    """Return the selector for the options `tags` and `sql`; without them, one for all messages.

    Raises `OptionInvalid`.
    """
    if tags is not None and sql is not None:
        raise OptionInvalid(f"tags={tags!r} and sql={sql!r}: give one; in SQL the tag is the property TAGS")
    if sql is not None:
        try:
            return MessageSelector.by_sql(sql)
        except ClientError as error:
            raise OptionInvalid(f"sql: {error}") from error
    if tags is None:
        return ALL_MESSAGES
    if not isinstance(tags, str) or not any(part.strip() for part in tags.split("||")):
        raise OptionInvalid(f"tags={tags!r} is invalid: give 'tag', 'tag1 || tag2', or '*' for all messages")
    return MessageSelector.by_tag(tags)


@cache
def compiled_filter(selector: MessageSelector) -> MessageFilter:
    """Return the broker's filter for `selector`, compiled once per process."""
    if selector.type == "SQL92":
        return SqlFilter(selector.expression)
    return TagFilter(selector.tags) if selector.tags else MATCH_ALL


def select_units(units: NDArray[np.void], selector: MessageSelector) -> Rows:
    """Return an index of the consume queue units whose messages the selector may select, by their tags codes.

    `units` is an array of the type UNIT. Fillers are selected: the tags of their messages are unknown.
    """
    wanted = compiled_filter(selector)
    if not wanted.reads_units:
        return ALL_ROWS
    accepted = wanted.accepted_codes(units.view(np.uint8))
    # RocketMQ compares the low 32 bits.
    mask: NDArray[np.bool_] = np.isin(units["tags_code"].astype(np.int32), accepted.astype(np.int32))
    return mask | (units["size_bytes"] == FILLER_SIZE)


def select_records(
    records: memoryview, positions: Numbers, sizes: Numbers, selector: MessageSelector
) -> Rows:
    """Return an index of the records that the selector may select.

    `positions` and `sizes` are those of the records in the buffer `records`, in bytes.
    """
    wanted = compiled_filter(selector)
    if not wanted.reads_records:
        return ALL_ROWS
    places = zip(positions.tolist(), sizes.tolist(), strict=True)
    return np.fromiter(
        (_may_match(records[position : position + size], size, wanted) for position, size in places),
        np.bool_,
        len(positions),
    )


def _may_match(record: memoryview, size: int, wanted: MessageFilter) -> bool:
    if len(record) < _SIZE_AND_MAGIC.size:
        return True
    size_bytes, magic = _SIZE_AND_MAGIC.unpack_from(record)
    if size_bytes != size or magic not in (MAGIC_V1, MAGIC_V2):
        return True
    try:
        return wanted.matches(record)
    except (StoreError, StructError, IndexError):
        return True
