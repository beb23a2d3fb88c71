"""Trace records against those that RocketMQ's Java clients wrote (`tests/fixtures/traces`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.client.trace.trace_records import (
    ConsumeCode,
    MessageType,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_trace,
)

FIXTURES = Path(__file__).parents[3] / "fixtures" / "traces"
VERSIONS = ["4.9.8", "5.3.3", "5.5.0"]


def messages(version: str) -> list[dict[str, str]]:
    """Return the messages of the trace topic that a Java client of this version has written."""
    found: list[dict[str, str]] = json.loads((FIXTURES / f"rocketmq-{version}.json").read_text())
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_java_clients_are_decoded_and_encoded_again(version: str) -> None:
    records: list[TraceRecord] = []
    for message in messages(version):
        found = decode_trace(message["body"].encode())
        assert "".join(record.encode() for record in found) == message["body"]
        keys = {key for record in found for key in (record.msg_id, *(record.keys or "").split())}
        assert keys == set(message["keys"].split())
        records += found
    kinds = [type(record) for record in records]
    assert (kinds.count(Pub), kinds.count(SubBefore), kinds.count(SubAfter)) == (2, 3, 3)


def test_fields_of_java_records_have_their_values() -> None:
    records = [record for each in messages("5.3.3") for record in decode_trace(each["body"].encode())]
    with_keys, without = sorted((r for r in records if isinstance(r, Pub)), key=lambda r: r.time_ms)
    assert (with_keys.topic, with_keys.group, with_keys.region_id) == ("T5_3_3", "P5", "DefaultRegion")
    assert (with_keys.tags, with_keys.keys, with_keys.body_bytes) == ("fruit", "order-1 order-2", 9)
    assert (with_keys.message_type, with_keys.is_success) == (MessageType.NORMAL, True)
    assert with_keys.store_host.startswith("127.0.0.1:")
    assert (without.tags, without.keys) == (None, None)
    of_retried = [r for r in records if r.msg_id == without.msg_id and not isinstance(r, Pub)]
    before = [r.retries for r in of_retried if isinstance(r, SubBefore)]
    after = [(r.is_success, r.code, r.group) for r in of_retried if isinstance(r, SubAfter)]
    assert sorted(before) == [0, 1]
    assert sorted(after) == [(False, ConsumeCode.FAILED, "C5"), (True, ConsumeCode.SUCCESS, "C5")]


def test_records_of_older_clients_have_fewer_fields() -> None:
    pub = "Pub|7|region|group|topic|id|tag|key|1.2.3.4:5|10|3|0"
    after = "SubAfter|call|id|3|true|key"
    text = f"{pub}|true^{pub}|offset id|false|client^{after}^{after}|2^{after}|2|99^"
    found = decode_trace(text.replace("|", "\x01").replace("^", "\x02").encode())
    assert [(r.offset_msg_id, r.is_success) for r in found if isinstance(r, Pub)] == [
        ("", True),
        ("offset id", False),
    ]
    assert [(r.code, r.time_ms, r.group) for r in found if isinstance(r, SubAfter)] == [
        (ConsumeCode.SUCCESS, 0, ""),
        (ConsumeCode.EXCEPTION, 0, ""),
        (ConsumeCode.EXCEPTION, 99, ""),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\x01\x02",
        b"Pub\x01",
        b"Pub\x01x\x01r\x01g\x01t\x01i\x01\x01\x01h\x011\x011\x010\x01o\x01true\x02",
        b"SubAfter\x01c\x01i\x013\x01true\x01k\x0177\x02",
        b"EndTransaction\x017\x02",
        b"SubBefore\x01" * 1_000,
    ],
)
def test_malformed_records_are_left_out(body: bytes) -> None:
    valid = SubBefore(1, "r", "g", "call", "id", 0, None)
    assert decode_trace(body + b"\x02" + valid.encode().encode()) == [valid]
