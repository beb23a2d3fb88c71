"""Runs of several queues in one body: the codec, and what is said of a bad one."""

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
    """What stands before records: queue id, messages and size of each run."""
    queue_ids, messages, sizes = zip(*rows, strict=True)
    return encode_heads(Runs(queue_ids, messages, sizes, memoryview(b"")))


@given(heads_of_a_body)
def test_runs_come_back_as_they_were(rows: list[tuple[int, int, int]]) -> None:
    records = bytes(index % 251 for index in range(sum(size_bytes for _, _, size_bytes in rows)))
    decoded = decode_runs(heads(*rows) + records)
    assert list(zip(decoded.queue_ids, decoded.messages, decoded.sizes, strict=True)) == rows
    assert bytes(decoded.records) == records


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_offsets_come_back_as_they_were(offsets: list[int]) -> None:
    assert decode_offsets(encode_offsets(offsets), len(offsets)) == tuple(offsets)
    with pytest.raises(ValueError, match=f"in place of the offsets of {len(offsets) + 1} runs"):
        decode_offsets(encode_offsets(offsets), len(offsets) + 1)


def test_a_body_is_what_the_picture_says() -> None:
    body = heads((3, 1, 2), (70_000, 2, 1))
    assert body.hex() == "00000002" + "000000030000000100000002" + "000111700000000200000001"
    assert encode_offsets([1, 1 << 40]).hex() == "0000000000000001" + "0000010000000000"


TWO = (0, 1, 2), (1, 1, 3)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "a body of 0 bytes has no count"),
        (b"\0\0\0", "a body of 3 bytes has no count"),
        (pack(">i", 0), "a body of 0 runs: send 1 to 1,024"),
        (pack(">i", -1), "a body of -1 runs"),
        (pack(">i", RUNS_MAX + 1), "a body of 1025 runs"),
        (heads(*TWO)[:-1], "the heads of 2 runs take 28 bytes, the body has 27"),
        (heads(*TWO) + bytes(4), "have 5 bytes of records, the body 4"),
        (heads(*TWO) + bytes(6), "have 5 bytes of records, the body 6"),
        (heads(TWO[1], TWO[0]) + bytes(5), "run 1 is of queue 0, that before it of 1"),
        (heads(TWO[1], TWO[1]) + bytes(6), "run 1 is of queue 1, that before it of 1"),
        (heads((-1, 1, 5)) + bytes(5), "run 0 is of queue -1"),
        (heads((4, 0, 5)) + bytes(5), "run 0, of queue 4, has 0 messages in 5 bytes"),
        (heads(TWO[0], (4, 1, 0)) + bytes(2), "run 1, of queue 4, has 1 messages in 0 bytes"),
        (heads((0, 1, -5), (1, 1, 5)), "has 1 messages in -5 bytes"),
    ],
)
def test_a_bad_body_is_refused_by_what_is_wrong(body: bytes, remark: str) -> None:
    with pytest.raises(MessageInvalid, match=remark):
        decode_runs(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_runs_or_refused(body: bytes) -> None:
    try:
        decoded = decode_runs(body)
    except MessageInvalid:
        return
    assert encode_heads(decoded) + bytes(decoded.records) == body
