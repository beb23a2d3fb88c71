"""ChunkReader: reads messages and Arrow rows from fetched records, in any sequence of sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.client.consumer.chunk_reader import ChunkReader
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.errors import DataDamaged
from store.message.compression import compress
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, encode_record

FETCHER = cast("Fetcher", SimpleNamespace(queue=MessageQueue("T", "a", 0)))
FIRST = 100


def record(number: int, body: bytes | None = None, sys_flag: int = 0) -> bytes:
    tags = "AB"[number % 2]
    draft = RecordDraft(
        "T", 0, body or f"{number}".encode(), f"TAGS\x01{tags}\x02".encode(), sys_flag=sys_flag
    )
    return bytes(encode_record(draft, FIRST + number, number, 1, bytes(8)))


def chunk(records: bytes, count: int) -> Chunk:
    return Chunk(FETCHER, FIRST, FIRST + count, count, records)


@given(st.integers(1, 30), st.lists(st.tuples(st.booleans(), st.integers(1, 7)), min_size=30, max_size=30))
def test_alternating_reads_return_each_message_once_in_order(
    count: int, takes: list[tuple[bool, int]]
) -> None:
    reader = ChunkReader(chunk(b"".join(map(record, range(count))), count), None)
    numbers: list[int] = []
    for as_rows, size in takes:
        if reader.is_exhausted:
            break
        assert reader.next_offset == FIRST + len(numbers)
        if as_rows:
            numbers += [int(body) for body in reader.take_rows(size, ["body"]).column("body").to_pylist()]
        else:
            numbers += [int(message.body) for message in reader.take_messages(size)]
    assert numbers == list(range(count))
    assert reader.next_offset == FIRST + count


def test_messages_with_unwanted_tags_are_skipped() -> None:
    records = b"".join(map(record, range(10)))
    reader = ChunkReader(chunk(records, 10), frozenset("B"))
    assert [int(message.body) for message in reader.take_messages(3)] == [1, 3, 5]
    assert reader.next_offset == FIRST + 6
    rows = reader.take_rows(10, None)
    assert rows.column("body").to_pylist() == [b"7", b"9"]
    assert reader.is_exhausted
    assert reader.next_offset == FIRST + 10


def test_compressed_bodies_are_decompressed() -> None:
    body, flag = compress(b"long " * 1000)
    reader = ChunkReader(chunk(record(0, body, flag), 1), None)
    assert reader.take_messages(1)[0].body == b"long " * 1000


def test_damaged_record_raises_after_messages_before_it() -> None:
    damaged = bytearray(record(2))
    damaged[88] ^= 0xFF  # damages the body, which the CRC covers
    reader = ChunkReader(chunk(record(0) + record(1) + bytes(damaged) + record(3), 4), None)
    assert [int(message.body) for message in reader.take_messages(10)] == [0, 1]
    with pytest.raises(DataDamaged, match=r"queueId=0\] at or after offset 102: "):
        reader.take_messages(10)
    with pytest.raises(DataDamaged):
        reader.take_rows(10, None)


def test_take_is_bounded_by_decompressed_bytes() -> None:
    body, flag = compress(bytes(40 << 20))
    reader = ChunkReader(chunk(b"".join(record(number, body, flag) for number in range(5)), 5), None)
    assert [len(reader.take_messages(10)) for _ in range(3)] == [2, 2, 1]
    assert reader.is_exhausted


def test_chunk_without_records_moves_next_offset() -> None:
    reader = ChunkReader(Chunk(FETCHER, FIRST, FIRST + 50, 0, b""), None)
    assert reader.take_messages(5) == []
    assert reader.is_exhausted
    assert reader.next_offset == FIRST + 50
