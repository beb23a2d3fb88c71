"""`read_queue` in a local Spark session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.client import Admin, ClientError, Producer
from jobs import raydp_session, read_queue
from jobs.job_errors import DataLoss, JobError, OffsetsInvalid, OptionInvalid
from jobs.reading.schema import ALL_COLUMNS
from store.common.clock import SystemClock
from tests.eventually import eventually
from tests.jobs.conftest import BODY_BYTES, MESSAGES, TOPIC, Orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_read_returns_all_columns_with_spark_types(spark: SparkSession, orders: Orders) -> None:
    frame = read_queue(spark, TOPIC, nameservers=orders.nameservers)
    assert tuple(frame.columns) == ALL_COLUMNS
    types = dict(frame.dtypes)
    assert (types["body"], types["properties"], types["storeTimestamp"]) == (
        "binary",
        "map<string,string>",
        "timestamp",
    )
    rows = frame.collect()
    assert sorted(bytes(row["body"]) for row in rows) == sorted(orders.sent)
    special = next(row for row in rows if row["tags"] == "späte")
    assert special["properties"]["color"] == "blå"
    by_tag = {row["tags"]: row["count"] for row in frame.groupBy("tags").count().collect()}
    assert by_tag == {"tag-0": MESSAGES // 3, "tag-1": MESSAGES // 3, "tag-2": MESSAGES // 3, "späte": 1}


def test_mapped_and_fetched_reads_return_the_same_rows(spark: SparkSession, orders: Orders) -> None:
    # Spark cannot compare maps, so properties are compared as a sorted list of entries.
    plain = [name for name in ALL_COLUMNS if name != "properties"]
    mapped, fetched = (
        read_queue(spark, TOPIC, nameservers=orders.nameservers, mapFiles=map_files).selectExpr(
            *plain, "array_sort(map_entries(properties)) AS properties"
        )
        for map_files in (True, False)
    )
    assert mapped.exceptAll(fetched).count() == fetched.exceptAll(mapped).count() == 0
    assert mapped.count() == MESSAGES + 1


def test_timestamps_select_messages_by_store_time(spark: SparkSession, orders: Orders) -> None:
    nameservers = orders.nameservers
    with Admin(nameservers) as admin, Producer(nameservers) as producer:
        admin.create_topic("by-time", queues=2)
        times = []
        for part in range(3):
            sent = [producer.send("by-time", b"%d" % part) for _ in range(8)]
            read = read_queue(spark, "by-time", nameservers=nameservers, columns=["storeTimestamp"])
            newest = read.selectExpr("max(unix_millis(storeTimestamp))").first()[0]
            times.append(newest + 1)
            eventually(lambda end_ms=times[-1]: SystemClock().wall_ms() > end_ms, "a later time")
            assert sent

    def bodies(**options: Any) -> list[bytes]:
        frame = read_queue(spark, "by-time", nameservers=nameservers, columns=["body"], **options)
        return sorted(bytes(row["body"]) for row in frame.collect())

    assert bodies(startingTimestamp=times[0]) == [b"1"] * 8 + [b"2"] * 8
    assert bodies(endingTimestamp=times[1]) == [b"0"] * 8 + [b"1"] * 8
    assert bodies(startingTimestamp=times[0], endingTimestamp=times[1]) == [b"1"] * 8
    each = {"by-time": {broker: {"0": times[1], "1": times[1]} for broker in ("broker-a", "broker-b")}}
    assert bodies(startingOffsetsByTimestamp=each) == [b"2"] * 8
    assert bodies(endingOffsetsByTimestamp=each, startingTimestamp=times[0]) == [b"1"] * 8
    with pytest.raises(OffsetsInvalid, match="4 of 4 queues have no message of that time"):
        bodies(startingTimestamp=times[2])
    assert bodies(startingTimestamp=times[2], startingOffsetsByTimestampStrategy="latest") == []


def test_offsets_select_a_range_of_each_queue(spark: SparkSession, orders: Orders) -> None:
    frame = read_queue(
        spark,
        TOPIC,
        nameservers=orders.nameservers,
        startingOffsets=json.dumps({TOPIC: {"broker-a": {"0": 10, "1": -1}}}),
        endingOffsets={TOPIC: {"broker-a": {0: 30}, "broker-b": {0: 7, 1: -2, 2: -2}}},
        columns=["brokerName", "queueId", "queueOffset"],
    )
    found: dict[tuple[str, int], list[int]] = {}
    for broker, queue, offset in sorted(tuple(row) for row in frame.collect()):
        found.setdefault((broker, queue), []).append(offset)
    assert found.pop(("broker-a", 0)) == list(range(10, 30))
    assert found.pop(("broker-b", 0)) == list(range(7))
    assert list(found) == [("broker-a", 2)]


def test_columns_and_partition_options_are_applied(spark: SparkSession, orders: Orders) -> None:
    frame = read_queue(
        spark,
        TOPIC,
        nameservers=orders.nameservers,
        columns=["body"],
        minPartitions=9,
        maxRecordsPerPartition=900,
    )
    assert frame.columns == ["body"]
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert len(sizes) >= 9
    assert max(sizes) <= 900
    assert sum(sizes) == MESSAGES + 1
    assert frame.selectExpr("sum(length(body))").first()[0] == MESSAGES * BODY_BYTES + 1


def test_range_is_fixed_when_the_frame_is_created(spark: SparkSession, orders: Orders) -> None:
    nameservers = orders.nameservers
    with Admin(nameservers) as admin, Producer(nameservers) as producer:
        admin.create_topic("fixed-range", queues=1)
        producer.send("fixed-range", b"before")
        frame = read_queue(spark, "fixed-range", nameservers=nameservers, columns=["body"])
        producer.send("fixed-range", b"after")
    assert [bytes(row["body"]) for row in frame.collect()] == [b"before"]
    assert read_queue(spark, "fixed-range", nameservers=nameservers).count() == 2


def test_read_from_latest_returns_empty_frame_with_all_columns(spark: SparkSession, orders: Orders) -> None:
    frame = read_queue(spark, TOPIC, nameservers=orders.nameservers, startingOffsets="latest")
    assert (tuple(frame.columns), frame.count()) == (ALL_COLUMNS, 0)


def test_missing_offsets_fail_the_read_or_are_skipped(spark: SparkSession, orders: Orders) -> None:
    ending = {TOPIC: {"broker-a": {0: 1_000_000}}}
    with pytest.raises(DataLoss, match="orders/broker-a/0"):
        read_queue(spark, TOPIC, nameservers=orders.nameservers, endingOffsets=ending)
    frame = read_queue(
        spark, TOPIC, nameservers=orders.nameservers, endingOffsets=ending, failOnDataLoss=False
    )
    assert frame.count() == MESSAGES + 1


def test_invalid_options_and_unknown_topic_are_refused_by_driver(spark: SparkSession, orders: Orders) -> None:
    nameservers = orders.nameservers
    with pytest.raises(OffsetsInvalid, match="startingOffsets"):
        read_queue(spark, TOPIC, nameservers=nameservers, startingOffsets="yesterday")
    with pytest.raises(OptionInvalid, match="columns"):
        read_queue(spark, TOPIC, nameservers=nameservers, columns=["value"])
    with pytest.raises(ClientError, match="unknown-topic"):
        read_queue(spark, "unknown-topic", nameservers=nameservers)


def test_workers_have_reader_loaded_and_no_archives_on_path(spark: SparkSession) -> None:
    def inspect_worker(_: int) -> tuple[bool, list[str]]:
        import sys

        archives = [
            entry for entry in sys.path_importer_cache if "pyspark.zip" in entry or "spark-core" in entry
        ]
        return "jobs.reading.mapped" in sys.modules, archives

    assert spark.sparkContext.parallelize([0], 1).map(inspect_worker).first() == (True, [])


def test_raydp_session_without_ray_is_refused_with_remedy() -> None:
    import ray

    if ray.is_initialized():
        pytest.skip("this process is connected to a Ray cluster")
    with pytest.raises(JobError, match=r"ray\.init"), raydp_session():
        pass
