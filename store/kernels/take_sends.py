"""take_sends: handles the plain sends at the front of a receive buffer in one compiled call.

    frames ─► header scan (JSON or ROCKETMQ) ─► topic and queue ─► records ─► response
                                                    └──► lite topic ──┘

Plain sends are frames of SEND_MESSAGE_V2, or of SEND_BATCH_MESSAGE; those of one call have the same code.

It stops before the first frame that is not plain. Such a frame has another code, an escaped or unknown field,
a value that needs a check in Python, a property that an interceptor handles, or a topic or queue that is not
in the tables. Python handles it (`Sender`), with the same result for a plain frame too.

The arguments of `take_sends`:

    data: the receive buffer.
    state: the fields AT to CODE; the kernel updates AT, the sizes and TOPICS to CODE.
    topics: hash table of the known topics (columns NAME_AT to QUEUES_AT).
    names: the names of the topics.
    queues: for each queue of a topic, from QUEUES_AT on: its index in `assigned`, or -1 if unknown.
    assigned: the queue offset that the next message of each queue gets; the kernel advances it.
    lite: the table of lite topics (`store.kernels.lite`).
    pieces: the parts of `texts`.
    texts: the constant parts of records and responses.
    reserved: the first four bytes of each property name that Python must handle.
    records: receives the records.
    responses: receives the response frames.
    sent: receives the index in `assigned` of each request.
    counts: receives the numbers of messages of each topic (columns SLOT to MEDIUM).
    positions: scratch memory: where each record of a batch begins.
    fields: scratch memory: start and end of the value of each letter, the flag and the request code.
"""

from typing import Final

import numpy as np
from numba import types

from store.kernels import send_frames
from store.kernels.compiled import helper, kernel
from store.kernels.crc32 import crc32_kernel
from store.kernels.encode import encode_batch_kernel, measure_batch_kernel
from store.kernels.lite import ASSIGNED, DISPATCH, LITE, NUMBER, Lite, entered, is_name
from store.kernels.memory import (
    BYTES,
    I64,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    find_byte,
    load_i16,
    load_i32,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from store.kernels.send_frames import matches, number, scan_frame
from store.kernels.send_responses import ADDED, HOSTS, ID_BYTES, put, respond, write_digits
from store.message import batch as element
from store.message import record
from store.message.lite_topics import NAME_BYTES_MAX

# ---- the fields of `state` ----
(
    AT,  # position of the next frame in the buffer; the kernel advances it
    END,  # end of the received bytes
    FRAMES_MAX,  # at most this many frames are taken
    RECORDS_BYTES,  # room for records; the kernel sets the bytes written
    RESPONSES_BYTES,  # room for responses; the kernel sets the bytes written
    POSITION,  # CommitLog offset of the first record
    NOW_MS,  # storeTimestamp
    BODY_BYTES_MAX,  # of a message
    BATCH_BYTES_MAX,  # of the body of a batch
    SLOT_MASK,  # number of topic slots - 1
    TOPICS,  # the kernel sets the number of topics with new messages
    ONEWAY,  # the kernel sets the number of one-way frames, which get no response
    CODE,  # the kernel sets the request code of the frames
    LITE_ID,  # scratch: the id of the lite topic of the last record, or -1
) = range(14)
STATE_FIELDS: Final = 14
ARGUMENTS: Final = TOPICS  # the caller sets the fields before this one

# ---- the columns of `topics`, a hash table by name ----
# PARENT is the number of the topic in the table of lite topics, or -1.
NAME_AT, NAME_BYTES, QUEUES, QUEUES_AT, PARENT = range(5)
TOPIC_FIELDS: Final = 5

# ---- the columns of `counts`: one row for each topic with new messages ----
# SMALL and MEDIUM are the messages whose records have up to SMALL_BYTES and MEDIUM_BYTES.
SLOT, CALLS, MESSAGES, SIZE_BYTES, SMALL, MEDIUM = range(6)
COUNT_FIELDS: Final = 6
SMALL_BYTES: Final = 1024
MEDIUM_BYTES: Final = 4096

_RESPONSE_OVERHEAD_BYTES: Final = 128
_KEY_BYTES_MAX: Final = 255
_BACKSLASH: Final = 92
_DOLLAR: Final = ord("$")
_NAME_END, _PAIR_END = 1, 2
_ESCAPE = np.frombuffer(b"\\u000", np.uint8)
_UNIQ_KEY = np.frombuffer(b"UNIQ_KEY\x01", np.uint8)
_TRANSIENT: Final = int.from_bytes(b"__", "big")
_WAIT = np.frombuffer(b"WAIT\x01", np.uint8)
_LITE_TOPIC = np.frombuffer(b"__LITE_TOPIC\x01", np.uint8)
_PLACE_BYTES_MAX: Final = len(DISPATCH) + len(NUMBER) + NAME_BYTES_MAX + 24  # without the topic


@helper()
def _find_topic(topics: I64, names: U8, mask: int, data: U8, at: int, length: int) -> int:
    """Return the slot of the topic, or -1."""
    slot = hash_name(data, at, length) & mask
    while topics[slot, NAME_BYTES] >= 0:
        if topics[slot, NAME_BYTES] == length:
            name = topics[slot, NAME_AT]
            index = 0
            while index < length and names[name + index] == data[at + index]:
                index += 1
            if index == length:
                return slot
        slot = (slot + 1) & mask
    return -1


@kernel([types.int64(BYTES, types.int64, types.int64)], keeps_gil=True)
def hash_name(data: U8, at: int, length: int) -> int:
    """Return the FNV-1a hash of the topic name of `length` bytes at `at`."""
    value = 2166136261
    for index in range(at, at + length):
        value = ((value ^ data[index]) * 16777619) & 0xFFFFFFFF
    return value


@helper()
def _find_values(records: U8, begin: int, to: int, reserved: I64, is_lite: bool) -> tuple[int, int, int, int]:
    """Return start and end of the UNIQ_KEY and, of a lite message, of its lite topic.

    They are -1 without one, or with a name that Python handles.
    """
    key = key_end = name = name_end = -1
    pair = begin
    while pair < to:
        stop = find_byte(records, pair, to, _PAIR_END)
        if is_lite and name < 0 and matches(records, pair, stop, _LITE_TOPIC):
            name = pair + len(_LITE_TOPIC)
            name_end = stop
        elif stop - pair >= 2 and load_i16(records, pair) == _TRANSIENT:
            return -1, -1, -1, -1
        elif stop - pair >= 4:
            word = load_i32(records, pair)
            for index in range(len(reserved)):
                if word == reserved[index]:
                    return -1, -1, -1, -1
            if key < 0 and matches(records, pair, stop, _UNIQ_KEY):
                key = pair + len(_UNIQ_KEY)
                key_end = stop
        pair = stop + 1
    return key, key_end, name, name_end


@helper()
def _copy_properties(data: U8, at: int, end: int, records: U8, to: int, is_json: bool) -> int:
    """Copy the properties; return their end. -1: not plain."""
    begin = to
    while at < end:
        byte = data[at]
        if byte == _BACKSLASH and is_json:
            if not matches(data, at, end, _ESCAPE) or at + 6 > end:
                return -1
            byte = data[at + 5] - 48
            if byte != _NAME_END and byte != _PAIR_END:
                return -1
            at += 6
        elif byte > 126 or (byte < 32 and (is_json or (byte != _NAME_END and byte != _PAIR_END))):
            return -1
        else:
            at += 1
        store_u8(records, to, byte)
        to += 1
    if to > begin and records[to - 1] != _PAIR_END:
        store_u8(records, to, _PAIR_END)
        to += 1
    return to


@helper()
def _add_place(
    records: U8, to: int, topic: int, topic_end: int, name: int, name_end: int, lite: Lite, parent: int,
    state: I64,
) -> int:  # fmt: skip
    """Add the properties that say where a message is in its lite topic; return their end. -1: not plain."""
    state[LITE_ID] = -1
    if parent < 0:
        return to
    if name < 0 or not is_name(records, name, name_end):
        return -1
    id_ = state[LITE_ID] = entered(lite, parent, records, name, name_end - name)
    if id_ < 0:
        return -1
    copy_bytes(records, to, DISPATCH, 0, len(DISPATCH))
    to += len(DISPATCH)
    copy_bytes(records, to, records, topic, topic_end - topic)
    to += topic_end - topic
    store_u8(records, to, _DOLLAR)
    copy_bytes(records, to + 1, records, name, name_end - name)
    to += 1 + name_end - name
    store_u8(records, to, _PAIR_END)
    copy_bytes(records, to + 1, NUMBER, 0, len(NUMBER))
    to = write_digits(records, to + 1 + len(NUMBER), lite[3][id_, ASSIGNED])
    store_u8(records, to, _PAIR_END)
    return to + 1


@helper()
def _write_fields(
    records: U8, place: int, end: int, texts: U8, pieces: I64, data: U8, fields: I64,
    physical: int, queue_id: int, queue_offset: int, body: int, body_bytes: int, now_ms: int,
) -> None:  # fmt: skip
    """Write the fields of the record at `place` before its body."""
    hosts = pieces[HOSTS, 0]
    reconsume_times = max(number(data, fields[send_frames.J, 0], fields[send_frames.J, 1]), 0)
    store_i32(records, place + record.BODY_CRC, crc32_kernel(data, body, body + body_bytes))
    store_i32(records, place + record.QUEUE_ID, queue_id)
    store_i32(records, place + record.FLAG, number(data, fields[send_frames.H, 0], fields[send_frames.H, 1]))
    store_i64(records, place + record.QUEUE_OFFSET, queue_offset)
    store_i64(records, place + record.PHYSICAL_OFFSET, physical)
    store_i32(
        records, place + record.SYS_FLAG, number(data, fields[send_frames.F, 0], fields[send_frames.F, 1])
    )
    store_i64(
        records,
        place + record.BORN_TIMESTAMP,
        number(data, fields[send_frames.G, 0], fields[send_frames.G, 1]),
    )
    copy_bytes(records, place + record.BORN_HOST, texts, hosts, 8)
    store_i64(records, place + record.STORE_TIMESTAMP, now_ms)
    copy_bytes(records, place + record.STORE_HOST, texts, hosts + 8, 8)
    store_i32(records, place + record.RECONSUME_TIMES, reconsume_times)
    store_i64(records, place + record.PREPARED_TRANSACTION_OFFSET, 0)
    store_i32(records, place + record.BODY_LENGTH, body_bytes)
    store_i32(records, place + record.MAGIC, record.MAGIC_V1)
    store_i32(records, place + record.TOTAL_SIZE, end - place)


@helper()
def _find_queue(
    topics: I64, names: U8, queues: I64, mask: int, data: U8, fields: I64
) -> tuple[int, int, int]:
    """Return the topic's slot, the queue id and the queue's index in `assigned`, which is -1 if unknown."""
    name, queue_id = fields[send_frames.B], number(data, fields[send_frames.E, 0], fields[send_frames.E, 1])
    slot = _find_topic(topics, names, mask, data, name[0], name[1] - name[0])
    if slot < 0 or not 0 <= queue_id < topics[slot, QUEUES]:
        return -1, -1, -1
    return slot, queue_id, queues[topics[slot, QUEUES_AT] + queue_id]


@helper()
def _count_messages(counts: I64, rows: int, slot: int, messages: int, size_bytes: int) -> int:
    """Count the messages of one request; return the number of rows of `counts` that are used.

    Their sizes are taken to be equal, as by `BrokerStats.put`.
    """
    row = 0
    while row < rows and counts[row, SLOT] != slot:
        row += 1
    if row == rows:
        counts[row] = 0
        counts[row, SLOT] = slot
        rows += 1
    counts[row, CALLS] += 1
    counts[row, MESSAGES] += messages
    counts[row, SIZE_BYTES] += size_bytes
    if size_bytes // messages <= SMALL_BYTES:
        counts[row, SMALL] += messages
    elif size_bytes // messages <= MEDIUM_BYTES:
        counts[row, MEDIUM] += messages
    return rows


@helper()
def _write_record(
    records: U8, place: int, state: I64, texts: U8, pieces: I64, reserved: I64, data: U8, fields: I64,
    kind: int, queue_id: int, queue_offset: int, body: int, body_bytes: int, lite: Lite, parent: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Write the record at `place`; return its end, and start and end of the UNIQ_KEY. -1: not plain."""
    name, name_end = fields[send_frames.B]
    properties, properties_end = fields[send_frames.I]
    # The properties in the header are at least as long as those in the record, except for a separator.
    most = record.MIN_RECORD_BYTES + body_bytes + name_end - name + properties_end - properties + 1
    most += _PLACE_BYTES_MAX + name_end - name
    if place + most + pieces[ADDED, 1] > state[RECORDS_BYTES]:
        return -1, -1, -1
    topic_at = place + record.BODY + body_bytes
    properties_at = topic_at + 1 + name_end - name
    copy_bytes(records, topic_at + 1, data, name, name_end - name)
    begin = properties_at + 2
    to = _copy_properties(data, properties, properties_end, records, begin, kind == 0)
    key, key_end, lite_topic, lite_end = _find_values(records, begin, to, reserved, parent >= 0)
    if to < 0 or not 0 < key_end - key <= _KEY_BYTES_MAX:
        return -1, -1, -1
    to = _add_place(
        records, to, topic_at + 1, properties_at, lite_topic, lite_end, lite, parent, state
    )  # fmt: skip
    properties_bytes = to + pieces[ADDED, 1] - begin
    if to < 0 or properties_bytes > record.MAX_PROPERTIES_BYTES:
        return -1, -1, -1
    to = put(records, to, texts, pieces, ADDED)
    copy_bytes(records, place + record.BODY, data, body, body_bytes)
    store_u8(records, topic_at, name_end - name)
    store_i16(records, properties_at, properties_bytes)
    _write_fields(
        records, place, to, texts, pieces, data, fields, state[POSITION] + place, queue_id, queue_offset,
        body, body_bytes, state[NOW_MS],
    )  # fmt: skip
    return to, key, key_end


@helper()
def _has_only_batch_properties(properties: U8, pair: int, end: int) -> bool:
    """Return True if no property of a batch's header is one of its messages'."""
    while pair < end:
        if not matches(properties, pair, end, _UNIQ_KEY) and not matches(properties, pair, end, _WAIT):
            return False
        pair = find_byte(properties, pair, end, _PAIR_END) + 1
    return True


@helper()
def _write_batch(
    records: U8, place: int, state: I64, texts: U8, pieces: I64, reserved: I64, data: U8, fields: I64,
    kind: int, queue_id: int, queue_offset: int, body: int, stop: int, positions: I64,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Write the records of a batch at `place`, and where each begins after it into `positions`.

    Returns:
        A tuple: the end of the records, start and end of the batch's UNIQ_KEY behind them, and the number of
        messages. The end is -1 if the batch is not plain.
    """
    batch = data[body:stop]
    messages, unterminated, longest, bad_position = measure_batch_kernel(batch)
    name, name_end = fields[send_frames.B]
    properties, properties_end = fields[send_frames.I]
    added, added_bytes = pieces[ADDED]
    more = record.MIN_RECORD_BYTES + name_end - name + added_bytes - element.MIN_ELEMENT_BYTES
    to = place + stop - body + messages * more + unterminated
    topic_at = to + record.BODY
    key_at = topic_at + 1 + name_end - name
    if (
        bad_position >= 0
        or longest + added_bytes > record.MAX_PROPERTIES_BYTES
        or messages > len(positions)
        or to > state[RECORDS_BYTES]
        or key_at + properties_end - properties + 1 > len(records)
    ):
        return -1, -1, -1, 0
    end = _copy_properties(data, properties, properties_end, records, key_at, kind == 0)
    key, key_end, _, _ = _find_values(records, key_at, end, reserved, False)
    is_key = 0 < key_end - key <= _KEY_BYTES_MAX
    if end < 0 or not is_key or not _has_only_batch_properties(records, key_at, end):
        return -1, -1, -1, 0
    # The fields and the topic that all records share, behind the records.
    _write_fields(
        records, to, topic_at, texts, pieces, data, fields, 0, queue_id, 0, body, 0, state[NOW_MS]
    )  # fmt: skip
    store_u8(records, topic_at, name_end - name)
    copy_bytes(records, topic_at + 1, data, name, name_end - name)
    encode_batch_kernel(
        batch, records[to:topic_at], records[topic_at:key_at], texts[added : added + added_bytes],
        queue_offset, state[POSITION] + place, False, records[place:to], positions[:messages],
    )  # fmt: skip
    return to, key, key_end, messages


@kernel(
    [
        types.int64(
            BYTES,
            types.int64[::1],
            types.int64[:, ::1],
            BYTES,
            types.int64[::1],
            types.int64[::1],
            LITE,
            types.int64[:, ::1],
            BYTES,
            types.int64[::1],
            WRITABLE_BYTES,
            WRITABLE_BYTES,
            types.int64[::1],
            types.int64[:, ::1],
            types.int64[::1],
            types.int64[:, ::1],
        )
    ],
    keeps_gil=True,
)
def take_sends(
    data: U8, state: I64, topics: I64, names: U8, queues: I64, assigned: I64, lite: Lite, pieces: I64,
    texts: U8, reserved: I64, records: U8, responses: U8, sent: I64, counts: I64, positions: I64, fields: I64,
) -> int:  # fmt: skip
    """Take the plain frames at the front of `data[state[AT]:state[END]]`; return their number.

    The arguments are described at the top of this file.
    """
    at, end = state[AT], state[END]
    place = out = count = rows = oneway = code = 0
    while at + 8 <= end and count < state[FRAMES_MAX]:
        kind, body, stop, opaque, opaque_end = scan_frame(
            data, at, end, state[BODY_BYTES_MAX], state[BATCH_BYTES_MAX], fields
        )
        if kind < 0 or (count > 0 and fields[send_frames.CODE, 0] != code):
            break
        code = fields[send_frames.CODE, 0]
        slot, queue_id, queue = _find_queue(topics, names, queues, state[SLOT_MASK], data, fields)
        if queue < 0:
            break
        messages, positions[0] = 1, 0
        parent = topics[slot, PARENT]
        if code == send_frames.BATCH:
            if parent >= 0:
                break
            to, key, key_end, messages = _write_batch(
                records, place, state, texts, pieces, reserved, data, fields, kind, queue_id, assigned[queue],
                body, stop, positions,
            )  # fmt: skip
        else:
            to, key, key_end = _write_record(
                records, place, state, texts, pieces, reserved, data, fields, kind, queue_id, assigned[queue],
                body, stop - body, lite, parent,
            )  # fmt: skip
        response_bytes = messages * ID_BYTES + _KEY_BYTES_MAX + _RESPONSE_OVERHEAD_BYTES + len(texts)
        if to < 0 or out + response_bytes > state[RESPONSES_BYTES]:
            break
        if fields[send_frames.FLAG, 0] == send_frames.ONEWAY:
            oneway += 1
        else:
            out = respond(
                responses, out, texts, pieces, kind, state[POSITION] + place, positions, messages, queue_id,
                assigned[queue], records, key, key_end, data, opaque, opaque_end,
            )  # fmt: skip
        assigned[queue] += messages
        if parent >= 0:
            lite[3][state[LITE_ID], ASSIGNED] += 1
        rows = _count_messages(counts, rows, slot, messages, to - place)
        sent[count] = queue
        count += 1
        place = to
        at = stop
    state[AT] = at
    state[RECORDS_BYTES] = place
    state[RESPONSES_BYTES] = out
    state[TOPICS] = rows
    state[ONEWAY] = oneway
    state[CODE] = code
    return count
