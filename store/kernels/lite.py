"""The table of lite topics, and the dispatch of their messages.

A lite topic is a name below a topic, which is its parent. It has an id: the row in these arrays, which are
passed together as `lite`:

    meta: COUNT to SEED.
    slots: hash table by parent and name: id + 1, 0 if free, -1 if removed.
    names: NAME_BYTES_MAX bytes for each id, with zeros behind the name; zeros if the id is free.
    numbers: the columns LAST to BORN.
    parents: the number of the parent.
    times: when the last message was stored, in seconds since the epoch; 0 if unknown.

The arrays do not grow here: a function that finds no room says so, and its caller grows them.
"""

from typing import Final

import numpy as np
from numba import types

from store.kernels.compiled import helper, kernel
from store.kernels.memory import (
    BYTES,
    I64,
    U8,
    WRITABLE_BYTES,
    copy_bytes,
    find_byte,
    store_i16,
    store_i32,
    store_i64,
)
from store.kernels.send_frames import matches, number
from store.kernels.units import ROW_GROUP, ROW_POSITION, ROW_SIZE
from store.kernels.walk import record_parts, store_timestamp_at
from store.message.lite_topics import NAME_BYTES_MAX
from store.message.record import MAX_V1_TOPIC_BYTES

Lite = tuple[I64, I64, U8, I64, I64, I64]

# ---- the fields of `meta` ----
COUNT, FREE, ALIVE, USED, SEED = range(5)  # rows in use; first free row + 1; names; slots that are not free
META_FIELDS: Final = 5

# ---- the columns of `numbers` ----
LAST, NEXT, ASSIGNED, BORN = range(4)
# LAST: number of the last unit, -1 without one; of a free row, the next free row + 1
# NEXT: the offset behind the last message that is dispatched
# ASSIGNED: the offset that the next message gets
# BORN: CommitLog offset of the first record; if it is unknown, -1 - n: the records before n are not counted
NUMBERS: Final = 4

# ---- the columns of `units` ----
PHYSICAL, PREVIOUS, ID, OFFSET, SIZE, STORED_S, NEWS = range(7)
UNIT_FIELDS: Final = 7
# NEWS: the earlier messages of the lite topic are not counted any more, or messages are missing
NEW_LIFE, GAP = 1, 2

ENTRY_BYTES_MAX: Final = 18 + MAX_V1_TOPIC_BYTES + 1 + NAME_BYTES_MAX
OFFSET_MAX: Final = 0xFFFF_FFFE
_PRIME: Final = 1099511628211
_PAIR_END, _SEPARATOR = 2, ord("$")
DISPATCH = np.frombuffer(b"INNER_MULTI_DISPATCH\x01%LMQ%$", np.uint8)
NUMBER = np.frombuffer(b"INNER_MULTI_QUEUE_OFFSET\x01", np.uint8)

LITE = types.Tuple(
    (
        types.int64[::1],
        types.int32[::1],
        WRITABLE_BYTES,
        types.int64[:, ::1],
        types.uint32[::1],
        types.uint32[::1],
    )
)


@helper()
def is_name(data: U8, at: int, end: int) -> bool:
    """Return True if [at, end) is a valid name of a lite topic."""
    if not 0 < end - at <= NAME_BYTES_MAX:
        return False
    for index in range(at, end):
        byte = data[index]
        if not (48 <= byte <= 57 or 65 <= (byte & 0xDF) <= 90 or byte == 45 or byte == 95):
            return False
    return True


@helper()
def _slot(lite: Lite, parent: int, data: U8, at: int, length: int) -> int:
    """Return the slot of a name, or the free one in which it belongs."""
    meta, slots, names, _, parents, _ = lite
    value = meta[SEED] ^ parent
    for index in range(at, at + length):
        value = (value ^ data[index]) * _PRIME
    slot = (value ^ (value >> 32)) & (len(slots) - 1)
    while slots[slot] != 0:
        id_ = slots[slot] - 1
        if id_ >= 0 and parents[id_] == parent:
            place = id_ * NAME_BYTES_MAX
            index = 0
            while index < length and names[place + index] == data[at + index]:
                index += 1
            if index == length and (length == NAME_BYTES_MAX or names[place + length] == 0):
                break
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@helper()
def entered(lite: Lite, parent: int, data: U8, at: int, length: int) -> int:
    """Return the id of a name, which is entered if it is new; -1 if there is no room."""
    meta, slots, names, numbers, parents, times = lite
    slot = _slot(lite, parent, data, at, length)
    if slots[slot] != 0:
        return slots[slot] - 1
    id_ = meta[FREE] - 1
    if 2 * (meta[USED] + 1) > len(slots) or (id_ < 0 and meta[COUNT] == len(parents)):
        return -1
    if id_ >= 0:
        meta[FREE] = numbers[id_, LAST]
    else:
        id_ = meta[COUNT]
        meta[COUNT] += 1
    meta[ALIVE] += 1
    meta[USED] += 1
    slots[slot] = id_ + 1
    copy_bytes(names, id_ * NAME_BYTES_MAX, data, at, length)
    parents[id_] = parent
    times[id_] = 0
    numbers[id_, LAST] = -1
    numbers[id_, NEXT] = 0
    numbers[id_, ASSIGNED] = 0
    numbers[id_, BORN] = -1
    return id_


@kernel([types.int64(LITE, types.int64, BYTES)], keeps_gil=True)
def find_name(lite: Lite, parent: int, name: U8) -> int:
    """Return the id of a name, or -1."""
    return lite[1][_slot(lite, parent, name, 0, len(name))] - 1


@kernel([types.int64(LITE, types.int64, BYTES)], keeps_gil=True)
def enter_name(lite: Lite, parent: int, name: U8) -> int:
    """Return the id of a name, which is entered if it is new; -1 if there is no room."""
    return entered(lite, parent, name, 0, len(name))


@helper()
def _length(names: U8, place: int) -> int:
    length = 0
    while length < NAME_BYTES_MAX and names[place + length] != 0:
        length += 1
    return length


@kernel([types.void(LITE, types.int64)], keeps_gil=True)
def remove_name(lite: Lite, id_: int) -> None:
    """Remove the name with this id, which becomes free."""
    meta, slots, names, numbers, parents, times = lite
    place = id_ * NAME_BYTES_MAX
    slots[_slot(lite, parents[id_], names, place, _length(names, place))] = -1
    names[place : place + NAME_BYTES_MAX] = 0
    times[id_] = 0
    numbers[id_, NEXT] = numbers[id_, ASSIGNED] = 0
    numbers[id_, LAST] = meta[FREE]
    meta[FREE] = id_ + 1
    meta[ALIVE] -= 1


@kernel([types.void(LITE)])
def fill_slots(lite: Lite) -> None:
    """Enter the names of all rows into the slots, which are free, and link the rows without a name."""
    meta, slots, names, numbers, parents, _ = lite
    meta[FREE] = meta[ALIVE] = 0
    for id_ in range(meta[COUNT] - 1, -1, -1):
        place = id_ * NAME_BYTES_MAX
        length = _length(names, place)
        if length > 0:
            slots[_slot(lite, parents[id_], names, place, length)] = id_ + 1
            meta[ALIVE] += 1
        else:
            numbers[id_, LAST] = meta[FREE]
            meta[FREE] = id_ + 1
    meta[USED] = meta[ALIVE]


@helper()
def _find_place(data: U8, position: int, size: int) -> tuple[int, int, int]:
    """Return start and end of the name of the lite topic of a record, and the offset there; -1 if none."""
    _, _, topic, topic_length, at, length = record_parts(data, position, size)
    end = at + length
    name = name_end = offset = -1
    while at < end:
        stop = find_byte(data, at, end, _PAIR_END)
        if name < 0 and matches(data, at, stop, DISPATCH):
            name, name_end = at + len(DISPATCH), stop
        elif offset < 0 and matches(data, at, stop, NUMBER):
            offset = number(data, at + len(NUMBER), stop)
        at = stop + 1
    has_topic = name_end - name > topic_length and topic_length <= MAX_V1_TOPIC_BYTES
    if name < 0 or not 0 <= offset < OFFSET_MAX or not has_topic:
        return -1, -1, -1
    for index in range(topic_length):
        if data[name + index] != data[topic + index]:
            return -1, -1, -1
    name += topic_length + 1
    if data[name - 1] != _SEPARATOR or not is_name(data, name, name_end):
        return -1, -1, -1
    return name, name_end, offset


@helper()
def _add(lite: Lite, id_: int, offset: int, unit: int, stored_s: int) -> tuple[int, int]:
    """Count a message in the table; return the unit before it, and the news about the lite topic."""
    numbers = lite[3]
    news, previous, following = 0, numbers[id_, LAST], numbers[id_, NEXT]
    if offset < following:
        previous = -1
        news = NEW_LIFE
    elif offset > following and previous >= 0:
        news = GAP
    if offset < following or numbers[id_, ASSIGNED] <= offset:
        numbers[id_, ASSIGNED] = offset + 1
    numbers[id_, LAST] = unit
    numbers[id_, NEXT] = offset + 1
    lite[5][id_] = stored_s
    return previous, news


@helper()
def _write_entry(entries: U8, at: int, physical: int, id_: int, data: U8, name: int, name_end: int) -> int:
    """Write the entry of a new name; return its end. The topic and a separator are before the name."""
    key = name - 1
    while data[key - 1] != _SEPARATOR:
        key -= 1
    store_i64(entries, at, physical)
    store_i32(entries, at + 8, id_)
    store_i32(entries, at + 12, 0)
    store_i16(entries, at + 16, name_end - key)
    copy_bytes(entries, at + 18, data, key, name_end - key)
    return at + 18 + name_end - key


@kernel(
    [
        types.UniTuple(types.int64, 3)(
            BYTES, types.int64, types.int64[:, ::1], types.int64[::1], types.int64, types.int64, LITE,
            types.int64[:, ::1], WRITABLE_BYTES,
        )
    ]
)  # fmt: skip
def add_messages(
    data: U8, base: int, rows: I64, parents: I64, at: int, unit: int, lite: Lite, units: I64, entries: U8
) -> tuple[int, int, int]:
    """Add the lite messages among dispatched records to the table.

    Args:
        data: a file of the log.
        base: its CommitLog offset.
        rows: the records (`store.kernels.units`).
        parents: for each group of the records, the number of its topic; -1 if it has no lite messages.
        at: the first row to look at.
        unit: the number that the next unit gets.
        lite: the table.
        units: receives the unit of each message.
        entries: receives the entries of new names (`store.lite.names`), ENTRY_BYTES_MAX at most for each.

    Returns:
        The row behind the last one that was looked at, the number of units, and the size of the entries. It
        stops if `units` is full, or if the table has no room for a name.
    """
    count = end = 0
    while at < len(rows) and count < len(units):
        group, position, size = rows[at, ROW_GROUP], rows[at, ROW_POSITION], rows[at, ROW_SIZE]
        if group >= 0 and parents[group] >= 0:
            name, name_end, offset = _find_place(data, position, size)
            if name >= 0:
                id_ = entered(lite, parents[group], data, name, name_end - name)
                if id_ < 0:
                    break
                physical = base + position
                born = lite[3][id_, BORN]
                if physical >= (born if born >= 0 else -1 - born):
                    if born < 0:
                        lite[3][id_, BORN] = physical
                        end = _write_entry(entries, end, physical, id_, data, name, name_end)
                    stored_s = store_timestamp_at(data, position) // 1000 & 0xFFFF_FFFF
                    previous, news = _add(lite, id_, offset, unit + count, stored_s)
                    units[count, PHYSICAL] = physical
                    units[count, PREVIOUS] = previous
                    units[count, ID] = id_
                    units[count, OFFSET] = offset
                    units[count, SIZE] = size
                    units[count, STORED_S] = stored_s
                    units[count, NEWS] = news
                    count += 1
        at += 1
    return at, count, end
