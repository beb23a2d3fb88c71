"""A topic whose older messages are in a table and whose newest ones are only in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from cluster.client import Admin, Producer
from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.history import plan_lake_read
from jobs.lake.lake_table import LakeTable
from jobs.reading.options.lake_options import LakeOptions
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import ReadPlan
from tests.jobs.lake.lake_files import fill_table, rows_of

TOPIC, QUEUES = "history", 2
COLUMNS = pa.schema(
    [
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("size", pa.map_(pa.string(), pa.string())),
    ]
)


class HistoryTopic:
    """A topic with messages 0 … 299 in table and log, and 300 … 399 only in the log."""

    def __init__(self, nameservers: str, warehouse: Path) -> None:
        self.nameservers = nameservers
        self.warehouse = str(warehouse)
        with Admin(nameservers) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        self.table = LakeTable.create(open_catalog(LakeSettings(self.warehouse)), "raymq", TOPIC)
        for begin, end in ((0, 150), (150, 300)):
            self.send(begin, end)
            fill_table(self.table, nameservers, row_group_rows=20)
        self.send(300, 400)

    def send(self, begin: int, end: int) -> None:
        numbers = range(begin, end)
        columns = {
            "body": [b"%d" % number for number in numbers],
            "tags": [f"tag-{number % 3}" for number in numbers],
            "keys": [f"key-{number}" for number in numbers],
            "size": [[("size", str(number))] for number in numbers],
        }
        table = pa.table(columns, schema=COLUMNS)
        with Producer(self.nameservers) as producer:
            producer.send_table(
                TOPIC, table, tags="tags", keys="keys", sharding_key="keys", properties="size"
            )

    def plan(self, *, has_tail: bool = True, where: str = "", **options: Any) -> ReadPlan:
        lake = LakeOptions(has_tail, self.warehouse, where=where)
        return plan_lake_read(
            ReadOptions(TopicNames((TOPIC,)), nameservers=self.nameservers, lake=lake, **options)
        )

    def numbers(self, **options: Any) -> list[int]:
        """Return the numbers in the bodies of the messages that a read returns, sorted."""
        return sorted(int(body) for body in rows_of(self.plan(**options))["body"].to_pylist())
