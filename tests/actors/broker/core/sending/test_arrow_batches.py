"""Arrow IPC streams of untrusted callers: valid ones become batches, all others are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.broker.core.sending.arrow_batches import BATCHES_MAX, PROPERTIES_MAX, ROWS_MAX, batch_of_arrow
from actors.wire.codes import ResponseCode
from actors.wire.command import MAX_FRAME_BYTES
from actors.wire.remoting_errors import Refused
from tests.store.kernels.plain_batch import decode_batch

MAP = pa.map_(pa.string(), pa.string())
TABLE = pa.table(
    {
        "body": [b"first", b"second " * 40, b""],
        "tags": ["x", None, "y"],
        "keys": pa.array(["a", "b", None], pa.large_string()),
        "properties": pa.array([[("p", "1"), ("q", "2")], None, []], type=MAP),
    }
)
OFFSET_BYTES = 4


def stream_of(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def stream_of_table(table: pa.Table, compression: str | None = None) -> bytes:
    return stream_of(*table.to_batches(), compression=compression)


def converted(stream: bytes) -> bytes:
    return batch_of_arrow("T", stream, lambda: "ID")


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_valid_stream_is_converted(compression: str | None) -> None:
    elements = decode_batch(converted(stream_of_table(TABLE, compression)))
    assert [each.body for each in elements] == TABLE["body"].to_pylist()
    assert b"p\x011\x02" in elements[0].properties
    assert b"TAGS\x01x\x02" in elements[0].properties


def with_offsets(*offsets: int) -> bytes:
    """Return a stream of one row with these offsets; pyarrow itself refuses to write it."""
    valid, wanted = (
        b"".join(each.to_bytes(OFFSET_BYTES, "little", signed=True) for each in pair)
        for pair in ((0, 4), offsets)
    )
    stream = stream_of(pa.record_batch({"body": [b"text"]}))
    before, after = stream.rsplit(valid, 1)
    return before + wanted + after


@pytest.mark.parametrize("offsets", [(0, 1 << 30), (1 << 30, 1 << 30), (3, 1), (-5, 2), (0, -1)])
def test_offsets_outside_the_buffer_are_refused(offsets: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="not a valid Arrow IPC stream"):
        converted(with_offsets(*offsets))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_stream_that_inflates_too_much_is_refused_before_it_is_inflated(compression: str) -> None:
    size = MAX_FRAME_BYTES + 1
    stream = stream_of(pa.record_batch({"body": [bytes(size)]}), compression=compression)
    before = pa.total_allocated_bytes()
    assert len(stream) < size / 100
    with pytest.raises(Refused, match="inflates to more than 16,777,216 bytes"):
        converted(stream)
    assert pa.total_allocated_bytes() == before
    half = pa.record_batch({"body": [bytes(size // 2)]})
    with pytest.raises(Refused, match="inflates to more than"):
        converted(stream_of(half, half, half, compression=compression))


class Kind(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.binary(), "tests.kind")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Kind:
        raise AssertionError("the code of an extension type was called")


@pytest.mark.parametrize(
    ("columns", "remark"),
    [
        ({"body": pa.array([b"a"]).dictionary_encode()}, "dictionary"),
        ({"body": pa.array([b"a"], pa.binary_view())}, "column `body` is binary_view"),
        ({"body": [b"a"], "tags": pa.array(["a"], pa.string_view())}, "column `tags` is string_view"),
        ({"body": [[b"a"]]}, "column `body` is list"),
        ({"body": [b"a"], "properties": pa.array([[("a", [1])]], pa.map_(pa.string(), pa.list_(pa.int8())))},
         "column `properties` is map"),
        ({"body": [b"a"], "properties": [{"a": "1"}]}, "column `properties` is struct"),
        ({"body": pa.ExtensionArray.from_storage(Kind(), pa.array([b"a"]))}, "extension type"),
        ({"body": pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30], pa.int32()), pa.array([b"a"]))},
         "run_end_encoded"),
        ({"other" * 1_000: [b"a"]}, "`body` is required"),
    ],
)  # fmt: skip
def test_column_that_could_inflate_is_refused(columns: dict[str, pa.Array], remark: str) -> None:
    with pytest.raises(Refused, match=remark) as caught:
        converted(stream_of_table(pa.table(columns).slice(0, 1)))
    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert len(caught.value.remark) < 500


def many_nulls() -> bytes:
    """Return a stream of 2^40 rows without any value."""
    few, many = ((7).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"))
    return stream_of(pa.record_batch({"body": pa.nulls(7)})).replace(few, many)


def twice() -> bytes:
    return stream_of(pa.RecordBatch.from_arrays([pa.array([b"a"])] * 2, names=["body", "body"]))


@pytest.mark.parametrize(
    ("stream", "remark"),
    [
        (lambda: stream_of(pa.record_batch({"body": [b""] * (ROWS_MAX + 1)})), "at most 100,000"),
        (many_nulls, "at most 100,000"),
        (lambda: stream_of(*[pa.record_batch({"body": [b"a"]})] * (BATCHES_MAX + 1)), "more than 1,000"),
        (
            lambda: stream_of(
                pa.record_batch(
                    {
                        "body": [b"a"],
                        "properties": pa.array([[(f"{n}", "") for n in range(PROPERTIES_MAX + 1)]], MAP),
                    }
                )
            ),
            "send at most 8,192",
        ),
        (lambda: b"", "does not begin with a schema"),
        (lambda: stream_of_table(TABLE)[-8:], "does not begin with a schema"),
        (twice, "`body` is required"),
    ],
)
def test_stream_over_a_limit_is_refused(stream: Callable[[], bytes], remark: str) -> None:
    with pytest.raises(Refused, match=remark):
        converted(stream())


STREAMS = [stream_of_table(TABLE), stream_of_table(TABLE, "zstd"), stream_of_table(TABLE, "lz4")]


EXTREMES = [b"\xff" * 4, b"\xff" * 8, b"\x7f" + bytes(7), bytes(7) + b"\x7f", bytes(8)]


@given(st.data())
def test_damaged_stream_is_converted_or_refused(data: st.DataObject) -> None:
    """pyarrow would end the process if it read what some of these streams say."""
    stream = bytearray(data.draw(st.sampled_from(STREAMS)))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(stream) - 1))
        value = data.draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 4, b"\x7f" + bytes(7)])
        )
        stream[position : position + len(value)] = value
    with suppress(Refused):
        decode_batch(converted(bytes(stream)))
