"""Encodes Message objects as the body of a batch request, without a Python loop over the messages.

msgspec encodes the messages as MessagePack, and a kernel converts that to batch elements
(docs/store-format.md#batch):

    | array | map 4 | "topic" str | "body" bin | "properties" map: str str … | "flag" int | map 4 | …
      ──→   | totalSize | magic 0 | bodyCRC 0 | flag | bodyLength | body | propertiesLength | properties | …

Only common messages are supported. For others, `encode_message_batch` returns None, and the caller uses
`store.message.batch.encode_elements`, whose checks raise errors with the cause.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.memory import (
    BYTES,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    load_i16,
    load_i32,
    load_i64,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from store.kernels.messagepack import (
    BIN8,
    BIN16,
    BIN32,
    FIXINT_MAX,
    FIXMAP,
    FIXMAP_MAX,
    FIXSTR,
    FIXSTR_MAX,
    MAP16,
    STR8,
    STR16,
    array_head_bytes,
)
from store.message.batch import BODY_LENGTH, ELEMENT_HEADER_BYTES, FLAG, MIN_ELEMENT_BYTES
from store.message.message import Message
from store.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, MessageConst
from store.message.record import MAX_PROPERTIES_BYTES

_TOPIC_KEY, _BODY_KEY, _PROPERTIES_KEY, _FLAG_KEY = (1 + len(name) for name in Message.__match_args__)

_NAME_END, _PAIR_END = ord(NAME_VALUE_SEPARATOR), ord(PROPERTY_SEPARATOR)
_UNIQ_NAME = np.frombuffer(f"{MessageConst.UNIQ_KEY}\x01".encode(), np.uint8)
_UNIQ_KEY = int.from_bytes(MessageConst.UNIQ_KEY.encode(), "big")
_TIMER_DE = int.from_bytes(MessageConst.TIMER_DELAY_MS[:8].encode(), "big")
_DELA, _Y = int.from_bytes(MessageConst.DELAY[:4].encode(), "big"), ord(MessageConst.DELAY[4])

_encoder = msgspec.msgpack.Encoder()


def encode_message_batch(
    messages: Sequence[Message], ids: Sequence[str], max_body_bytes: int, reserved_bytes: int
) -> bytes | None:
    """Encode messages of one topic as batch elements, or return None if one is not supported.

    Not supported are messages with a body that is empty or longer than `max_body_bytes`, a delay, a
    UNIQ_KEY of their own, fields of a wrong type, unusually long or invalid properties, or different topics.

    Args:
        messages: The messages; at least one.
        ids: One UNIQ_KEY per message, all of the same length.
        max_body_bytes: The maximum size of a body.
        reserved_bytes: Bytes of the properties limit to leave free for properties that the broker adds.
    """
    if set(map(type, messages)) != {Message}:
        return None
    try:
        topic = messages[0].topic.encode()
        packed = _encoder.encode(messages)
    except (TypeError, ValueError, AttributeError, OverflowError):  # ValueError: e.g. a lone surrogate
        return None
    added_bytes = MIN_ELEMENT_BYTES + len(_UNIQ_NAME) + len(ids[0]) + 1
    out = np.empty(len(packed) + len(messages) * added_bytes, np.uint8)
    used = _write_batch(
        np.frombuffer(packed, np.uint8),
        array_head_bytes(len(messages)),
        np.frombuffer(topic, np.uint8),
        np.frombuffer("".join(ids).encode(), np.uint8),
        len(ids[0]),
        max_body_bytes,
        MAX_PROPERTIES_BYTES - reserved_bytes,
        out,
    )
    return out[:used].tobytes() if used >= 0 else None


@helper()
def _text(packed: U8, position: int) -> tuple[int, int]:
    """Find the string at `position` of the MessagePack data.

    Returns:
        Start and length of its bytes; the length is -1 if the value is not a string or is too long.
    """
    head = np.int64(packed[position])
    if FIXSTR <= head <= FIXSTR + FIXSTR_MAX:
        return position + 1, int(head - FIXSTR)
    if head == STR8:
        return position + 2, int(np.int64(packed[position + 1]))
    if head == STR16:
        return position + 3, load_i16(packed, position + 1) & 0xFFFF
    return position, -1


@helper()
def _body(packed: U8, position: int) -> tuple[int, int]:
    """Find the byte string at `position` of the MessagePack data.

    Returns:
        Start and length of its bytes; the length is -1 if the value is not a byte string.
    """
    head = np.int64(packed[position])
    if head == BIN8:
        return position + 2, int(np.int64(packed[position + 1]))
    if head == BIN16:
        return position + 3, load_i16(packed, position + 1) & 0xFFFF
    if head == BIN32:
        return position + 5, load_i32(packed, position + 1)
    return position, -1


@helper()
def _pairs(packed: U8, position: int) -> tuple[int, int]:
    """Find the map at `position` of the MessagePack data.

    Returns:
        The position of its first key, and the number of its pairs; -1 if the value is not a map or is too
            large.
    """
    head = np.int64(packed[position])
    if FIXMAP <= head <= FIXMAP + FIXMAP_MAX:
        return position + 1, int(head - FIXMAP)
    if head == MAP16:
        return position + 3, load_i16(packed, position + 1) & 0xFFFF
    return position, -1


@helper()
def _is_plain(packed: U8, start: int, length: int) -> bool:
    """Return True if the name or value of a property is not empty and contains no separator character."""
    is_plain = length > 0
    for position in range(start, start + length):
        byte = packed[position]
        is_plain &= (byte != _NAME_END) & (byte != _PAIR_END)
    return is_plain


@helper()
def _is_special(packed: U8, name: int, length: int) -> bool:
    """Return True if a property has a name that this kernel does not support: UNIQ_KEY, DELAY or TIMER_DE…"""
    if length == 8:
        return load_i64(packed, name) == _UNIQ_KEY
    if length > 8 and load_i64(packed, name) == _TIMER_DE:
        return True
    return length == 5 and load_i32(packed, name) == _DELA and packed[name + 4] == _Y


@helper()
def _is_equal(packed: U8, start: int, length: int, text: U8) -> bool:
    same = length == len(text)
    for index in range(len(text) if same else 0):
        same &= packed[start + index] == text[index]
    return same


@helper()
def _write_properties(packed: U8, position: int, pairs: int, out: U8, used: int) -> tuple[int, int]:
    """Convert a map of `pairs` pairs at `position` of `packed` to a property string at `used` of `out`.

    Returns:
        The end positions in `packed` and `out`; the first is -1 if a pair is not supported.
    """
    for _ in range(pairs):
        name, name_bytes = _text(packed, position)
        if not _is_plain(packed, name, name_bytes) or _is_special(packed, name, name_bytes):
            return -1, used
        value, value_bytes = _text(packed, name + name_bytes)
        if not _is_plain(packed, value, value_bytes):
            return -1, used
        copy_bytes(out, used, packed, name, name_bytes)
        used += name_bytes
        store_u8(out, used, _NAME_END)
        copy_bytes(out, used + 1, packed, value, value_bytes)
        used += 1 + value_bytes
        store_u8(out, used, _PAIR_END)
        used += 1
        position = value + value_bytes
    return position, used


@helper()
def _write_id(ids: U8, identity: int, id_bytes: int, out: U8, used: int) -> int:
    copy_bytes(out, used, _UNIQ_NAME, 0, len(_UNIQ_NAME))
    used += len(_UNIQ_NAME)
    copy_bytes(out, used, ids, identity, id_bytes)
    store_u8(out, used + id_bytes, _PAIR_END)
    return used + id_bytes + 1


@kernel(
    types.int64(BYTES, types.int64, BYTES, BYTES, types.int64, types.int64, types.int64, WRITABLE_BYTES),
    keeps_gil=True,
)
def _write_batch(
    packed: U8,
    position: int,
    topic: U8,
    ids: U8,
    id_bytes: int,
    max_body_bytes: int,
    max_properties_bytes: int,
    out: U8,
) -> int:
    """Write the batch elements for the messages in `packed` to `out`.

    Returns their size in bytes, or -1 if a message is not supported.
    """
    used = 0
    for identity in range(0, len(ids), id_bytes):
        text, length = _text(packed, position + 1 + _TOPIC_KEY)
        if not _is_equal(packed, text, length, topic):
            return -1
        body, body_bytes = _body(packed, text + length + _BODY_KEY)
        if not 0 < body_bytes <= max_body_bytes:
            return -1
        copy_bytes(out, used + ELEMENT_HEADER_BYTES, packed, body, body_bytes)
        pairs_at, pairs = _pairs(packed, body + body_bytes + _PROPERTIES_KEY)
        properties = used + MIN_ELEMENT_BYTES + body_bytes
        position, end = _write_properties(packed, pairs_at, pairs, out, properties)
        if pairs < 0 or position < 0 or packed[position + _FLAG_KEY] > FIXINT_MAX:
            return -1
        end = _write_id(ids, identity, id_bytes, out, end)
        if end - properties > max_properties_bytes:
            return -1
        store_i32(out, used, end - used)
        store_i64(out, used + 4, 0)
        store_i32(out, used + FLAG, np.int64(packed[position + _FLAG_KEY]))
        store_i32(out, used + BODY_LENGTH, body_bytes)
        store_i16(out, properties - 2, end - properties)
        used = end
        position += _FLAG_KEY + 1
    return used
