"""Writes the responses to plain sends (see `take_sends`).

A response consists of constant parts, which the ordinary encoder has made once, with the values of one send
or batch between them. The msgId of a batch has the ids of all its messages, separated by commas.
"""

from typing import Final

from store.kernels.compiled import helper
from store.kernels.memory import I64, U8, copy_bytes, store_i32, store_u8

# ---- the rows of `pieces`: start and length of a part of `texts` ----
# The parts of a response surround its values, for example JSON_QUEUE ends where the queue id begins.
# JSON_ID and BINARY_ID end with the broker's address, the first half of an id.
ADDED, HOSTS = range(2)  # properties that the broker adds to every message; born host, then store host
JSON_ID, JSON_QUEUE, JSON_OFFSET, JSON_KEY, JSON_OPAQUE, JSON_END = range(2, 8)
BINARY_OPAQUE, BINARY_ID, BINARY_QUEUE, BINARY_OFFSET, BINARY_KEY, BINARY_END = range(8, 14)

ID_BYTES: Final = 33  # of a message id with its separator
_HALF_ID_BYTES: Final = 16
_COMMA: Final = 44
_ENTRIES_AT: Final = 8  # the length of a response's entries: after the opaque, flag and remark length


@helper()
def write_digits(out: U8, at: int, value: int) -> int:
    """Write a decimal number at `at`; return its end."""
    digits = 1
    rest = value
    while rest >= 10:
        rest //= 10
        digits += 1
    for index in range(digits):
        store_u8(out, at + digits - 1 - index, 48 + value % 10)
        value //= 10
    return at + digits


@helper()
def _write_hex(out: U8, at: int, value: int) -> int:
    for index in range(16):
        digit = (value >> (60 - 4 * index)) & 15
        store_u8(out, at + index, 48 + digit if digit < 10 else 55 + digit)
    return at + 16


@helper()
def put(out: U8, at: int, texts: U8, pieces: I64, piece: int) -> int:
    """Write a part of `texts` at `at`; return its end."""
    length = pieces[piece, 1]
    copy_bytes(out, at, texts, pieces[piece, 0], length)
    return at + length


@helper()
def _write_ids(out: U8, at: int, physical: int, positions: I64, messages: int) -> int:
    """Write the message ids, after the first half of the first one; return their end."""
    host = at - _HALF_ID_BYTES
    at = _write_hex(out, at, physical + positions[0])
    for index in range(1, messages):
        store_u8(out, at, _COMMA)
        copy_bytes(out, at + 1, out, host, _HALF_ID_BYTES)
        at = _write_hex(out, at + 1 + _HALF_ID_BYTES, physical + positions[index])
    return at


@helper()
def _respond_json(
    out: U8, begin: int, texts: U8, pieces: I64, physical: int, positions: I64, messages: int,
    queue_id: int, queue_offset: int, records: U8, key: int, key_end: int, data: U8, opaque: int,
    opaque_end: int,
) -> int:  # fmt: skip
    at = put(out, begin + 8, texts, pieces, JSON_ID)
    at = _write_ids(out, at, physical, positions, messages)
    at = put(out, at, texts, pieces, JSON_QUEUE)
    at = write_digits(out, at, queue_id)
    at = put(out, at, texts, pieces, JSON_OFFSET)
    at = write_digits(out, at, queue_offset)
    at = put(out, at, texts, pieces, JSON_KEY)
    copy_bytes(out, at, records, key, key_end - key)
    at = put(out, at + key_end - key, texts, pieces, JSON_OPAQUE)
    copy_bytes(out, at, data, opaque, opaque_end - opaque)
    at = put(out, at + opaque_end - opaque, texts, pieces, JSON_END)
    store_i32(out, begin, at - begin - 4)
    store_i32(out, begin + 4, at - begin - 8)
    return at


@helper()
def _respond_rocketmq(
    out: U8, begin: int, texts: U8, pieces: I64, physical: int, positions: I64, messages: int,
    queue_id: int, queue_offset: int, records: U8, key: int, key_end: int, data: U8, opaque: int,
) -> int:  # fmt: skip
    at = put(out, begin + 8, texts, pieces, BINARY_OPAQUE)
    copy_bytes(out, at, data, opaque, 4)
    entries = at + 4 + _ENTRIES_AT
    start = put(out, at + 4, texts, pieces, BINARY_ID) - _HALF_ID_BYTES
    at = _write_ids(out, start + _HALF_ID_BYTES, physical, positions, messages)
    store_i32(out, start - 4, at - start)
    start = put(out, at, texts, pieces, BINARY_QUEUE)
    at = write_digits(out, start, queue_id)
    store_i32(out, start - 4, at - start)
    start = put(out, at, texts, pieces, BINARY_OFFSET)
    at = write_digits(out, start, queue_offset)
    store_i32(out, start - 4, at - start)
    start = put(out, at, texts, pieces, BINARY_KEY)
    store_i32(out, start - 4, key_end - key)
    copy_bytes(out, start, records, key, key_end - key)
    at = put(out, start + key_end - key, texts, pieces, BINARY_END)
    store_i32(out, entries, at - entries - 4)
    store_i32(out, begin, at - begin - 4)
    store_i32(out, begin + 4, (at - begin - 8) | (1 << 24))
    return at


@helper()
def respond(
    out: U8, at: int, texts: U8, pieces: I64, kind: int, physical: int, positions: I64, messages: int,
    queue_id: int, queue_offset: int,
    records: U8, key: int, key_end: int, data: U8, opaque: int, opaque_end: int,
) -> int:  # fmt: skip
    """Write the response frame at `at`, in the encoding of the request; return its end.

    Args:
        out: the responses.
        at: where the frame begins.
        texts: the constant parts.
        pieces: start and length of each part.
        kind: 0 for JSON, 1 for ROCKETMQ.
        physical: the CommitLog offset to which `positions` refer.
        positions: where the record of each message begins.
        messages: the number of messages.
        queue_id: their queue.
        queue_offset: that of the first message.
        records: contains the UNIQ_KEY from `key` to `key_end`.
        data: contains the opaque, for JSON from `opaque` to `opaque_end`, else 4 bytes.
    """
    if kind == 0:
        return _respond_json(
            out, at, texts, pieces, physical, positions, messages, queue_id, queue_offset, records, key,
            key_end, data, opaque, opaque_end,
        )  # fmt: skip
    return _respond_rocketmq(
        out, at, texts, pieces, physical, positions, messages, queue_id, queue_offset, records, key, key_end,
        data, opaque,
    )  # fmt: skip
