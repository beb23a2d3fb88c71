"""Records as Arrow columns equal the records of the plain decoder, row by row."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.kernels.arrow import RECORD_SCHEMA, records_at_to_arrow, records_to_arrow, text_column
from store.message.compression import compress, decompress
from store.message.hosts import Host
from store.message.message import MessageExt
from store.message.record import RecordDraft, decode_record, decode_records, encode_record
from store.message.sys_flag import COMPRESSED
from store.store_errors import MessageInvalid, RecordDamaged

V4 = Host("10.0.0.1", 1234).packed
V6 = Host("fd00::2", 65535).packed

property_strings = st.one_of(
    st.lists(
        st.sampled_from(
            [b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"\x01", b"\x02", b"v", "ж".encode(), b"\xff"]
        )
    ).map(b"".join),
    st.binary(max_size=30),
)
drafts = st.builds(
    RecordDraft,
    topic=st.sampled_from(["T", "%RETRY%" + "g" * 140]),
    queue_id=st.integers(0, 9),
    body=st.binary(max_size=40),
    properties=property_strings,
    born_timestamp=st.integers(0, 1 << 50),
    born_host=st.sampled_from([V4, V6]),
    reconsume_times=st.integers(0, 16),
)


def as_row(message: MessageExt) -> dict[str, Any]:
    """Return the RECORD_SCHEMA row of a message."""
    return {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "body": decompress(message.body, message.sys_flag),
        "tags": message.tags,
        "keys": message.keys,
        "uniqKey": message.uniq_key,
        "properties": message.properties,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "reconsumeTimes": message.reconsume_times,
    }


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    return [{**row, "properties": dict(row["properties"])} for row in batch.to_pylist()]


@given(st.lists(drafts, max_size=6))
def test_arrow_rows_equal_decoded_records(records: list[RecordDraft]) -> None:
    data = b"".join(encode_record(draft, row, 100 + row, 7, V6) for row, draft in enumerate(records))

    batch = records_to_arrow(data, "broker-ä")

    assert batch.schema == RECORD_SCHEMA
    assert as_rows(batch) == [as_row(message) for message in decode_records(data, broker_name="broker-ä")]


@pytest.mark.extended  # loads numba in another process
def test_conversion_does_not_import_pandas() -> None:
    """The import takes a second and 40 MiB in each consumer, and Arrow does it at the first `pa.array`."""
    program = """
import sys
from store.kernels.arrow import records_to_arrow
records_to_arrow(bytes.fromhex(sys.argv[1]), "b").slice(0, 1).to_pylist()
print("pandas" in sys.modules)
"""
    data = encode_record(RecordDraft("T", 0, b"body", b"TAGS\x01a\x02"), 1, 2, 3, V4)
    done = subprocess.run(
        [sys.executable, "-c", program, data.hex()], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "False\n", done.stderr


def test_last_of_two_properties_with_the_same_name_wins() -> None:
    data = encode_record(
        RecordDraft("T", 0, b"", b"k\x01old\x02TAGS\x01old\x02k\x01new\x02TAGS\x01new\x02"), 0, 0, 0, V4
    )

    (row,) = records_to_arrow(data, "b").to_pylist()

    assert row["tags"] == "new"
    assert row["properties"] == [("k", "new"), ("TAGS", "new")]


def test_only_requested_columns_are_returned() -> None:
    data = encode_record(RecordDraft("T", 5, b"body"), 1, 2, 3, V4)

    batch = records_to_arrow(data, "b", ["queueOffset", "body"])

    assert batch.to_pydict() == {"queueOffset": [1], "body": [b"body"]}


def test_bodies_are_decompressed_or_returned_as_stored_with_the_reason() -> None:
    body, flags = compress(b"plain " * 100)
    drafts = [
        RecordDraft("T", 0, b"not compressed"),
        RecordDraft("T", 0, body, sys_flag=flags),
        RecordDraft("T", 0, b"broken", sys_flag=COMPRESSED),
    ]
    data = b"".join(encode_record(draft, 0, 0, 0, V4) for draft in drafts)

    batch = records_to_arrow(data, "b", ["body", "bodyError"])
    assert batch["body"].to_pylist() == [b"not compressed", b"plain " * 100, b"broken"]
    [*none, error] = batch["bodyError"].to_pylist()
    assert none == [None, None]
    assert "body of 6 bytes cannot be decompressed" in error


def test_damaged_record_is_reported_and_hides_no_valid_record() -> None:
    good = encode_record(RecordDraft("T", 0, b"good"), 0, 0, 0, V4)
    damaged = bytearray(good)
    damaged[88] ^= 1
    data = good + damaged + good
    positions = np.array([0, len(good), 2 * len(good), 2 * len(good) + 1, -1, 10**9], np.int64)

    with pytest.raises(RecordDamaged, match=f"CRC.*{len(good)}"):
        records_to_arrow(data, "b")
    batch, faults = records_at_to_arrow(data, positions, "b")

    assert batch["body"].to_pylist() == [b"good", b"good"]
    assert [fault.position for fault in faults] == [len(good), *positions[3:].tolist()]
    assert len(records_to_arrow(data, "b", check_crc=False)) == 3


def test_truncated_record_is_reported_as_damaged() -> None:
    good = encode_record(RecordDraft("T", 0, b"good"), 0, 0, 0, V4)

    with pytest.raises(RecordDamaged) as raised:
        records_to_arrow(good + good[:-1], "b")
    assert raised.value.position == len(good)


@pytest.mark.parametrize("ending", ["clean_store", "crashed_store"])
def test_arrow_rows_of_a_rocketmq_store(ending: str, request: pytest.FixtureRequest) -> None:
    unpack: Callable[[], Any] = request.getfixturevalue(ending)
    store = unpack()
    log = b"".join(path.read_bytes() for path in sorted((store.root / "commitlog").iterdir()))
    expected = [json.loads(line) for line in store.expected.read_text().splitlines()]
    positions = [unit["commitLogOffset"] for unit in expected]

    batch, faults = records_at_to_arrow(log, np.array(positions, np.int64), "broker-a")

    assert not faults
    assert as_rows(batch) == [
        as_row(decode_record(log, place, broker_name="broker-a")) for place in positions
    ]


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array(["a", None, "ж"]), [b"a", b"", "ж".encode()]),
        (pa.array(["a", "bb", "ccc", "d"])[1:3], [b"bb", b"ccc"]),
        (pa.array([b"\xff", None, b""], pa.large_binary()), [b"\xff", b"", b""]),
        (pa.chunked_array([["a"], [], ["b", None]]), [b"a", b"b", b""]),
        (pa.chunked_array([], pa.string()), []),
        (pa.array([1, -22]), [b"1", b"-22"]),
        (pa.array(["x", "y", "x"]).dictionary_encode(), [b"x", b"y", b"x"]),
    ],
)
def test_text_column_accepts_all_text_types(array: pa.Array, texts: list[bytes]) -> None:
    column = text_column(array)

    assert [column.row(row) for row in range(len(array))] == texts


def test_text_column_refuses_other_types() -> None:
    with pytest.raises(MessageInvalid, match="list<item: int64>"):
        text_column(pa.array([[1], [2]]))
