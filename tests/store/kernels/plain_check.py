"""Pure-Python check of a record, the reference for the kernels (docs/store-format.md#record-check)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from store.message.buffers import Buffer
from store.message.crc import crc32
from store.message.record import BLANK_BYTES, CRC_PROPERTY_BYTES, MAGIC_BLANK, decode_record
from store.store_errors import RecordDamaged

_SIZE_AND_MAGIC = Struct(">ii")


class RecordVerdict(IntEnum):
    """Result of checking a position of the log: a valid record, a blank record, or damage."""

    RECORD = 0
    BLANK = 1
    DAMAGED = 2


class RecordCheck(NamedTuple):
    """`size_bytes` is the size of the record or blank record, 0 if damaged."""

    verdict: RecordVerdict
    size_bytes: int


def check_record(
    buffer: Buffer, position: int = 0, *, check_crc: bool = True, force_crc_property: bool = False
) -> RecordCheck:
    """Check whether a valid record or blank record starts at `position` of a CommitLog file.

    With `force_crc_property`, the CRC of the whole record is checked instead of that of the body, and a
    record without it is damaged (RocketMQ's forceVerifyPropCRC).
    """
    if len(buffer) - position < BLANK_BYTES:
        return RecordCheck(RecordVerdict.DAMAGED, 0)
    size_bytes, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_BLANK and BLANK_BYTES <= size_bytes <= len(buffer) - position:
        return RecordCheck(RecordVerdict.BLANK, size_bytes)
    try:
        decode_record(buffer, position, check_crc=check_crc and not force_crc_property)
    except RecordDamaged:
        return RecordCheck(RecordVerdict.DAMAGED, 0)
    if force_crc_property and not has_crc(bytes(buffer[position : position + size_bytes])):
        return RecordCheck(RecordVerdict.DAMAGED, 0)
    return RecordCheck(RecordVerdict.RECORD, size_bytes)


def has_crc(record: bytes) -> bool:
    """Return True if a record ends with the property that has the CRC of the rest."""
    covered = record[:-CRC_PROPERTY_BYTES]
    digits = str(crc32(covered))[::-1].ljust(10, "0")
    return record == covered + f"__CRC32#\x01{digits}\x02".encode()
