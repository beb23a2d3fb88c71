"""Tables of a lake without a cluster: rows with given offsets, and what a table has."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeTable
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
    rows = [{"broker": "broker-a", "queue": 0, "offset": each, "store_time": NOON} for each in offsets]
    uri = f"{table.location}/data/{name}.parquet"
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, table.arrow_schema), path)
    return uri


def offsets_in(table: LakeTable) -> list[int]:
    """Return the offsets of all rows of the table, sorted; a row that is there twice appears twice."""
    table.refresh()
    return sorted(table.iceberg.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist())
