"""Decoding MessagePack and Avro bodies to Arrow columns, without Spark."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest

from jobs.job_errors import BodyInvalid
from jobs.reading.bodies.body_decoder import BodyDecoder
from tests.jobs.spark.bodies.body_formats import AVRO_SCHEMA, ENCODERS, MALFORMED, ORDER

FIELDS = [
    ("id", pa.int64()),
    ("name", pa.string()),
    ("price", pa.float64()),
    ("lines", pa.list_(pa.struct([("item", pa.string()), ("count", pa.int32())]))),
]
CORRUPT = ("_corrupt_record", pa.string())
FORMATS = ["msgpack", "avro"]


def batch(bodies: Sequence[bytes], error: str | None = None) -> pa.RecordBatch:
    count = len(bodies)
    columns = {
        "topic": ["orders"] * count,
        "brokerName": ["broker-a"] * count,
        "queueId": [3] * count,
        "queueOffset": list(range(40, 40 + count)),
        "body": pa.array(bodies, pa.binary()),
        "bodyError": pa.array([error] * count, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def decoder(body_format: str, mode: str, *, with_corrupt: bool = False) -> BodyDecoder:
    fields = pa.schema([*FIELDS, CORRUPT] if with_corrupt else FIELDS)
    avro_schema = AVRO_SCHEMA if body_format == "avro" else ""
    corrupt = CORRUPT[0] if with_corrupt else None
    return BodyDecoder(["queueOffset"], fields, body_format, avro_schema, mode, corrupt)


@pytest.mark.parametrize("body_format", FORMATS)
def test_valid_bodies_become_columns_in_every_mode(body_format: str) -> None:
    bodies = batch([ENCODERS[body_format](ORDER)] * 2)
    for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
        decoded = decoder(body_format, mode).decode(bodies)
        assert decoded.to_pylist() == [{"queueOffset": offset, **ORDER} for offset in (40, 41)]
        assert decoded.schema.field("lines").type == FIELDS[3][1]


@pytest.mark.parametrize("body_format", FORMATS)
def test_modes_keep_drop_or_refuse_malformed_bodies(body_format: str) -> None:
    good, bad = ENCODERS[body_format](ORDER), MALFORMED[body_format]
    bodies = batch([good, *bad, good])
    decoded = decoder(body_format, "PERMISSIVE", with_corrupt=True).decode(bodies)
    assert decoded.column("id").to_pylist() == [ORDER["id"], *[None] * len(bad), ORDER["id"]]
    texts = decoded.column("_corrupt_record").to_pylist()
    assert [text and base64.b64decode(text) for text in texts] == [None, *bad, None]
    dropped = decoder(body_format, "DROPMALFORMED").decode(bodies)
    assert dropped.column("queueOffset").to_pylist() == [40, 40 + len(bad) + 1]
    with pytest.raises(BodyInvalid, match=f"orders/broker-a/3 offset 41: the body is not {body_format} with"):
        decoder(body_format, "FAILFAST").decode(bodies)


def test_only_the_field_that_does_not_fit_is_null() -> None:
    bodies = [msgspec.msgpack.encode(each) for each in ({**ORDER, "id": "x"}, {**ORDER, "id": True}, ORDER)]
    decoded = decoder("msgpack", "PERMISSIVE").decode(batch(bodies))
    assert decoded.column("id").to_pylist() == [None, None, ORDER["id"]]
    assert decoded.column("name").to_pylist() == [ORDER["name"]] * 3
    with pytest.raises(BodyInvalid, match=r"field id is no int64: .*begins with b.*Correct the schema"):
        decoder("msgpack", "FAILFAST").decode(batch(bodies))


def test_missing_fields_are_null_and_unknown_fields_are_ignored() -> None:
    body = msgspec.msgpack.encode({"id": 1, "unknown": {"a": []}})
    decoded = decoder("msgpack", "FAILFAST").decode(batch([body]))
    assert decoded.to_pylist() == [{"queueOffset": 40, "id": 1, "name": None, "price": None, "lines": None}]


def test_body_that_cannot_be_decompressed_is_malformed() -> None:
    bad = batch([msgspec.msgpack.encode(ORDER)], "body of 9 bytes cannot be decompressed")
    with pytest.raises(BodyInvalid, match="body of 9 bytes cannot be decompressed"):
        decoder("msgpack", "FAILFAST").decode(bad)
    assert decoder("msgpack", "DROPMALFORMED").decode(bad).num_rows == 0
    kept = decoder("msgpack", "PERMISSIVE", with_corrupt=True).decode(bad)
    assert kept.column("id").to_pylist() == [None]
    assert base64.b64decode(kept.column("_corrupt_record")[0].as_py()) == msgspec.msgpack.encode(ORDER)


def test_empty_batch_has_the_typed_columns() -> None:
    decoded = decoder("msgpack", "DROPMALFORMED", with_corrupt=True).decode(batch([]))
    assert decoded.schema.names == ["queueOffset", "id", "name", "price", "lines", "_corrupt_record"]
    assert decoded.num_rows == 0
