"""Codec of a record: one message as stored in the CommitLog and returned by a pull.

See docs/store-format.md#record.

The layout with two IPv4 hosts; all numbers are big-endian:

    0           4       8         12        16     20            28               36        40
    | totalSize | magic | bodyCRC | queueId | flag | queueOffset | physicalOffset | sysFlag | bornTimestamp |
    48         56               64          72               76                          84           88
    | bornHost | storeTimestamp | storeHost | reconsumeTimes | preparedTransactionOffset | bodyLength | body |
    | topicLength | topic | propertiesLength | properties |

An IPv6 host takes 12 bytes more. topicLength has one byte with magic V1 and two with V2. propertiesLength is
an i16.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from store.message.buffers import Buffer
from store.message.crc import crc32
from store.message.hosts import V4_BYTES, V6_BYTES, unpack_host
from store.message.message import MessageExt
from store.message.properties import MessageConst, decode_properties
from store.message.sys_flag import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6, TRANSACTION_UNQUEUED
from store.store_errors import MessageInvalid, RecordDamaged

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)  # fills the end of a file in which the next record does not fit

TOTAL_SIZE = 0
MAGIC = 4
BODY_CRC = 8
QUEUE_ID = 12
FLAG = 16
QUEUE_OFFSET = 20
PHYSICAL_OFFSET = 28
SYS_FLAG = 36
BORN_TIMESTAMP = 40
BORN_HOST = 48
STORE_TIMESTAMP = 56  # this field and all after it: + 12 if the born host is IPv6
STORE_HOST = 64
RECONSUME_TIMES = 72  # from here on: + 12 for each IPv6 host
PREPARED_TRANSACTION_OFFSET = 76
BODY_LENGTH = 84
BODY = 88

BLANK_BYTES = 8  # totalSize and magic: a blank record has no other fields
MIN_RECORD_BYTES = BODY + 1 + 2  # no body, no topic, no properties
MAX_V1_TOPIC_BYTES = 127  # RocketMQ reads the length as a signed byte
MAX_PROPERTIES_BYTES = 32_767

# The optional CRC of the whole record is its last property, of 20 bytes; d are its decimal digits, the lowest
# first, padded with zeros (docs/store-format.md#crc-property):
#   __CRC32# 0x01 dddddddddd 0x02
CRC_PROPERTY_DIGITS = 10
CRC_PROPERTY_BYTES = len(MessageConst.CRC32) + 1 + CRC_PROPERTY_DIGITS + 1
_CRC_BEGIN = f"{MessageConst.CRC32}\x01".encode()

_INT = Struct(">i")
_SHORT = Struct(">h")
_SIZE_AND_MAGIC = Struct(">ii")
_SYS_FLAG_AND_BODY_LENGTH = Struct(f">{SYS_FLAG}xi{BODY_LENGTH - SYS_FLAG - 4}xi")


def _header(born_host_bytes: int, store_host_bytes: int) -> Struct:
    return Struct(f">iiiiiqqiq{born_host_bytes}sq{store_host_bytes}siqi")


_HEADERS = {
    (born, store): _header(born, store) for born in (V4_BYTES, V6_BYTES) for store in (V4_BYTES, V6_BYTES)
}


@dataclass(slots=True)
class RecordDraft:
    """The fields of a record that are known before the record gets its queue offset and CommitLog offset.

    `properties` is a property string, `born_host` an encoded address (`Host.packed`), and `born_timestamp` is
    in ms since the epoch.
    """

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(V4_BYTES)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@lru_cache(maxsize=8192)
def topic_field(topic: str) -> tuple[int, bytes]:
    """Return the magic for records of this topic, and the encoded topic field: length, then name."""
    name = topic.encode()
    if len(name) <= MAX_V1_TOPIC_BYTES:
        return MAGIC_V1, len(name).to_bytes(1, "big") + name
    return MAGIC_V2, len(name).to_bytes(2, "big") + name


def record_size(draft: RecordDraft, store_host_bytes: int = V4_BYTES, *, append_crc: bool = False) -> int:
    """Return the size in bytes of the record that `encode_record` makes from `draft`."""
    properties_bytes = len(draft.properties)
    if append_crc:
        properties = _without_crc(draft.properties)
        properties_bytes = len(properties) + CRC_PROPERTY_BYTES + _lacks_separator(properties)
    hosts_bytes = len(draft.born_host) + store_host_bytes - 2 * V4_BYTES
    return (
        BODY
        + hosts_bytes
        + len(draft.body)
        + len(topic_field(draft.topic)[1])
        + _SHORT.size
        + properties_bytes
    )


def encode_record(
    draft: RecordDraft,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    *,
    append_crc: bool = False,
) -> bytes:
    """Return the bytes of a record.

    A record of a prepared or rolled-back transaction is stored with queueOffset 0, because no consume queue
    refers to it.

    Args:
        draft: The fields that do not depend on where the record is stored.
        queue_offset: Offset of the message in its queue.
        physical_offset: Offset of the record in the CommitLog.
        store_timestamp: In ms since the epoch.
        store_host: The encoded address of the broker (`Host.packed`).
        append_crc: Add the CRC of the whole record as a property (RocketMQ's enabledAppendPropCRC). It
            replaces that of another record, which the sender of a message that it has received may leave.

    Raises:
        MessageInvalid: The properties leave no room for the CRC.
    """
    magic, topic = topic_field(draft.topic)
    body, born_host, properties = draft.body, draft.born_host, draft.properties
    if append_crc:
        properties = _with_room_for_crc(_without_crc(properties))
    header = _HEADERS[len(born_host), len(store_host)]
    sys_flag = draft.sys_flag & ~HOST_BITS
    if header.size != BODY:
        sys_flag |= (len(born_host) == V6_BYTES and BORN_HOST_V6) | (
            len(store_host) == V6_BYTES and STORE_HOST_V6
        )
    fields = header.pack(
        header.size + len(body) + len(topic) + 2 + len(properties),
        magic,
        crc32(body),
        draft.queue_id,
        draft.flag,
        0 if sys_flag & TRANSACTION_UNQUEUED else queue_offset,
        physical_offset,
        sys_flag,
        draft.born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        draft.reconsume_times,
        draft.prepared_transaction_offset,
        len(body),
    )
    record = b"".join((fields, body, topic, _SHORT.pack(len(properties)), properties))
    return _with_crc(record) if append_crc else record


def record_template(draft: RecordDraft, store_timestamp: int, store_host: bytes) -> bytes:
    """Return the fixed-length header of a record of `draft`, with the length fields of an empty body.

    Kernels that encode many similar records copy this header and fill in the fields that differ.
    """
    empty = replace(draft, body=b"", properties=b"")
    return encode_record(empty, 0, 0, store_timestamp, store_host)[
        : -len(topic_field(draft.topic)[1]) - _SHORT.size
    ]


def encode_blank(size_bytes: int) -> bytes:
    """Return a blank record: it marks the last `size_bytes` of a CommitLog file as unused."""
    return _SIZE_AND_MAGIC.pack(size_bytes, MAGIC_BLANK)


def no_room_for_crc(properties_bytes: int) -> MessageInvalid:
    """Return the error to raise if the properties leave no room for the CRC of the whole record."""
    return MessageInvalid(
        f"properties of {properties_bytes:,} bytes and {CRC_PROPERTY_BYTES} bytes of CRC are over the limit "
        f"of {MAX_PROPERTIES_BYTES:,} bytes: move data to the body"
    )


def _lacks_separator(properties: bytes) -> bool:
    return bool(properties) and not properties.endswith(b"\x02")


def _without_crc(properties: bytes) -> bytes:
    if _CRC_BEGIN not in properties:
        return properties
    return b"\x02".join(pair for pair in properties.split(b"\x02") if not pair.startswith(_CRC_BEGIN))


def _with_room_for_crc(properties: bytes) -> bytes:
    separator = b"\x02" if _lacks_separator(properties) else b""
    if len(properties) + len(separator) > MAX_PROPERTIES_BYTES - CRC_PROPERTY_BYTES:
        raise no_room_for_crc(len(properties))
    return properties + separator + bytes(CRC_PROPERTY_BYTES)


def _with_crc(record: bytes) -> bytes:
    covered = record[:-CRC_PROPERTY_BYTES]
    digits = str(crc32(covered))[::-1].ljust(CRC_PROPERTY_DIGITS, "0")
    return covered + f"{MessageConst.CRC32}\x01{digits}\x02".encode()


class _Parsed(NamedTuple):
    """The fields of a record's header, and the positions of its other fields in the buffer."""

    fields: tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
    body: int
    topic: int
    topic_end: int
    properties: int
    end: int


def decode_record(
    buffer: Buffer, offset: int = 0, *, check_crc: bool = True, broker_name: str = ""
) -> MessageExt:
    """Decode the record at byte `offset` of `buffer`. Raises RecordDamaged if it is not valid.

    The body is returned as stored: it may be compressed.
    """
    parsed = _parse(buffer, offset, check_crc=check_crc)
    fields = parsed.fields
    return MessageExt(
        topic=str(buffer[parsed.topic : parsed.topic_end], "utf-8", "replace"),
        body=bytes(buffer[parsed.body : parsed.body + fields[14]]),
        properties=decode_properties(bytes(buffer[parsed.properties : parsed.end])),
        flag=fields[4],
        broker_name=broker_name,
        queue_id=fields[3],
        queue_offset=fields[5],
        commit_log_offset=fields[6],
        store_size=fields[0],
        sys_flag=fields[7],
        body_crc=fields[2],
        born_timestamp=fields[8],
        born_host=unpack_host(fields[9]),
        store_timestamp=fields[10],
        store_host=unpack_host(fields[11]),
        reconsume_times=fields[12],
        prepared_transaction_offset=fields[13],
    )


def decode_records(buffer: Buffer, *, check_crc: bool = True, broker_name: str = "") -> list[MessageExt]:
    """Decode consecutive records. Raises RecordDamaged with the position of the first invalid record."""
    messages: list[MessageExt] = []
    position = 0
    while position < len(buffer):
        message = decode_record(buffer, position, check_crc=check_crc, broker_name=broker_name)
        messages.append(message)
        position += message.store_size
    return messages


def body_of(record: Buffer) -> slice:
    """Return the place of the body in a record that is known to be valid."""
    (sys_flag,) = _INT.unpack_from(record, SYS_FLAG)
    body = BODY + (V6_BYTES - V4_BYTES) * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    (length,) = _INT.unpack_from(record, body - _INT.size)
    return slice(body, body + length)


def record_properties(record: memoryview, before: bytes = b"") -> bytes:
    """Return `before` and the property string of a record that is known to be valid."""
    sys_flag, body_length = _SYS_FLAG_AND_BODY_LENGTH.unpack_from(record)
    topic = BODY + body_length
    if sys_flag & HOST_BITS:
        parsed = _parse(record, 0, check_crc=False)
        return before + record[parsed.properties : parsed.end]
    if record[MAGIC + 3] == MAGIC_V1 & 0xFF:
        return before + record[topic + 1 + record[topic] + _SHORT.size :]
    (topic_length,) = _SHORT.unpack_from(record, topic)
    return before + record[topic + 2 + topic_length + _SHORT.size :]


def _parse(buffer: Buffer, position: int, *, check_crc: bool) -> _Parsed:
    available = len(buffer) - position
    if available < MIN_RECORD_BYTES:
        raise RecordDamaged(
            f"{available} bytes before the end of the data; a record has at least {MIN_RECORD_BYTES}",
            position=position,
        )
    size_bytes, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordDamaged(
            f"magic {magic & 0xFFFFFFFF:#010x} is not the magic of a record", position=position
        )
    if not MIN_RECORD_BYTES <= size_bytes <= available:
        raise RecordDamaged(
            f"totalSize {size_bytes} is not between {MIN_RECORD_BYTES} and the {available} bytes available",
            position=position,
        )
    (sys_flag,) = _INT.unpack_from(buffer, position + SYS_FLAG)
    header = _HEADERS[
        V6_BYTES if sys_flag & BORN_HOST_V6 else V4_BYTES,
        V6_BYTES if sys_flag & STORE_HOST_V6 else V4_BYTES,
    ]
    end = position + size_bytes
    body = position + header.size
    topic_length_bytes = 1 if magic == MAGIC_V1 else 2
    if body + topic_length_bytes + _SHORT.size > end:
        raise RecordDamaged(f"totalSize {size_bytes} is shorter than the header", position=position)
    fields = header.unpack_from(buffer, position)
    body_length = fields[14]
    topic = body + body_length + topic_length_bytes
    if body_length < 0 or topic + _SHORT.size > end:
        raise RecordDamaged(
            f"bodyLength {body_length} does not fit in totalSize {size_bytes}", position=position
        )
    topic_length = int.from_bytes(buffer[topic - topic_length_bytes : topic], "big", signed=True)
    topic_end = topic + topic_length
    properties = topic_end + _SHORT.size
    if topic_length < 0 or properties > end:
        raise RecordDamaged(
            f"topicLength {topic_length} does not fit in totalSize {size_bytes}", position=position
        )
    (properties_length,) = _SHORT.unpack_from(buffer, topic_end)
    if properties_length < 0 or properties + properties_length != end:
        raise RecordDamaged(f"its fields do not add up to totalSize {size_bytes}", position=position)
    if check_crc and body_length and crc32(buffer[body : body + body_length]) != fields[2]:
        raise RecordDamaged(f"the CRC of the body is not bodyCRC {fields[2]:#010x}", position=position)
    return _Parsed(fields, body, topic, topic_end, properties, end)
