"""Tables of a lake without a cluster: rows with given offsets, and what a table has."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeGap, LakeTable
from jobs.reading.describe import describe_topic
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import ReadPlan, reader_of
from jobs.reading.splits import Split
from jobs.reading.table_files import TABLE_COLUMNS
from store.message.message_queue import MessageQueue

TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


def catalog_of(tmp_path: Path) -> Catalog:
    return open_catalog(LakeSettings(str(tmp_path / "lake")))


def table_of(catalog: Catalog, topic: str = TOPIC) -> LakeTable:
    return LakeTable.create(catalog, "raymq", topic)


def write_rows(table: LakeTable, offsets: Iterable[int], name: str) -> str:
    """Write a Parquet file with a row of QUEUE for each offset; return its URI."""
    rows = [
        {"broker": "broker-a", "queue": 0, "offset": each, "store_time": NOON + timedelta(seconds=each)}
        for each in offsets
    ]
    uri = f"{table.location}/data/{name}.parquet"
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, table.arrow_schema), path)
    return uri


def offsets_in(table: LakeTable) -> list[int]:
    """Return the offsets of all rows of the table, sorted; a row that is there twice appears twice."""
    table.refresh()
    return sorted(table.iceberg.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist())


def fill_table(table: LakeTable, nameservers: str, row_group_rows: int = 128 * 1024) -> None:
    """Add the messages of the topic that the table does not have."""
    state, queues = table.state(), describe_topic(nameservers, table.topic)
    wanted = [
        Split(each.queue, begin, each.max_offset, each.location)
        for each in queues
        if (begin := state.offsets.get(each.queue, each.min_offset)) < each.max_offset
    ]
    read = ReadOptions(TopicNames((table.topic,)), nameservers=nameservers)
    rows = pa.Table.from_batches(list(reader_of(read, wanted).read_all()))
    named = pa.table({column: rows[name] for name, column in TABLE_COLUMNS.items()})
    uri = _path(table, uuid.uuid4().hex)
    pq.write_table(named.cast(table.arrow_schema), uri.removeprefix("file://"), row_group_size=row_group_rows)
    table.commit([uri], {each.queue: each.max_offset for each in queues}, (), state)


def write_days(
    table: LakeTable, days: Iterable[datetime], begin: int = 0, gaps: Sequence[LakeGap] = ()
) -> None:
    """Add a file of ten messages for each day, without those in the gaps."""
    queue, files = MessageQueue(table.topic, "broker-a", 0), []
    for end, day in enumerate(days, 1):
        offsets = range(begin + 10 * end - 10, begin + 10 * end)
        rows = [
            {
                "broker": "broker-a",
                "queue": 0,
                "offset": each,
                "store_time": day + timedelta(hours=1),
                "keys": f"key-{each:05d}",
                "body": b"%d" % each,
            }
            for each in offsets
            if not any(gap.begin <= each < gap.end for gap in gaps)
        ]
        if rows:
            uri = _path(table, uuid.uuid4().hex)
            shown = [{name: row.get(name) for name in table.arrow_schema.names} for row in rows]
            pq.write_table(pa.Table.from_pylist(shown, table.arrow_schema), uri.removeprefix("file://"))
            files.append(uri)
    table.commit(files, {queue: offsets.stop}, gaps, table.state())


def rows_of(plan: ReadPlan) -> pa.Table:
    """Return the rows of a read."""
    reader = plan.reader(plan.splits(4))
    from jobs.ray_data.read import arrow_schema

    return pa.Table.from_batches(reader.read_all(), arrow_schema(plan.options.columns))


def _path(table: LakeTable, name: str) -> str:
    uri = f"{table.location}/data/{name}.parquet"
    Path(uri.removeprefix("file://")).parent.mkdir(parents=True, exist_ok=True)
    return uri
