"""Splitting the records of one queue into batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.kernels.batches import split_into_batches
from store.message.record import RecordDraft, decode_records, encode_record
from tests.store.kernels.plain_records import split_into_batches_plain


def records(body_sizes: list[int]) -> bytearray:
    drafts = [RecordDraft("T", 7, bytes(size)) for size in body_sizes]
    return bytearray(b"".join(encode_record(draft, n, 0, 0, bytes(8)) for n, draft in enumerate(drafts)))


@given(st.lists(st.integers(0, 300), max_size=20), st.integers(0, 9), st.integers(1, 1500))
def test_split_equals_plain_python_and_keeps_all_records(
    sizes: list[int], queue_id: int, max_bytes: int
) -> None:
    compiled, plain = records(sizes), records(sizes)
    pieces = split_into_batches(memoryview(compiled), len(sizes), queue_id, max_bytes)
    assert pieces == split_into_batches_plain(memoryview(plain), len(sizes), queue_id, max_bytes)
    assert b"".join(piece.records for piece in pieces) == compiled == plain
    for piece in pieces:
        messages = decode_records(piece.records)
        assert len(messages) == piece.rows
        assert piece.rows == 1 or len(piece.records) <= max_bytes
        assert {message.queue_id for message in messages} == {queue_id}
