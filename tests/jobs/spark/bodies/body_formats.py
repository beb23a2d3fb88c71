"""Encoders and malformed bodies for the tests of typed columns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec

AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "price", "type": "double"},
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Line",
                        "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "int"}],
                    },
                },
            },
        ],
    }
)
ORDER = {"id": 1 << 40, "name": "späte", "price": 1.5, "lines": [{"item": "apple", "count": 3}]}


def avro(value: dict[str, object]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(AVRO_SCHEMA)), value)
    return stream.getvalue()


ENCODERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "json": lambda value: json.dumps(value).encode(),
    "msgpack": msgspec.msgpack.encode,
    "avro": avro,
}
MALFORMED = {
    "json": [b'{"id": ', b"\xff\xfe", b"7", b"null", b'{"id": "x", "name": "n"}'],
    "msgpack": [b"\x93\x01", b"\xc1", b"\x07", b"\xc0", msgspec.msgpack.encode({"id": "x", "name": "n"})],
    "avro": [b"\x02", b"\xff" * 12, avro(ORDER) + b"\x00", avro(ORDER)[:-2], b"\x00\x07"],
}
