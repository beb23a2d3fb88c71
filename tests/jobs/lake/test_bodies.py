"""Bodies as columns of a table: the schema's text, decoding, and what cannot be decoded."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from cluster.client import Admin, Producer
from jobs.job_errors import OptionInvalid
from jobs.lake.bodies import LakeBodies, bodies_of
from jobs.lake.catalogs import ERRORS_SUFFIX
from jobs.lake.history import plan_lake_read
from jobs.lake.lake_table import LakeTable
from jobs.lake.round import write_round
from jobs.reading.describe import describe_topic
from jobs.reading.options.lake_options import LakeOptions
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from tests.jobs.conftest import Orders
from tests.jobs.lake.lake_files import catalog_of, rows_of
from tests.jobs.spark.bodies.body_formats import AVRO_SCHEMA, ENCODERS, MALFORMED, ORDER

SCHEMA = "id BIGINT, name STRING, price DOUBLE, lines ARRAY<STRUCT<item: STRING, count INT>>"


def test_schema_text_has_sparks_types() -> None:
    text = "`a b` int, m MAP<STRING, DOUBLE>, d DECIMAL(12,2), e decimal, t TIMESTAMP, s struct<x: date, "
    text += "y: array<binary>>"
    assert LakeBodies(text).fields == pa.schema(
        [
            ("a b", pa.int32()),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("d", pa.decimal128(12, 2)),
            ("e", pa.decimal128(10, 0)),
            ("t", pa.timestamp("us", tz="UTC")),
            ("s", pa.struct([("x", pa.date32()), ("y", pa.list_(pa.binary()))])),
        ]
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expected the name of a column"),
        ("id", "Expected one of the types boolean, .*, struct, found end of text"),
        ("id NUMBER", "Expected one of the types .*, found 'NUMBER'"),
        ("id BIGINT name", "Expected end of text, found 'name'"),
        ("id BIGINT,", "Expected end of text, found ','"),
        ("id ARRAY<INT", "Expected '>', found end of text"),
        ("id DECIMAL(50, 2)", "needs 1 to 38 digits"),
        ("id DECIMAL(0, 0)", "needs 1 to 38 digits"),
        ("id DECIMAL(5", "Expected ',', found end of text"),
        ("s STRUCT<a INT, A INT>", "a column is there twice"),
        ("id INT, ID STRING", "a column is there twice"),
        ("id INT; DROP", "Expected end of text, found ';'"),
        ("id INT, Offset BIGINT", "has a column offset already"),
    ],
)
def test_schema_text_that_is_invalid_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionInvalid, match=reason):
        LakeBodies(text)


def test_format_without_its_schema_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="needs avroSchema"):
        LakeBodies("id BIGINT", "avro")
    with pytest.raises(OptionInvalid, match="format='xml' is unknown"):
        LakeBodies("id BIGINT", "xml")
    for only_format in (("avro", ""), ("json", AVRO_SCHEMA)):
        with pytest.raises(OptionInvalid, match="no schema: give the columns"):
            bodies_of(None, *only_format)


@pytest.mark.parametrize("body_format", ["json", "msgpack", "avro"])
def test_bodies_become_columns_and_the_rest_goes_to_the_errors(
    orders: Orders, tmp_path: Path, body_format: str
) -> None:
    topic = f"typed-{body_format}"
    catalog = catalog_of(tmp_path)
    bodies = LakeBodies(SCHEMA, body_format, AVRO_SCHEMA if body_format == "avro" else "")
    table = LakeTable.create(catalog, "raymq", topic, bodies=bodies)
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic(topic, queues=1)
        for _ in range(2):
            producer.send(topic, ENCODERS[body_format](ORDER))
            producer.send(topic, MALFORMED[body_format][0])
            # another writer knows the schema from the table
            result = write_round(
                LakeTable.create(catalog, "raymq", topic), lambda: describe_topic(orders.nameservers, topic)
            )
            assert (result.rows, result.errors) == (1, 1)
    table.refresh()
    rows = table.iceberg.scan().to_arrow().to_pylist()
    assert [{name: row[name] for name in ORDER} for row in rows] == [ORDER, ORDER]
    assert "body" not in rows[0]
    errors = LakeTable.find(catalog, "raymq", topic, ERRORS_SUFFIX)
    assert errors is not None
    failed = errors.iceberg.scan().to_arrow().to_pylist()
    assert [row["body"] for row in failed] == [MALFORMED[body_format][0]] * 2
    assert all(row["reason"] for row in failed)
    lake = LakeOptions(False, str(tmp_path / "lake"))
    plan = plan_lake_read(ReadOptions(TopicNames((topic,)), columns=("queueOffset",), lake=lake))
    assert rows_of(plan).num_rows == 4
    places = [(row["broker"], row["queue"], row["offset"]) for row in (*rows, *failed)]
    assert len(set(places)) == 4


def test_json_texts_become_times_and_decimals(orders: Orders, tmp_path: Path) -> None:
    topic = "typed-times"
    table = LakeTable.create(
        catalog_of(tmp_path), "raymq", topic, bodies=LakeBodies("at TIMESTAMP, on DATE, price DECIMAL(8,2)")
    )
    given = {"at": "2026-11-29T05:00:00Z", "on": "2026-11-29", "price": "12.50"}
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic(topic, queues=1)
        producer.send(topic, json.dumps(given).encode())
        producer.send(topic, json.dumps({**given, "at": "yesterday"}).encode())
    result = write_round(table, lambda: describe_topic(orders.nameservers, topic))
    assert (result.rows, result.errors) == (1, 1)
    [row] = table.iceberg.scan().to_arrow().to_pylist()
    assert (row["at"].isoformat(), str(row["on"]), str(row["price"])) == (
        "2026-11-29T05:00:00+00:00",
        "2026-11-29",
        "12.50",
    )
