"""Fuzz targets for records, batches, rows and index files.

They compare kernels with their pure-Python equivalents, on memory between guard pages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from store.kernels import index as index_kernel
from store.kernels import properties, resync, units, walk
from store.kernels.columns_to_records import (
    RowBatch,
    TextColumn,
    encode_queues,
    plan_rows,
)
from store.kernels.encode import encode_batch_records
from store.kernels.records_to_columns import find_property_columns, find_records, gather, read_records
from store.kernels.stamp import Stamp, stamp_runs
from store.message.batch import encode_batch
from store.message.hosts import V4_BYTES, Host
from store.message.message import Message
from store.message.message_id import UniqKeyBlock
from store.message.record import (
    MAGIC_BLANK,
    RecordDraft,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
)
from store.message.runs import Runs, decode_runs, encode_heads
from store.store_errors import MessageInvalid, RecordDamaged
from tests.fuzz.fence import Bytes, Fence
from tests.store.kernels import plain_dispatch
from tests.store.kernels.plain_check import RecordVerdict, check_record
from tests.store.kernels.plain_records import encode_batch_records_plain, encode_rows_plain, stamp_runs_plain

V4 = Host("10.0.0.1", 1234).packed
V6 = Host("fd00::2", 65535).packed
FENCE = Fence()
BASE = 4096


def record(data: bytes) -> None:
    """Check that `decode_record` decodes or raises RecordDamaged, in agreement with `check_record`."""
    verdict = check_record(data).verdict
    try:
        message = decode_record(data)
    except RecordDamaged:
        assert verdict != RecordVerdict.RECORD
        return
    assert verdict == RecordVerdict.RECORD
    assert message.store_size <= len(data)


def batch(data: bytes) -> None:
    """Check that kernel and pure Python encode the same records from a batch, or both refuse it."""
    append_crc, common, data = data[:1] in b"\x01\x03", data[:1] in b"\x02\x03", data[1:]
    draft = RecordDraft("T", 1, b"", b"MSG_REGION\x01R\x02" if common else b"", born_host=V4)

    def records_of(encode: Callable[..., Any], place: Any) -> tuple[bytes, list[int]] | None:
        try:
            encoded = encode(place, draft, 7, BASE, 99, V4, append_crc=append_crc)
        except MessageInvalid:
            return None
        return bytes(encoded.records), encoded.positions.tolist()

    expected = records_of(encode_batch_records_plain, data)
    for placed in FENCE.placed(data):
        assert records_of(encode_batch_records, placed.data) == expected


def stamped(kernel: Callable[[Any, Stamp], object], data: Any, wanted: Stamp) -> bytes | None:
    """Return the stamped records, or None if they are refused."""
    try:
        kernel(data, wanted)
    except MessageInvalid:
        return None
    return bytes(data)


def runs(data: bytes, born_host: bytes = V4) -> None:
    """Check that runs are refused by the codec, or stamped equally by kernel and pure Python."""
    try:
        decoded = decode_runs(data)
    except MessageInvalid:
        return
    wanted = Stamp("T", BASE, 99, born_host, V4, 4096)
    offsets = [7 * number for number in range(len(decoded.queue_ids))]

    def stamped_by(kernel: Callable[..., None]) -> Callable[[Any, Stamp], object]:
        return lambda place, wanted: kernel(decoded._replace(records=memoryview(place)), wanted, offsets)

    expected = stamped(stamped_by(stamp_runs_plain), bytearray(decoded.records), wanted)
    for placed in FENCE.placed(bytes(decoded.records)):
        assert stamped(stamped_by(stamp_runs), placed.data, wanted) == expected


_HEAD = struct.Struct(">BBH")


def run_records(data: bytes) -> None:
    """Check runs as `runs` does, but with consistent headers, so that the check reaches the records.

    The input is the number of runs and (from 128) a born host with an IPv6 address, then for each run the
    increment of its queue id, its number of messages and its size, then the records.
    """
    count = data[0] % 8 + 1 if data else 1
    heads_end = 1 + count * _HEAD.size
    if len(data) <= heads_end:
        return
    made, queue_id, left = list[tuple[int, int, int]](), -1, len(data) - heads_end
    for increment, messages, size_bytes in _HEAD.iter_unpack(data[1:heads_end]):
        queue_id += increment + 1
        taken = left if len(made) == count - 1 else min(size_bytes, left)
        made.append((queue_id, messages, taken))
        left -= taken
    runs(with_heads(made, data[heads_end:]), V6 if data[0] >= 128 else V4)


def with_heads(heads: list[tuple[int, int, int]], records: bytes) -> bytes:
    """Return a body of runs; a header is queue id, number of messages and size."""
    queue_ids, messages, sizes = zip(*heads, strict=True)
    return encode_heads(Runs(queue_ids, messages, sizes, memoryview(records))) + records


def recovery(data: bytes) -> None:
    """Check that the kernels of recovery stop and resynchronize at the positions that pure Python finds."""
    size = len(data)
    found = np.zeros(walk.SCAN_FIELDS, np.int64)
    end, code = 0, 1
    while (code := plain_dispatch.plain_check_record_at(data, end, size, BASE, True)) > 0:
        end += code
    following = first_record(data)
    append_end = plain_dispatch.plain_append_end(data, 0, size, BASE)
    blank = plain_dispatch.plain_closing_blank(data, 0, size, size)
    bad = plain_dispatch.plain_next_bad_crc_property(data, 0, size)
    for placed in FENCE.placed(data):
        stopped, why = walk.scan_records(placed, 0, size, BASE, True, found)
        assert (stopped, min(why, 0)) == (end, code if code == walk.BLANK else min(why, -1))
        assert resync.next_record(placed, 0, size, size, BASE) == following
        assert resync.append_end(placed, 0, size, BASE) == append_end
        assert resync.closing_blank(placed, 0, size, size) == blank
        assert tuple(resync.next_bad_crc_property(placed, 0, size)) == bad


def first_record(data: bytes) -> int:
    """Return what `next_record` must find: the first position of a magic with a valid record."""
    at = 3
    while (at := data.find(b"\xda\xa3\x20", at + 1)) >= 0:
        if plain_dispatch.plain_check_record_at(data, at - 4, len(data), BASE, True) > 0:
            return at - 4
    return len(data)


class _Dispatch:
    """The work areas of the dispatch kernel."""

    def __init__(self) -> None:
        self.delays_ms = np.array([0, 1000, 5000], np.int64)
        self.rows = np.zeros((512, units.ROW_FIELDS), np.int64)
        self.groups = np.zeros((8, units.GROUP_FIELDS), np.int64)
        self.buckets = np.zeros(32, np.int32)
        self.units = np.zeros(512 * units.UNIT_BYTES, np.uint8)
        self.keys = np.zeros((20_000, index_kernel.KEY_FIELDS), np.int64)
        self.found = np.zeros(properties.FOUND_FIELDS, np.int64)

    def run(self, placed: Bytes, check_crc: bool) -> tuple[int, ...]:
        """Dispatch all records in `placed` once, and return the kernel's result."""
        return tuple(
            units.dispatch_records(
                placed, 0, len(placed), BASE, check_crc, self.delays_ms, self.rows, self.groups,
                self.buckets, self.units, self.keys, self.found,
            )
        )  # fmt: skip


_dispatch = _Dispatch()


def dispatch(data: bytes) -> None:
    """Check that the dispatch stays within the log and its tables, and ignores memory addresses."""
    check_crc, data = data[:1] == b"\x01", data[1:]
    results = []
    for placed in FENCE.placed(data):
        stopped, status, rows, groups, keys, timestamp = _dispatch.run(placed, check_crc)
        assert 0 <= stopped <= len(data)
        assert rows <= 512
        assert groups <= 8
        assert keys <= 20_000
        assert not _dispatch.buckets.any()
        queued = int(_dispatch.groups[:groups, units.GROUP_COUNT].sum())
        made = bytes(_dispatch.units[: queued * units.UNIT_BYTES])
        results.append((stopped, status, keys, timestamp, made))
    assert results[0] == results[1]


def columns(data: bytes) -> None:
    """Check that records converted to columns equal those of the record codec, or damage is reported."""
    for placed in FENCE.placed(data):
        try:
            positions = find_records(placed)
        except RecordDamaged:
            continue
        fields, damaged = read_records(placed, positions, check_crc=True)
        properties = find_property_columns(placed, fields.properties)
        texts = [gather(placed, spans) for spans in (
            fields.bodies, fields.topics, properties.tags, properties.keys, properties.uniq_keys,
            properties.names, properties.values,
        )]  # fmt: skip
        if damaged:
            continue
        messages = decode_records(data)
        assert fields.queue_offsets.tolist() == [each.queue_offset for each in messages]
        assert fields.store_timestamps.tolist() == [each.store_timestamp for each in messages]
        offsets, bodies = texts[0]
        assert [bytes(bodies[a:b]) for a, b in pairwise(offsets)] == [each.body for each in messages]


def places(data: bytes) -> None:
    """Check that `read_records` distinguishes valid and invalid records at arbitrary positions."""
    count = min(len(data) // 9, 8)
    positions = np.array(
        [int.from_bytes(data[i * 8 : i * 8 + 8], "big", signed=True) >> (data[i] & 56) for i in range(count)],
        np.int64,
    )
    for placed in FENCE.placed(data):
        fields, damaged = read_records(placed, positions, check_crc=False)
        assert len(fields.queue_ids) + len(damaged) == count
        find_property_columns(placed, fields.properties)
        gather(placed, fields.bodies)


def rows(data: bytes) -> None:
    """Check that kernel and pure Python encode rows equally, or both name the first invalid row."""
    if len(data) < 4:
        return
    count, data = data[0] % 6, data[1:]
    cuts = sorted(min(byte * 4, len(data)) for byte in data[: 4 * count + 1].ljust(4 * count + 1, b"\x10"))
    queues = np.array([int(byte) % 5 - 1 for byte in data[:count].ljust(count, b"\x01")], np.int32)
    queues = np.maximum(queues, 0) if data[:1] < b"\xe0" else queues
    queue_ids = np.array([0, 3, 1, 9], np.int32)
    parts = [np.array(cuts[i * count : i * count + count + 1], np.int64) for i in range(4)]
    draft = RecordDraft("T", 0, b"", b"a\x01b\x02", born_host=V4)
    uniq = UniqKeyBlock("0A0000010001DEADBEEF", 7)

    def table(place: Bytes) -> RowBatch:
        bodies, keys, tags, own = (TextColumn(part, place) for part in parts)
        return RowBatch(draft, bodies, keys, tags, queues, queue_ids, uniq, 512, V4_BYTES, own)

    expected = encoded(encode_rows_plain, table(np.frombuffer(data, np.uint8)))
    for placed in FENCE.placed(data):
        assert encoded(encode_rows, table(placed)) == expected


def encode_rows(table: RowBatch) -> list[bytes]:
    """Return the records of each queue, encoded by the kernel."""
    plan = plan_rows(table)
    return [bytes(encode_queues(table, plan, queue, queue + 1)) for queue in range(len(table.queue_ids))]


def encoded(encode: Callable[[RowBatch], list[bytes]], table: RowBatch) -> list[bytes] | str:
    """Return the records of each queue, or the error message."""
    try:
        return encode(table)
    except MessageInvalid as error:
        return error.remark


SLOTS, CAPACITY = 8, 16
ENTRIES = index_kernel.HEADER_BYTES + index_kernel.SLOT_BYTES * SLOTS
INDEX_BYTES = ENTRIES + index_kernel.ENTRY_BYTES * CAPACITY


def index(data: bytes) -> None:
    """Check that the index kernels stay within an index file of any content."""
    data = data[:INDEX_BYTES].ljust(INDEX_BYTES, b"\x00")
    found = np.zeros(32, np.int64)
    keys = np.array([[5, 100, 1000], [13, 200, 2000], [5, 300, 3000]], np.int64)
    results = []
    for placed in FENCE.placed(data):
        newest = np.zeros(SLOTS, np.int32)
        count = index_kernel.index_count(placed)
        matches = [index_kernel.select_key(placed, SLOTS, key, 0, 1 << 60, found) for key in (0, 5, 13)]
        is_valid = index_kernel.index_is_valid(placed, SLOTS, CAPACITY, newest)
        written = index_kernel.written_entries(placed, SLOTS, CAPACITY)
        after = index_kernel.entry_at_or_after(placed, SLOTS, 150) if count <= CAPACITY else 0
        put = index_kernel.insert_keys(placed, SLOTS, CAPACITY, keys, 0, 3)
        results.append((matches, bool(is_valid), written, after, put, bytes(placed)))
    assert results[0] == results[1]


def seeds_of_records() -> list[bytes]:
    """Return valid records of all kinds, single and consecutive, whose physicalOffset is right."""
    found = []
    drafts = [
        RecordDraft("T", 1, b"body", b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02", born_host=V4),
        RecordDraft("T", 1, b"", b"", born_host=V6),
        RecordDraft("%RETRY%" + "g" * 140, 1, b"x" * 90, b"a\x01b", born_host=V4, sys_flag=8),
        RecordDraft("SCHEDULE_TOPIC_XXXX", 1, b"1", b"DELAY\x011\x02", born_host=V4),
    ]
    for append_crc in (False, True):
        position, together = BASE, b""
        for draft in drafts:
            host = V6 if draft.body == b"1" else V4
            each = encode_record(draft, 3, position, 99, host, append_crc=append_crc)
            found.append(encode_record(draft, 3, BASE, 99, V4, append_crc=append_crc))
            together += each
            position += len(each)
        found += [together, together + encode_blank(64) + bytes(56), b"\x00" * 9 + together]
    found.append(struct.pack(">ii", 8, MAGIC_BLANK))
    return found


def seeds_of_batches() -> list[bytes]:
    """Return batches; the first byte selects the options of the target."""
    messages = [
        Message("T", b"one", properties={"TAGS": "a"}),
        Message("T", b"", properties={}),
        Message("T", b"xyz", properties={"k": "v"}),
    ]
    whole = encode_batch(messages)
    return [flag + part for flag in (b"\x00", b"\x01") for part in (whole, whole[:-3])]


def seeds_of_runs() -> list[bytes]:
    """Return bodies of runs: valid ones, and one with a too large number of messages in a header."""
    valid = [
        encode_record(RecordDraft("T", queue_id, bytes(queue_id), b"", born_host=V4), 0, 0, 0, V4)
        for queue_id in (1, 2, 2, 5)
    ]
    together = b"".join(valid)
    heads = [(1, 1, len(valid[0])), (2, 2, 2 * len(valid[1])), (5, 1, len(valid[3]))]
    wrong = [(1, 2, len(valid[0])), *heads[1:]]
    return [with_heads(heads, together), with_heads(heads[:1], valid[0]), with_heads(wrong, together)]


def seeds_of_run_records() -> list[bytes]:
    """Return inputs of `run_records` with three runs of valid records, and with one run of other records."""
    valid = [
        encode_record(RecordDraft("T", queue_id, bytes(queue_id), b"", born_host=V4), 0, 0, 0, V4)
        for queue_id in (0, 1, 1, 4)
    ]
    sizes = [len(each) for each in valid]
    heads = _HEAD.pack(0, 1, sizes[0]) + _HEAD.pack(0, 2, 2 * sizes[1]) + _HEAD.pack(2, 1, 0)
    one, of_log = _HEAD.pack(0, 1, 0), _HEAD.pack(1, 2, 0)
    logs = with_first(seeds_of_records(), b"\x00" + of_log, b"\x80" + of_log)
    return [b"\x02" + heads + b"".join(valid), b"\x00" + one + valid[0], *logs]


def with_first(seeds: list[bytes], *firsts: bytes) -> list[bytes]:
    """Return each seed prefixed with each of `firsts`."""
    return [first + seed for seed in seeds for first in firsts]


def seeds_of_indexes() -> list[bytes]:
    """Return an empty index file, one with entries, and one with a count that exceeds the file."""
    empty = np.zeros(INDEX_BYTES, np.uint8)
    keys = np.array([[n % 3, n * 10, 1000 + n] for n in range(10)], np.int64)
    filled = empty.copy()
    index_kernel.insert_keys(filled, SLOTS, CAPACITY, keys, 0, 10)
    over = filled.copy()
    over[36:40] = 0x7F
    return [bytes(each) for each in (empty, filled, over)]
