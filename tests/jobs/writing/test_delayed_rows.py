"""`write_queue(delay=…)`: delayed rows are delivered at their time, and bad delays are refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cluster.client import Admin, MessageExt
from jobs import read_queue, write_queue
from jobs.job_errors import OptionInvalid, WriteFailed
from jobs.writing.commit import prepare_topic
from jobs.writing.partition_writer import PartitionWriter
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.common.clock import SystemClock
from tests.eventually import eventually
from tests.jobs.conftest import Orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROWS = 120


@pytest.fixture
def topic(orders: Orders, request: pytest.FixtureRequest) -> str:
    name = request.node.name.partition("[")[0].removeprefix("test_")
    with Admin(orders.nameservers) as admin:
        admin.create_topic(name, queues=2)
    return name


def job_for(orders: Orders, topic: str, delay: str | int) -> WriteJob:
    columns = WriteColumns("n", "key", "tag", "customer", "properties", delay)
    job = new_job(topic, orders.nameservers, columns, BUFFER_BYTES, SystemClock().wall_ms())
    prepare_topic(job, "append")
    return job


def table(rows: int) -> pa.Table:
    """Return rows of which every fourth has no delay."""
    numbers = range(rows)
    return pa.table(
        {
            "n": numbers,
            "key": [f"key-{n}" for n in numbers],
            "tag": [f"tag-{n}" if n % 2 else None for n in numbers],
            "customer": [n % 7 for n in numbers],
            "properties": pa.array(
                [{"number": str(n), "empty": "", "TAGS": "reserved"} for n in numbers],
                pa.map_(pa.string(), pa.string()),
            ),
            "delay": [(None, 0)[n % 8 // 4] if n % 4 == 0 else 200 + n for n in numbers],
        }
    )


def stored(orders: Orders, topic: str, count: int) -> list[MessageExt]:
    """Wait for `count` messages in the topic, and return all of them."""
    with Admin(orders.nameservers) as admin:
        eventually(lambda: sum(admin.end_offsets(topic).values()) >= count, f"{count} messages")
        return [
            message
            for queue, end in admin.end_offsets(topic).items()
            for message in admin.messages_at(queue, 0, end)
        ]


def test_delayed_rows_have_all_columns_and_are_never_early(orders: Orders, topic: str) -> None:
    receipt = PartitionWriter(job_for(orders, topic, "delay"), 0).write([table(ROWS)])
    assert receipt.rows == ROWS
    assert sum(each.end - each.begin for each in receipt.ranges) == ROWS // 4  # the others are not stored yet
    messages = stored(orders, topic, ROWS)
    assert sorted(int(message.body) for message in messages) == list(range(ROWS))
    assert len({message.uniq_key for message in messages}) == ROWS
    queues: dict[int, set[tuple[str, int]]] = {}
    for message in messages:
        number = int(message.body)
        queues.setdefault(number % 7, set()).add((message.broker_name, message.queue_id))
        assert (message.keys, message.tags) == (f"key-{number}", f"tag-{number}" if number % 2 else None)
        assert message.properties["number"] == str(number)
        assert "empty" not in message.properties
        if number % 4:
            assert message.store_timestamp - message.born_timestamp >= 200 + number
    assert [len(each) for each in queues.values()] == [1] * 7  # a sharding key has one queue


def test_attempts_give_delayed_rows_the_same_unique_keys(orders: Orders, topic: str) -> None:
    job, rows = job_for(orders, topic, "delay"), table(ROWS)
    for attempt, batches in enumerate(([rows], [rows.slice(0, 50), rows.slice(50)])):
        PartitionWriter(job, 0, attempt).write(batches)
    counts = Counter((int(each.body), each.uniq_key) for each in stored(orders, topic, 2 * ROWS))
    assert sorted(counts.values()) == [2] * ROWS


@pytest.mark.spark
def test_constant_delay_hides_rows_from_committed_reads(
    spark: SparkSession, orders: Orders, topic: str
) -> None:
    frame = spark.range(0, ROWS, 1, 2).selectExpr("id")
    receipt = write_queue(frame, topic, nameservers=orders.nameservers, body="id", delay=300)
    assert receipt.rows == ROWS
    messages = stored(orders, topic, ROWS)
    assert sorted(int(message.body) for message in messages) == list(range(ROWS))
    assert all(message.store_timestamp - message.born_timestamp >= 300 for message in messages)
    read = {
        committed: read_queue(spark, topic, nameservers=orders.nameservers, committed=committed).count()
        for committed in (False, True)
    }
    assert read == {False: ROWS, True: 0}


@pytest.mark.parametrize(
    ("delays", "text"),
    [
        (pa.array([5, None, -7]), "row 2: delay='delay' is -7 ms: it must be 0 or more, or null"),
        (pa.array([0.5, 1, 2]), "delay='delay' has type double: cast it to an integer, milliseconds"),
        (pa.array([300_000_000, 1, 2]), r"max delay 259200000ms.*\(delivery in 300,000,000 ms\)"),
    ],
)
def test_bad_delays_fail_the_task_and_nothing_is_visible(
    orders: Orders, topic: str, delays: pa.Array, text: str
) -> None:
    job = job_for(orders, topic, "delay")
    rows = table(3).set_column(5, "delay", delays)
    with pytest.raises(WriteFailed, match=text) as failed:
        PartitionWriter(job, 4).write([rows])
    assert str(failed.value).startswith(f"topic {topic}: rows [0, 3) of partition 4")
    assert "write again" in str(failed.value)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("delay", "text"),
    [
        (-1, "delay=-1 must be a column, or an integer of at least 0, milliseconds"),
        (True, "delay=True must be a column"),
        (1.5, "delay=1.5 must be a column"),
        ("later", "delay='later' is not a column of the data: use one of body, price"),
        ("price", "delay='price' has type double: cast it to an integer, milliseconds"),
    ],
)
def test_invalid_delay_is_refused_by_the_driver(
    spark: SparkSession, orders: Orders, delay: Any, text: str
) -> None:
    frame = spark.range(3).selectExpr("string(id) AS body", "1.5D AS price")
    with pytest.raises(OptionInvalid, match=text):
        write_queue(frame, "orders", nameservers=orders.nameservers, delay=delay)
