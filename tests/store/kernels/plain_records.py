"""Pure-Python equivalents of the kernels that encode, stamp and split records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from struct import pack_into

import numpy as np
import numpy.typing as npt

from store.kernels import columns_to_records as rows_kernel
from store.kernels import stamp as stamp_kernel
from store.kernels.batches import Piece
from store.kernels.columns_to_records import RowBatch, TextColumn, row_error
from store.kernels.encode import EncodedRecords, check_room
from store.kernels.stamp import Stamp, record_error, run_error
from store.message.buffers import Buffer
from store.message.crc import crc32
from store.message.message import MessageExt
from store.message.message_id import SEQUENCE_HEX
from store.message.properties import MessageConst, decode_properties, encode_properties
from store.message.record import (
    BODY_CRC,
    BORN_HOST,
    MAGIC,
    MAX_PROPERTIES_BYTES,
    QUEUE_ID,
    QUEUE_OFFSET,
    TOTAL_SIZE,
    RecordDraft,
    decode_record,
    encode_record,
    topic_field,
)
from store.message.runs import Runs
from store.message.tags import java_hash
from store.store_errors import RecordDamaged
from tests.store.kernels.plain_batch import decode_batch, encode_element

_NAME_END, _PAIR_END = 1, 2


def encode_batch_records_plain(
    batch: Buffer,
    draft: RecordDraft,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    *,
    append_crc: bool = False,
) -> EncodedRecords:
    """Pure-Python equivalent of `encode_batch_records`."""
    records = bytearray()
    positions: list[int] = []
    for index, message in enumerate(decode_batch(batch)):
        positions.append(len(records))
        own = message.properties
        if draft.properties and own and own[-1] != _PAIR_END:
            own += bytes([_PAIR_END])
        check_room(len(own), len(draft.properties))
        records += encode_record(
            replace(draft, flag=message.flag, body=message.body, properties=own + draft.properties),
            queue_offset + index,
            physical_offset + len(records),
            store_timestamp,
            store_host,
            append_crc=append_crc,
        )
    return EncodedRecords(memoryview(records), np.array(positions, np.int64))


def encode_rows_plain(rows: RowBatch) -> list[bytes]:
    """Pure-Python equivalent of `plan_rows` followed by `encode_queues`.

    Returns the encoded records of each queue, by queue index.
    """
    fixed = rows.draft.properties + f"{MessageConst.UNIQ_KEY}\x01{rows.uniq_keys.prefix}".encode()
    by_queue: list[list[bytes]] = [[] for _ in rows.queue_ids]
    for row, queue in enumerate(rows.queues.tolist()):
        body, keys, tags = rows.bodies.row(row), rows.keys.row(row), rows.tags.row(row)
        properties = fixed + rows.uniq_keys.key(row)[-SEQUENCE_HEX:].encode() + b"\x02"
        for name, value in ((MessageConst.KEYS, keys), (MessageConst.TAGS, tags)):
            properties += f"{name}\x01".encode() + value + b"\x02" if value else b""
        properties += rows.own_properties.row(row)
        if not 0 <= queue < len(by_queue):
            raise row_error(rows, row, rows_kernel.BAD_QUEUE)
        if not body:
            raise row_error(rows, row, rows_kernel.NO_BODY)
        if len(body) > rows.max_body_bytes:
            raise row_error(rows, row, rows_kernel.BAD_BODY)
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise row_error(rows, row, rows_kernel.BAD_PROPERTIES)
        if {_NAME_END, _PAIR_END} & set(keys + tags):
            raise row_error(rows, row, rows_kernel.BAD_TEXT)
        queue_id = int(rows.queue_ids[queue])
        draft = replace(rows.draft, queue_id=queue_id, body=body, properties=properties)
        record = bytearray(encode_record(draft, 0, 0, 0, bytes(rows.store_host_bytes)))
        record[BODY_CRC : BODY_CRC + 4] = bytes(4)  # the broker fills it in
        by_queue[queue].append(bytes(record))
    return [b"".join(records) for records in by_queue]


def queues_of_keys_plain(keys: TextColumn, queue_count: int) -> npt.NDArray[np.int32]:
    """Pure-Python equivalent of `queues_of_keys`."""
    rows = range(len(keys.offsets) - 1)
    # RocketMQ computes abs(hash % count). Java's remainder has the sign of the hash: this is abs(hash) %
    # count.
    hashes = [abs(java_hash(keys.row(row).decode("utf-8", "replace"))) for row in rows]
    return np.array([value % queue_count for value in hashes], np.int32)


def stamp_runs_plain(runs: Runs, stamp: Stamp, queue_offsets: Sequence[int]) -> None:
    """Pure-Python equivalent of `stamp_runs`."""
    position = 0
    for number, (queue_id, messages, size_bytes, queue_offset) in enumerate(
        zip(*runs.heads, queue_offsets, strict=True)
    ):
        end = position + size_bytes
        count = _stamp_run_plain(runs.records[:end], position, queue_id, queue_offset, stamp)
        position = end
        if count != messages:
            raise run_error(stamp, runs, number, position, stamp_kernel.BAD_COUNT)


def _stamp_run_plain(view: memoryview, begin: int, queue_id: int, queue_offset: int, stamp: Stamp) -> int:
    """Check and stamp the records of one queue in `view[begin:]`. Return the number of records."""
    hosts = stamp.born_host + stamp.store_timestamp.to_bytes(8, "big") + stamp.store_host
    position = begin
    count = 0
    while position < len(view):
        try:
            message = decode_record(view, position, check_crc=False)
        except RecordDamaged:
            raise record_error(stamp, queue_id, position, stamp_kernel.BAD_RECORD) from None
        magic = int.from_bytes(view[position + MAGIC :][:4], "big", signed=True)
        fault = _find_fault_plain(message, magic, queue_id, stamp)
        if fault:
            raise record_error(stamp, queue_id, position, fault)
        pack_into(">i", view, position + BODY_CRC, crc32(message.body))
        pack_into(
            ">qq", view, position + QUEUE_OFFSET, queue_offset + count, stamp.physical_offset + position
        )
        view[position + BORN_HOST :][: len(hosts)] = hosts
        position += message.store_size
        count += 1
    return count


def _find_fault_plain(message: MessageExt, magic: int, queue_id: int, stamp: Stamp) -> int:
    """Return the code of the first fault of a record, or 0 if the record is valid."""
    if message.sys_flag & ~stamp_kernel.FREE_FLAGS != stamp.host_flags:
        return stamp_kernel.BAD_FLAGS
    if (message.topic, magic) != (stamp.topic, topic_field(stamp.topic)[0]):
        return stamp_kernel.BAD_TOPIC
    if message.queue_id != queue_id:
        return stamp_kernel.BAD_QUEUE
    return stamp_kernel.BAD_BODY if len(message.body) > stamp.max_body_bytes else 0


def split_into_batches_plain(records: memoryview, count: int, queue_id: int, max_bytes: int) -> list[Piece]:
    """Pure-Python equivalent of `split_into_batches`."""
    pieces: list[Piece] = []
    start = position = counted = 0
    while position < len(records):
        size_bytes = int.from_bytes(records[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
        if counted and position + size_bytes - start > max_bytes:
            pieces.append(Piece(counted, records[start:position]))
            start, counted = position, 0
        records[position + QUEUE_ID : position + QUEUE_ID + 4] = queue_id.to_bytes(4, "big")
        position += size_bytes
        counted += 1
    if counted:
        pieces.append(Piece(counted, records[start:]))
    return pieces


def with_properties_plain(batch: Buffer, properties: Mapping[str, str]) -> bytes:
    """Pure-Python equivalent of `with_properties` without its limits."""
    merged = bytearray()
    for message in decode_batch(batch):
        own = message.properties
        missing = properties.keys() - decode_properties(own).keys()
        if missing and own and own[-1] != _PAIR_END:
            own += bytes([_PAIR_END])
        own += encode_properties({name: properties[name] for name in properties if name in missing})
        merged += encode_element(message._replace(properties=own))
    return bytes(merged)
