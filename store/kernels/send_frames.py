"""Scans the headers of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE frames (see `take_sends`).

A JSON header has its keys in the order of RocketMQ's encoder:

    {"code":310,"extFields":{"a":"…","b":"…"},"flag":0,"language":"…","opaque":N,
     "serializeTypeCurrentRPC":"JSON","version":N}

A batch has the code 320 and the same fields. The flag of a one-way request, which gets no response, is 2.

A ROCKETMQ header, all numbers big-endian:

    0      2          3         5        9      13               17              21
    | code | language | version | opaque | flag | remark length | entries length | entries |

An entry is the length of its name (i16), the name, the length of its value (i32) and the value.
"""

from typing import Final

import numpy as np

from store.kernels.compiled import helper
from store.kernels.memory import I64, U8, find_byte, load_i16, load_i32

A, B, C, D, E, F, G, H, I, J, K, L, M = range(13)  # noqa: E741 - the names of the header's fields
LETTERS: Final = 26
FLAG: Final = LETTERS  # the row of `fields` with the flag
CODE: Final = LETTERS + 1  # the row with the request code
SCANNED: Final = LETTERS + 2  # the rows of `fields`
ONEWAY: Final = 2
SEND, BATCH = 310, 320  # the request codes
_I32_MAX: Final = 2**31 - 1
_HEADER_LENGTH_MASK: Final = 0xFFFFFF  # of the second word of a frame; the byte above it is the encoding
_FRAME_BYTES_MAX: Final = 65_536
_QUOTE, _COMMA, _COLON, _BACKSLASH, _BRACE = 34, 44, 58, 92, 125
_HEAD = np.frombuffer(b'{"code":310,"extFields":{', np.uint8)
_BATCH_HEAD = np.frombuffer(b'{"code":320,"extFields":{', np.uint8)
_FLAG = np.frombuffer(b',"flag":', np.uint8)
_LANGUAGE = np.frombuffer(b',"language":"', np.uint8)
_OPAQUE = np.frombuffer(b'","opaque":', np.uint8)
_VERSION = np.frombuffer(b',"serializeTypeCurrentRPC":"JSON","version":', np.uint8)
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_FIXED_BYTES: Final = 21  # of a ROCKETMQ header before its entries


@helper()
def matches(data: U8, at: int, end: int, text: U8) -> bool:
    """Return True if `text` is at position `at`."""
    if at + len(text) > end:
        return False
    for index in range(len(text)):  # noqa: SIM110 - kernels have no generators
        if data[at + index] != text[index]:
            return False
    return True


@helper()
def number(data: U8, at: int, end: int) -> int:
    """Return the decimal number in [at, end), or -1 if there are other characters or more than 18 digits."""
    if at < 0 or at >= end or end - at > 18:
        return -1
    value = 0
    for index in range(at, end):
        digit = data[index] - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@helper()
def _json_number_end(data: U8, at: int, end: int) -> int:
    """Return the end of the non-negative i32 in JSON at `at`, or -1."""
    stop = at
    while stop < end and 48 <= data[stop] <= 57:
        stop += 1
    value = number(data, at, stop)
    if value < 0 or value > _I32_MAX or (data[at] == 48 and stop - at > 1):
        return -1
    return stop


@helper()
def _plain_end(data: U8, at: int, end: int) -> int:
    """Return the position of the quote after the plain text at `at`; -1 if it has other characters."""
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte < 32 or byte > 126 or byte == _BACKSLASH:
            return -1
        at += 1
    return -1


@helper()
def _scan_json(data: U8, at: int, end: int, fields: I64) -> tuple[int, int]:
    """Put start and end of the value of each letter into `fields`; return start and end of the opaque."""
    fields[CODE, 0] = BATCH if matches(data, at, end, _BATCH_HEAD) else SEND
    if fields[CODE, 0] == SEND and not matches(data, at, end, _HEAD):
        return -1, -1
    at += len(_HEAD)
    while True:  # "x":"value", with a comma or a brace after it
        if at + 6 > end or data[at] != _QUOTE or data[at + 2] != _QUOTE or data[at + 3] != _COLON:
            return -1, -1
        letter = data[at + 1] - 97
        if data[at + 4] != _QUOTE or letter < 0 or letter >= LETTERS or fields[letter, 0] >= 0:
            return -1, -1
        at += 5
        stop = find_byte(data, at, end, _QUOTE) if letter == I else _plain_end(data, at, end)
        if stop < 0 or stop + 1 >= end:
            return -1, -1
        fields[letter, 0] = at
        fields[letter, 1] = stop
        at = stop + 2
        if data[stop + 1] == _BRACE:
            break
        if data[stop + 1] != _COMMA:
            return -1, -1
    if not matches(data, at, end, _FLAG) or not matches(data, at + len(_FLAG) + 1, end, _LANGUAGE):
        return -1, -1
    fields[FLAG, 0] = data[at + len(_FLAG)] - 48
    at = _plain_end(data, at + len(_FLAG) + 1 + len(_LANGUAGE), end)
    if at < 0 or not matches(data, at, end, _OPAQUE):
        return -1, -1
    opaque = at + len(_OPAQUE)
    opaque_end = _json_number_end(data, opaque, end)
    if opaque_end < 0 or not matches(data, opaque_end, end, _VERSION):
        return -1, -1
    at = _json_number_end(data, opaque_end + len(_VERSION), end)
    if at < 0 or at + 1 != end or data[at] != _BRACE:
        return -1, -1
    return opaque, opaque_end


@helper()
def _scan_rocketmq(data: U8, at: int, end: int, fields: I64) -> tuple[int, int]:
    """Put start and end of the value of each letter into `fields`; return start and end of the opaque."""
    if (
        end - at < _FIXED_BYTES
        or (load_i16(data, at) != SEND and load_i16(data, at) != BATCH)
        or load_i32(data, at + 13) != 0  # length of the remark
        or at + _FIXED_BYTES + load_i32(data, at + 17) != end
    ):
        return -1, -1
    fields[CODE, 0] = load_i16(data, at)
    fields[FLAG, 0] = load_i32(data, at + 9)
    entry = at + _FIXED_BYTES
    while entry < end:
        if entry + 7 > end or load_i16(data, entry) != 1:
            return -1, -1
        letter = data[entry + 2] - 97
        start = entry + 7
        length = load_i32(data, entry + 3)
        if letter < 0 or letter >= LETTERS or fields[letter, 0] >= 0 or not 0 <= length <= end - start:
            return -1, -1
        fields[letter, 0] = start
        fields[letter, 1] = entry = start + length
        if letter != I:
            for index in range(start, entry):
                if data[index] < 32 or data[index] > 126:
                    return -1, -1
    return at + 5, at + 9


@helper()
def _is_flag(data: U8, at: int, end: int) -> bool:
    """Return True if the value is absent (-1), true or false."""
    if at < 0:
        return True
    text = end - at
    return (text == len(_TRUE) and matches(data, at, end, _TRUE)) or (
        text == len(_FALSE) and matches(data, at, end, _FALSE)
    )


@helper()
def _has_plain_fields(data: U8, fields: I64) -> bool:
    """Return True if the fields that Python would check more closely have ordinary values."""
    for letter in (A, B, C, D, E, F, G, H, I):
        if fields[letter, 0] < 0:
            return False
    names = fields[A, 1] - fields[A, 0] + fields[C, 1] - fields[C, 0]
    for letter in (D, H):
        value = number(data, fields[letter, 0], fields[letter, 1])
        if value < 0 or value > _I32_MAX:
            return False
    for letter in (J, L):
        value = number(data, fields[letter, 0], fields[letter, 1])
        if fields[letter, 0] >= 0 and (value < 0 or value > _I32_MAX):
            return False
    is_batch_of_send = fields[CODE, 0] == SEND and fields[M, 1] - fields[M, 0] == len(_TRUE)
    return (
        names <= 255  # the limit of a group's name
        and 0 <= number(data, fields[F, 0], fields[F, 1]) <= 1  # sysFlag: compressed, or nothing
        and number(data, fields[G, 0], fields[G, 1]) >= 0
        and _is_flag(data, fields[K, 0], fields[K, 1])
        and _is_flag(data, fields[M, 0], fields[M, 1])
        and not is_batch_of_send
    )


@helper()
def scan_frame(
    data: U8, at: int, end: int, body_bytes_max: int, batch_bytes_max: int, fields: I64
) -> tuple[int, int, int, int, int]:
    """Scan the frame at `at`; put start and end of the value of each field into `fields`.

    The limits are those of the body of a message and of a batch.

    Returns:
        A tuple: the encoding of the header, start and end of the body, start and end of the opaque. The
        encoding is -1 if the frame is incomplete or not plain.
    """
    total = load_i32(data, at)
    mark = load_i32(data, at + 4)
    kind = (mark >> 24) & 0xFF
    header = at + 8
    body = header + (mark & _HEADER_LENGTH_MASK)
    stop = at + 4 + total
    fields[:, :] = -1
    opaque = opaque_end = -1
    if (
        4 <= total <= _FRAME_BYTES_MAX
        and stop <= end
        and 0 < stop - body <= max(body_bytes_max, batch_bytes_max)
    ):
        if kind == 0:
            opaque, opaque_end = _scan_json(data, header, body, fields)
        elif kind == 1:
            opaque, opaque_end = _scan_rocketmq(data, header, body, fields)
    is_request = fields[FLAG, 0] == 0 or fields[FLAG, 0] == ONEWAY
    is_long = stop - body > (batch_bytes_max if fields[CODE, 0] == BATCH else body_bytes_max)
    if opaque < 0 or is_long or not is_request or not _has_plain_fields(data, fields):
        kind = -1
    return kind, body, stop, opaque, opaque_end
