"""`write_queue` in a local Spark session: content, retries, commits and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from cluster.client import Admin, Producer
from jobs import read_queue, write_queue
from jobs.job_errors import OptionInvalid, TopicNotEmpty, WriteFailed
from tests.eventually import eventually
from tests.jobs.conftest import TOPIC, Orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def create(orders: Orders, topic: str, queues: int = 2) -> str:
    with Admin(orders.nameservers) as admin:
        admin.create_topic(topic, queues=queues)
    return topic


def numbers(spark: SparkSession, rows: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr(
        "cast(id AS string) AS body",
        "concat('key-', id) AS order_id",
        "if(id % 2 = 0, 'even', NULL) AS parity",
        "id % 7 AS customer",
    )


def bodies(spark: SparkSession, orders: Orders, topic: str, *, committed: bool) -> list[int]:
    frame = read_queue(
        spark, topic, nameservers=orders.nameservers, columns=["body"], committed=committed, minPartitions=3
    )
    return sorted(int(row["body"]) for row in frame.collect())


def test_write_stores_all_columns_and_commits(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "written")
    receipt = write_queue(
        numbers(spark, 5_000),
        topic,
        nameservers=orders.nameservers,
        key="order_id",
        tag="parity",
        sharding_key="customer",
    )
    assert (receipt.topic, receipt.rows, receipt.partitions) == (topic, 5_000, 3)
    rows = read_queue(spark, topic, nameservers=orders.nameservers, committed=True).collect()
    assert sorted(int(row["body"]) for row in rows) == list(range(5_000))
    queues: dict[int, set[tuple[str, int]]] = {}
    for row in rows:
        number = int(row["body"])
        assert row["keys"] == f"key-{number}"
        assert row["tags"] == ("even" if number % 2 == 0 else None)
        queues.setdefault(number % 7, set()).add((row["brokerName"], row["queueId"]))
    assert [len(each) for each in queues.values()] == [1] * 7
    assert len({row["uniqKey"] for row in rows}) == 5_000
    with Admin(orders.nameservers) as admin:
        assert [message.body for message in admin.messages_by_key(topic, "key-77")] == [b"77"]


def test_topic_is_copied_with_properties(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "copied")
    source = read_queue(spark, TOPIC, nameservers=orders.nameservers)
    source = source.where("queueOffset % 20 = 0 OR tags = 'späte'")  # a batch must fit into a log file
    write_queue(
        source, topic, nameservers=orders.nameservers, key="keys", tag="tags", properties="properties"
    )
    copied = read_queue(spark, topic, nameservers=orders.nameservers, committed=True)
    shown = ["body", "tags", "keys", "properties['color']", "properties['UNIQ_KEY'] = uniqKey"]
    assert copied.count() == source.count()
    assert copied.selectExpr(*shown).exceptAll(source.selectExpr(*shown)).count() == 0
    special = copied.where("tags = 'späte'").first()
    assert special["properties"]["color"] == "blå"
    assert special["uniqKey"].startswith("FF")


def fail_first_attempt(
    nameservers: str, topic: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pass the rows on; fail the first attempt of partition 1 after some of its rows are stored."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    is_failing = task.partitionId() == 1 and task.attemptNumber() == 0
    for number, batch in enumerate(batches):
        yield batch
        if is_failing and number == 3:
            with Admin(nameservers) as admin:
                eventually(lambda: sum(admin.end_offsets(topic).values()) > 0, "rows of the first attempt")
            raise RuntimeError("the first attempt fails")


def test_committed_read_returns_rows_of_a_retried_task_once(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "retried")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        frame = spark.range(0, 6_000, 1, 2).selectExpr("rpad(id, 100, ' ') AS body")
        failing = frame.mapInArrow(partial(fail_first_attempt, orders.nameservers, topic), "body string")
        receipt = write_queue(
            # Partition 0 has no rows: all rows stored before the failure are of the failing attempt.
            failing.where("int(trim(body)) >= 3000"),
            topic,
            nameservers=orders.nameservers,
            buffer_bytes=1,
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert receipt.rows == 3_000
    assert bodies(spark, orders, topic, committed=True) == list(range(3_000, 6_000))
    stored = read_queue(spark, topic, nameservers=orders.nameservers, columns=["body", "uniqKey"]).collect()
    keys = {(int(row["body"]), row["uniqKey"]) for row in stored}
    assert len(stored) > len(keys) == 3_000  # stored twice, with one UNIQ_KEY


def test_failed_write_names_topic_rows_and_remedy(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "failed")
    frame = spark.range(0, 1_000, 1, 1).selectExpr("if(id = 700, '', string(id)) AS body")
    with pytest.raises(WriteFailed, match="the body is missing or empty") as failed:
        write_queue(frame.repartition(1), topic, nameservers=orders.nameservers)
    assert f"topic {topic}: rows [0, 1000) of partition 0, attempt" in str(failed.value)
    assert "write again" in str(failed.value)
    assert bodies(spark, orders, topic, committed=True) == []


def test_uncommitted_rows_are_hidden_and_others_are_not(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "mixed")

    def fail_after_storing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("not a row error")

    with Producer(orders.nameservers) as producer:
        producer.send(topic, b"-1")
    write_queue(numbers(spark, 100), topic, nameservers=orders.nameservers)
    failing = numbers(spark, 100).select("body").mapInArrow(fail_after_storing, "body string")
    with pytest.raises(Exception, match="not a row error"):
        write_queue(failing, topic, nameservers=orders.nameservers, buffer_bytes=1)
    with Producer(orders.nameservers) as producer:
        producer.send(topic, b"-2")
    write_queue(numbers(spark, 50), topic, nameservers=orders.nameservers)
    expected = Counter([-1, -2, *range(100), *range(50)])
    assert Counter(bodies(spark, orders, topic, committed=True)) == expected
    assert not expected - Counter(bodies(spark, orders, topic, committed=False))


def test_mode_errorifexists_refuses_a_topic_with_messages(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "exists")
    for mode in ("errorifexists", "append"):
        write_queue(numbers(spark, 10), topic, nameservers=orders.nameservers, mode=mode)  # type: ignore[arg-type]
    with pytest.raises(TopicNotEmpty, match="exists contains 20 messages"):
        write_queue(numbers(spark, 10), topic, nameservers=orders.nameservers, mode="errorifexists")
    assert len(bodies(spark, orders, topic, committed=False)) == 20


def test_invalid_arguments_are_refused_by_the_driver(spark: SparkSession, orders: Orders) -> None:
    frame = numbers(spark, 10)
    refused = {
        "key='nothing' is not a column of the data: use one of body, order_id": {"key": "nothing"},
        "body='price' has type double: cast it": {"body": "price"},
        "properties='order_id' has type string: it must be map<string,string>": {"properties": "order_id"},
        "mode='overwrite' is unknown": {"mode": "overwrite"},
        "buffer_bytes=0 must be at least 1": {"buffer_bytes": 0},
    }
    frame = frame.selectExpr("*", "1.5D AS price")
    for text, arguments in refused.items():
        with pytest.raises(OptionInvalid, match=text):
            write_queue(frame, TOPIC, nameservers=orders.nameservers, **arguments)  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="dead-letter"):
        write_queue(frame, "%DLQ%group", nameservers=orders.nameservers)


def test_empty_frame_is_committed(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "nothing-written")
    receipt = write_queue(numbers(spark, 10).limit(0), topic, nameservers=orders.nameservers)
    assert receipt.rows == 0
    assert bodies(spark, orders, topic, committed=True) == []


def test_columns_may_have_any_name(spark: SparkSession, orders: Orders) -> None:
    topic = create(orders, "names")
    names = ["my.body", "the `key`", 'a "tag"', "größe?", "my body"]
    frame = spark.createDataFrame([(str(number),) * 5 for number in range(10)], names)
    write_queue(
        frame,
        topic,
        nameservers=orders.nameservers,
        body=names[0],
        key=names[1],
        tag=names[2],
        sharding_key=names[3],
    )
    rows = read_queue(spark, topic, nameservers=orders.nameservers).collect()
    found = sorted((bytes(row["body"]).decode(), row["keys"], row["tags"]) for row in rows)
    assert found == [(str(number),) * 3 for number in range(10)]


def test_column_whose_name_is_ambiguous_is_refused(spark: SparkSession, orders: Orders) -> None:
    frame = spark.createDataFrame([("a", "b")], ["body", "body"])
    with pytest.raises(OptionInvalid, match="body='body' is the name of 2 columns"):
        write_queue(frame, TOPIC, nameservers=orders.nameservers)
