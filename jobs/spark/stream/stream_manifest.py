"""Manifest: a file with the offset ranges of one batch, one JSON object per line.

A line is a split of the batch, or the position of a queue without messages in the batch (begin = end, without
a location). Therefore the last manifest contains the position of every queue. A split of a table has no
queue, but `history`: its files and bounds as JSON. If the planner fails, it writes a manifest of one line,
whose `fault` is the reason; reading this line ends the query with an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cluster.client.read_epoch import ReadEpoch
from jobs.reading.log_epochs import Epochs
from jobs.reading.splits import Split, StoreLocation
from jobs.reading.table_files import FilePart, RowBounds, TableSource, TableSplit
from jobs.spark.stream.plan import Batch
from jobs.spark.stream.stream_errors import StreamFailed
from store.message.message_queue import MessageQueue

SCHEMA = (
    "number bigint, queryId string, fault string, topic string, brokerName string, queueId int, begin bigint,"
    " end bigint, lag bigint, address string, storeRoot string, storeId string, commitLogFileBytes bigint,"
    " consumeQueueFileUnits bigint, machineId string, epochAddress string, epoch string,"
    " history string"
)
"""The columns of a manifest, as a Spark DDL string."""

Row = Mapping[str, Any]


def encode_stream_batch(number: int, query_id: str, batch: Batch, epochs: Epochs) -> bytes:
    """Return the content of manifest `number`: the splits and positions of `batch`, with their `epochs`."""
    head = {"number": number, "queryId": query_id}
    # Only one line per queue contains its lag, so that the sum of the column is the lag of the batch.
    lags = dict(batch.lags)
    rows = [{**head, **_history(each, lags)} for each in batch.history]
    rows += [
        {**head, **_range(each.queue, each.begin, each.end, lags), **_location(each.location)}
        for each in reversed(batch.splits)
    ]
    moved = {each.queue for each in batch.splits}
    rows += [
        {**head, **_range(queue, position, position, lags)}
        for queue, position in batch.positions.items()
        if queue not in moved
    ]
    for row in rows:
        epoch = epochs.get(queue_of_row(row))
        if epoch is not None and epoch.id:
            row.update(epochAddress=epoch.address, epoch=epoch.id)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def encode_fault(number: int, query_id: str, reason: str) -> bytes:
    """Return the content of a manifest that ends the query with the error text `reason`."""
    return (json.dumps({"number": number, "queryId": query_id, "fault": reason}) + "\n").encode()


def decode_rows(data: bytes) -> list[Row]:
    """Decode the content of a manifest into one row per line."""
    return [json.loads(line) for line in data.splitlines()]


def is_fault(rows: list[Row]) -> bool:
    """Return True if `rows` are those of a manifest that ends the query with an error."""
    return any("fault" in row for row in rows)


def positions_after(rows: list[Row]) -> dict[MessageQueue, int]:
    """Return the next offset to read of each queue after the batch of this manifest."""
    positions: dict[MessageQueue, int] = {}
    for row in rows:
        queue = queue_of_row(row)
        if not row.get("history"):
            positions[queue] = max(positions.get(queue, 0), row["end"])
    return positions


def epochs_after_batch(rows: list[Row]) -> dict[MessageQueue, ReadEpoch]:
    """Return the epoch of each position after the batch; an earlier version has written none."""
    return {
        queue_of_row(row): ReadEpoch(row["epochAddress"], row["epoch"]) for row in rows if row.get("epoch")
    }


def queue_of_row(row: Row) -> MessageQueue:
    """Return the queue that a row of a manifest refers to."""
    return MessageQueue(row["topic"], row["brokerName"], row["queueId"])


def split_of(row: Row) -> Split:
    """Return the split of a row with messages (begin < end)."""
    location = StoreLocation(
        row["address"],
        row["storeRoot"],
        row["storeId"],
        row["commitLogFileBytes"],
        row["consumeQueueFileUnits"],
        machine_id=row["machineId"] or "",
        history=row.get("epoch") or "",
    )
    return Split(queue_of_row(row), row["begin"], row["end"], location)


def _range(queue: MessageQueue, begin: int, end: int, lags: dict[MessageQueue, int]) -> dict[str, Any]:
    topic, broker_name, queue_id = queue
    lag = lags.pop(queue, 0)
    return {
        "topic": topic,
        "brokerName": broker_name,
        "queueId": queue_id,
        "begin": begin,
        "end": end,
        "lag": lag,
    }


def _location(location: StoreLocation) -> dict[str, Any]:
    return {
        "address": location.address,
        "storeRoot": location.store_root,
        "storeId": location.store_id,
        "commitLogFileBytes": location.commit_log_file_bytes,
        "consumeQueueFileUnits": location.consume_queue_file_units,
        "machineId": location.machine_id,
    }


def _history(split: TableSplit, lags: dict[MessageQueue, int]) -> dict[str, Any]:
    row = _range(split.queue, 0, split.message_count, lags)
    return {**row, "history": json.dumps({"parts": split.parts, "bounds": split.source.bounds})}


def table_split_of(row: Row, sources: Mapping[str, TableSource]) -> TableSplit:
    """Return the split of a row with `history`. Raises `StreamFailed` if `sources` has not its table."""
    source = sources.get(row["topic"])
    if source is None:
        raise StreamFailed(
            f"the next batch is from the table of topic {row['topic']}: give lake='with_tail' until the"
            " stream has read its history"
        )
    history = json.loads(row["history"])
    bounds = None if history["bounds"] is None else tuple(RowBounds(*each) for each in history["bounds"])
    return TableSplit(replace(source, bounds=bounds), tuple(FilePart(*each) for each in history["parts"]))
