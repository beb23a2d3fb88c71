"""One queue's records, cut for the wire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.kernels.batches import number_and_cut, number_and_cut_plain
from store.message.record import RecordDraft, decode_records, encode_record


def records(body_sizes: list[int]) -> bytearray:
    drafts = [RecordDraft("T", 7, bytes(size)) for size in body_sizes]
    return bytearray(b"".join(encode_record(draft, n, 0, 0, bytes(8)) for n, draft in enumerate(drafts)))


@given(st.lists(st.integers(0, 300), max_size=20), st.integers(0, 9), st.integers(1, 1500))
def test_kernel_and_twin_agree_and_nothing_is_lost(sizes: list[int], queue_id: int, max_bytes: int) -> None:
    ours, plain = records(sizes), records(sizes)
    pieces = number_and_cut(memoryview(ours), len(sizes), queue_id, max_bytes)
    assert pieces == number_and_cut_plain(memoryview(plain), len(sizes), queue_id, max_bytes)
    assert b"".join(piece.records for piece in pieces) == ours == plain
    for piece in pieces:
        messages = decode_records(piece.records)
        assert len(messages) == piece.rows
        assert piece.rows == 1 or len(piece.records) <= max_bytes
        assert {message.queue_id for message in messages} == {queue_id}
