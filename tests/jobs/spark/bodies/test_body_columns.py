"""Typed columns from bodies in JSON, MessagePack and Avro, and the modes for malformed bodies."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cluster.client import Admin, MessageQueue, Producer
from jobs import commit_read, read_queue, read_stream
from jobs.job_errors import OptionInvalid
from jobs.reading.bodies.avro import avro_decoder
from jobs.reading.schema import ALL_COLUMNS
from store.message.group_config import SubscriptionGroupConfig
from tests.eventually import LIMIT_S
from tests.jobs.conftest import Orders
from tests.jobs.spark.bodies.body_formats import AVRO_SCHEMA, ENCODERS, MALFORMED, ORDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MOST_EXTENDED = ["json", *(pytest.param(each, marks=pytest.mark.extended) for each in ("msgpack", "avro"))]
"""The formats; `test_body_decoder` tests the last two without Spark."""
SCHEMA = "id BIGINT, name STRING, price DOUBLE, lines ARRAY<STRUCT<item: STRING, count: INT>>"
ROW = (1 << 40, "späte", 1.5, [("apple", 3)])


def options(body_format: str) -> dict[str, str]:
    chosen = {"format": body_format, "schema": SCHEMA}
    return {**chosen, "avroSchema": AVRO_SCHEMA} if body_format == "avro" else chosen


@pytest.fixture
def filled(orders: Orders) -> Callable[..., str]:
    """Return a function that creates a topic with these bodies in one queue."""

    def fill(*bodies: bytes) -> str:
        topic = f"typed-{uuid4().hex[:8]}"
        with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
            admin.create_topic(topic, queues=1)
            for body in bodies:
                producer.send(topic, body, queue=MessageQueue(topic, "broker-a", 0))
        return topic

    return fill


@pytest.mark.parametrize("body_format", MOST_EXTENDED)
def test_bodies_become_typed_columns_beside_message_columns(
    spark: SparkSession, orders: Orders, filled: Callable[..., str], body_format: str
) -> None:
    topic = filled(ENCODERS[body_format](ORDER))
    frame = read_queue(spark, topic, nameservers=orders.nameservers, **options(body_format))
    assert frame.columns == [
        *(name for name in ALL_COLUMNS if name != "body"),
        "id", "name", "price", "lines",
    ]  # fmt: skip
    (row,) = frame.select("id", "name", "price", "lines", "topic", "queueOffset").collect()
    assert (*row[:3], [tuple(line) for line in row["lines"]]) == ROW
    assert (row["topic"], row["queueOffset"]) == (topic, 0)
    kept = read_queue(spark, topic, nameservers=orders.nameservers, columns=["body"], **options(body_format))
    assert kept.columns == ["body", "id", "name", "price", "lines"]
    assert bytes(kept.first()["body"]) == ENCODERS[body_format](ORDER)
    empty = read_queue(
        spark, topic, nameservers=orders.nameservers, startingOffsets="latest", **options(body_format)
    )
    assert (empty.schema, empty.count()) == (frame.schema, 0)


@pytest.mark.parametrize("body_format", MOST_EXTENDED)
def test_modes_keep_drop_or_refuse_malformed_bodies(
    spark: SparkSession, orders: Orders, filled: Callable[..., str], body_format: str
) -> None:
    good, bad = ENCODERS[body_format](ORDER), MALFORMED[body_format]
    topic = filled(good, *bad, good)
    given = {**options(body_format), "columns": ["queueOffset"], "nameservers": orders.nameservers}

    permissive = read_queue(spark, topic, **{**given, "schema": f"{SCHEMA}, _corrupt_record STRING"})
    rows = sorted(permissive.collect())
    assert [row["id"] for row in rows] == [ORDER["id"], *[None] * len(bad), ORDER["id"]]
    if body_format == "json":
        assert [row["_corrupt_record"] for row in rows[3:6]] == [each.decode() for each in bad[2:]]
        assert rows[2]["_corrupt_record"] is not None
    else:
        texts = [row["_corrupt_record"] for row in rows[1:-1]]
        assert [base64.b64decode(text) for text in texts] == bad
    if body_format != "avro":
        assert rows[5]["name"] == "n"  # the fields that fit are kept
    assert rows[0]["_corrupt_record"] is rows[-1]["_corrupt_record"] is None
    assert read_queue(spark, topic, **given).columns == ["queueOffset", "id", "name", "price", "lines"]

    dropped = read_queue(spark, topic, mode="dropMalformed", **given)
    assert sorted(row["queueOffset"] for row in dropped.collect()) == [0, len(bad) + 1]

    failing = read_queue(spark, topic, mode="FAILFAST", minPartitions=1, **given)
    with pytest.raises(Exception, match="Correct the schema, or use mode='PERMISSIVE'") as failed:
        failing.select("queueOffset").count()
    assert f"{topic}/broker-a/0 offset 1: the body is not" in str(failed.value)
    first = {topic: {"broker-a": {0: 1}}}
    fine = read_queue(spark, topic, mode="FAILFAST", endingOffsets=first, **given)
    assert fine.first()["id"] == ORDER["id"]


def test_missing_fields_are_null_and_unknown_fields_are_ignored(
    spark: SparkSession, orders: Orders, filled: Callable[..., str]
) -> None:
    topic = filled(b'{"id": 1, "unknown": {"a": []}}')
    frame = read_queue(
        spark, topic, mode="FAILFAST", columns=[], nameservers=orders.nameservers, **options("json")
    )
    assert [tuple(row) for row in frame.collect()] == [(1, None, None, None)]


@pytest.mark.parametrize("body_format", ["json", "msgpack"])
def test_struct_type_is_not_changed_and_its_fields_may_be_null(
    spark: SparkSession, orders: Orders, filled: Callable[..., str], body_format: str
) -> None:
    fields = [StructField("id", LongType(), nullable=False), StructField("tag", StringType(), nullable=False)]
    schema = StructType(fields)
    topic = filled(ENCODERS[body_format]({"id": 7}))
    for _ in range(2):
        frame = read_queue(
            spark, topic, nameservers=orders.nameservers, columns=[], schema=schema, format=body_format
        )
        assert [tuple(row) for row in frame.filter("tag IS NULL").collect()] == [(7, None)]
    assert schema == StructType(fields)
    assert len(schema.fields) == 2


def test_msgpack_types_are_converted_to_spark_types(
    spark: SparkSession, orders: Orders, filled: Callable[..., str]
) -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    topic = filled(
        msgspec.msgpack.encode({"at": time, "data": b"\x00\xff", "ok": True, "attributes": {"a": 1}})
    )
    frame = read_queue(
        spark,
        topic,
        nameservers=orders.nameservers,
        columns=[],
        schema="at TIMESTAMP, data BINARY, ok BOOLEAN, attributes MAP<STRING, INT>",
        format="msgpack",
        mode="FAILFAST",
    )
    row = frame.selectExpr("unix_micros(at)", "data", "ok", "attributes").first()
    assert tuple(row) == (int(time.timestamp() * 1e6), bytearray(b"\x00\xff"), True, {"a": 1})


def test_stream_decodes_bodies_and_a_group_read_is_committed(
    spark: SparkSession, orders: Orders, filled: Callable[..., str], tmp_path: Path
) -> None:
    topic = filled(ENCODERS["msgpack"](ORDER), b"{")
    checkpoint = str(tmp_path / "checkpoint")
    given = {**options("msgpack"), "columns": ["topic"], "nameservers": orders.nameservers}
    stream = read_stream(
        spark,
        topic,
        checkpointLocation=checkpoint,
        startingOffsets="earliest",
        mode="DROPMALFORMED",
        **given,
    )
    writer = stream.writeStream.format("parquet").option("path", f"{checkpoint}-output")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(int(LIMIT_S))
    assert query.exception() is None
    rows = spark.read.parquet(f"{checkpoint}-output").collect()
    assert [(row["topic"], row["name"]) for row in rows] == [(topic, "späte")]
    with Admin(orders.nameservers) as admin:
        admin.put_group(SubscriptionGroupConfig("typed-group"))
    frame = read_queue(spark, topic, startingOffsets="group:typed-group", **given)
    assert set(commit_read(frame).values()) == {2}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"format": "json"}, "format: give also schema="),
        ({"schema": "id INT"}, "format=None is unknown: give one of json, msgpack, avro"),
        ({"schema": "id INT", "format": "xml"}, "format='xml'"),
        ({"schema": "id INT", "format": "json", "mode": "LENIENT"}, "mode='LENIENT' is unknown"),
        ({"schema": "id NUMBER", "format": "json"}, "schema='id NUMBER' is neither a StructType nor DDL"),
        ({"schema": 7, "format": "json"}, "schema=7 is neither"),
        ({"schema": "tags STRING", "format": "json"}, "schema has the fields tags, which are also columns"),
        ({"schema": "id INT, _corrupt_record INT", "format": "json"}, "must have the type STRING"),
        ({"schema": "id INT", "format": "json", "avroSchema": "{}"}, "give format='avro'"),
        ({"schema": "id INT", "format": "avro"}, "needs avroSchema"),
        ({"schema": "id INT", "format": "avro", "avroSchema": "{"}, "is not an Avro schema as JSON"),
        ({"schema": "id INT", "format": "avro", "avroSchema": '"long"'}, "is not a record"),
        ({"schema": "id INT", "format": "avro", "avroSchema": '"nothing"'}, "is not an Avro schema"),
    ],
)
def test_invalid_schema_options_are_refused_before_a_job(
    spark: SparkSession, orders: Orders, given: dict[str, Any], fault: str
) -> None:
    with pytest.raises(OptionInvalid, match=fault):
        read_queue(spark, "orders", nameservers=orders.nameservers, **given)


def test_missing_fastavro_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(OptionInvalid, match="run `pip install fastavro`"):
        avro_decoder(AVRO_SCHEMA)
