"""Runs of several queues in one request body: the codec, and its errors for invalid bodies."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.runs import (
    RUNS_MAX,
    Runs,
    decode_offsets,
    decode_runs,
    encode_heads,
    encode_offsets,
)
from store.store_errors import MessageInvalid

heads_of_a_body = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 9), st.integers(1, 40)),
    min_size=1,
    max_size=20,
    unique_by=lambda head: head[0],
).map(sorted)


def heads(*rows: tuple[int, int, int]) -> bytes:
    """Return an encoded body without records; each row is the queue id, messages and size of one run."""
    queue_ids, messages, sizes = zip(*rows, strict=True)
    return encode_heads(Runs(queue_ids, messages, sizes, memoryview(b"")))


@given(heads_of_a_body)
def test_decoded_runs_equal_the_encoded_runs(rows: list[tuple[int, int, int]]) -> None:
    records = bytes(index % 251 for index in range(sum(size_bytes for _, _, size_bytes in rows)))
    decoded = decode_runs(heads(*rows) + records)
    assert list(zip(decoded.queue_ids, decoded.messages, decoded.sizes, strict=True)) == rows
    assert bytes(decoded.records) == records


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_decoded_offsets_equal_the_encoded_offsets(offsets: list[int]) -> None:
    assert decode_offsets(encode_offsets(offsets), len(offsets)) == tuple(offsets)
    with pytest.raises(ValueError, match=f"the offsets of {len(offsets) + 1} runs take"):
        decode_offsets(encode_offsets(offsets), len(offsets) + 1)


def test_encoded_body_has_the_documented_layout() -> None:
    body = heads((3, 1, 2), (70_000, 2, 1))
    assert body.hex() == "00000002" + "000000030000000100000002" + "000111700000000200000001"
    assert encode_offsets([1, 1 << 40]).hex() == "0000000000000001" + "0000010000000000"


TWO = (0, 1, 2), (1, 1, 3)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "body of 0 bytes is too short"),
        (b"\0\0\0", "body of 3 bytes is too short"),
        (pack(">i", 0), "body of 0 runs: send 1 to 1,024"),
        (pack(">i", -1), "body of -1 runs"),
        (pack(">i", RUNS_MAX + 1), "body of 1025 runs"),
        (heads(*TWO)[:-1], "the headers of 2 runs take 28 bytes, but the body has 27"),
        (heads(*TWO) + bytes(4), "add up to 5 bytes, but the body has 4 bytes of records"),
        (heads(*TWO) + bytes(6), "add up to 5 bytes, but the body has 6 bytes of records"),
        (heads(TWO[1], TWO[0]) + bytes(5), "run 1 has queue id 0, which is not above 1"),
        (heads(TWO[1], TWO[1]) + bytes(6), "run 1 has queue id 1, which is not above 1"),
        (heads((-1, 1, 5)) + bytes(5), "run 0 has queue id -1, which is not above -1"),
        (heads((4, 0, 5)) + bytes(5), "run 0 of queue 4 has 0 messages and 5 bytes"),
        (heads(TWO[0], (4, 1, 0)) + bytes(2), "run 1 of queue 4 has 1 messages and 0 bytes"),
        (heads((0, 1, -5), (1, 1, 5)), "has 1 messages and -5 bytes"),
    ],
)
def test_invalid_body_is_refused_with_the_cause(body: bytes, remark: str) -> None:
    with pytest.raises(MessageInvalid, match=remark):
        decode_runs(body)


@given(st.binary(max_size=60))
def test_decode_runs_of_any_bytes_succeeds_or_raises_message_invalid(body: bytes) -> None:
    try:
        decoded = decode_runs(body)
    except MessageInvalid:
        return
    assert encode_heads(decoded) + bytes(decoded.records) == body
