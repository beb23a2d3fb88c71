"""Delayed rows of a write: the brokers deliver each row when its delay has passed.

Brokers store batches unchanged and deliver them at once. Therefore each delayed row is sent as a message of
its own, without waiting for the responses to the rows before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cluster.client import Message, Producer, SelectMessageQueueByRandom, SendResult
from cluster.client.errors import ConfigInvalid
from cluster.client.producer.table_properties import RESERVED_NAMES
from jobs.writing.write_job import WriteColumns, WriteJob
from store.message.properties import MessageConst

IN_FLIGHT = 1_000
"""Maximum number of delayed rows of a task without a response."""


def delays_of(table: pa.Table, delay: str | int) -> pa.ChunkedArray:
    """Return the delay of each row in milliseconds; 0 means that the row is not delayed.

    `delay` is a column, or the delay of all rows. Raises ConfigInvalid if the column contains other values
    than nulls and integers of at least 0.
    """
    if not isinstance(delay, str):
        return pa.chunked_array([pa.repeat(delay, table.num_rows)])
    column = table.column(delay)
    if not pa.types.is_integer(column.type):
        raise ConfigInvalid(f"delay={delay!r} has type {column.type}: cast it to an integer, milliseconds")
    found = pc.fill_null(column, 0)
    row = pc.index(pc.less(found, 0), value=True).as_py()
    if row >= 0:
        raise ConfigInvalid(
            f"row {row}: delay={delay!r} is {found[row].as_py():,} ms: it must be 0 or more, or null"
        )
    return found


class DelayedRows:
    """Sends the delayed rows of one partition. `partition` is the number in their UNIQ_KEYs."""

    def __init__(self, job: WriteJob, partition: int) -> None:
        self._job = job
        self._uniq_keys = job.uniq_keys(partition)

    def send(self, producer: Producer, rows: pa.Table, delays: pa.ChunkedArray) -> None:
        """Send all rows and wait until they are acknowledged. Raises `cluster.client.ClientError`."""
        shards = _texts(rows, self._job.columns.sharding_key)
        any_queue = SelectMessageQueueByRandom()
        in_flight: deque[Future[SendResult]] = deque()
        for message, shard in zip(self._messages(rows, delays), shards, strict=True):
            if len(in_flight) == IN_FLIGHT:
                in_flight.popleft().result()
            # Both kinds of sends are retried until `delivery_timeout_ms`, like batches.
            if self._job.columns.sharding_key is None:
                sent = producer.send_async(message, selector=any_queue)
            else:
                sent = producer.send_async(message, sharding_key=(shard or b"").decode("utf-8", "replace"))
            in_flight.append(sent)
        for sent in in_flight:
            sent.result()

    def _messages(self, rows: pa.Table, delays: pa.ChunkedArray) -> Iterator[Message]:
        columns = self._job.columns
        keys = self._uniq_keys.next_block(rows.num_rows).keys(rows.num_rows)
        for uniq_key, body, tag, key, properties, delay_ms in zip(
            keys,
            _texts(rows, columns.body),
            _texts(rows, columns.tag),
            _texts(rows, columns.key),
            _properties(rows, columns),
            delays.to_pylist(),
            strict=True,
        ):
            properties[MessageConst.UNIQ_KEY] = uniq_key
            for name, text in ((MessageConst.TAGS, tag), (MessageConst.KEYS, key)):
                if text:
                    properties[name] = text.decode("utf-8", "replace")
            yield Message(self._job.topic, body or b"", properties=properties, delay_ms=delay_ms)


def _texts(rows: pa.Table, name: str | None) -> list[bytes | None]:
    """Return the values of a column of strings, bytes or integers as bytes, or nulls if `name` is None."""
    if name is None:
        return [None] * rows.num_rows
    column = rows.column(name)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_binary()).to_pylist()


def _properties(rows: pa.Table, columns: WriteColumns) -> Iterator[dict[str, str]]:
    """Yield the user properties of each row, without those that are empty or reserved, as for other rows."""
    maps: list[Any] = [None] * rows.num_rows
    if columns.properties is not None:
        maps = rows.column(columns.properties).to_pylist()
    for pairs in maps:
        yield {name: value for name, value in pairs or () if name and value and name not in RESERVED_NAMES}
