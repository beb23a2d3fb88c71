"""Reads and writes an index file: a hash table from keys to CommitLog offsets.

See docs/store-format.md#index-file.

    0                40                    40 + 4 · slots
    | header         | slot 0 | slot 1 | … | entry 0 (never used) | entry 1 | …

            0                8              16               24             32                 36
    header: | beginTimestamp | endTimestamp | beginPhyOffset | endPhyOffset | slots in use i32 | count i32 |
    slot:   | index of the newest entry of the chain i32 |
    entry:  | keyHash i32 | phyOffset i64 | seconds since beginTimestamp i32 | index of the next older i32 |

An entry stores the location of one message that has a key. The entries whose hashes select the same slot form
a chain, a linked list from the newest entry to the oldest. Entries are identified by their index in the file.
The header field `count` is the index at which the next entry will be stored; it starts at 1. All numbers are
big-endian.
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.memory import load_i32, load_i64, store_i32, store_i64

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20

# Columns of the keys that `dispatch_records` finds and `insert_keys` takes.
KEY_HASH = 0
KEY_PHYSICAL_OFFSET = 1
KEY_TIMESTAMP = 2
KEY_FIELDS = 3

_SECONDS_MAX = 0x7FFFFFFF


@kernel()
def index_count(index: Bytes) -> int:
    """Return the index at which the next entry will be stored.

    That is the header field `count`, or 1 if the field is 0.
    """
    count = load_i32(index, 36)
    return count if count > 0 else 1


@kernel()
def insert_keys(index: Bytes, slots: int, capacity: int, keys: Numbers, first: int, end: int) -> int:
    """Insert entries for the keys in rows [first, end) of `keys`, until the index file is full.

    `capacity` is the number of entries of a full file, including entry 0, which is never used. Returns the
    number of entries inserted.
    """
    entries = HEADER_BYTES + SLOT_BYTES * slots
    count = index_count(index)
    used = load_i32(index, 32)
    begin = load_i64(index, 0)
    inserted = max(min(end - first, capacity - count), 0)
    modulus = np.uint32(slots)  # a 64-bit division takes twice as long
    timestamp = -1
    seconds = 0
    for row in range(first, first + inserted):
        if keys[row, KEY_TIMESTAMP] != timestamp:
            timestamp = int(keys[row, KEY_TIMESTAMP])
            seconds = (timestamp - begin) // 1000 if begin > 0 else 0
            seconds = min(max(seconds, 0), _SECONDS_MAX)
        slot = HEADER_BYTES + SLOT_BYTES * np.int64(np.uint32(keys[row, KEY_HASH]) % modulus)
        previous = load_i32(index, slot)
        # `|` instead of `or`: a branch would be mispredicted half of the time.
        is_fresh = (previous <= 0) | (previous > count)
        previous = 0 if is_fresh else previous
        used += 1 if is_fresh else 0
        entry = entries + ENTRY_BYTES * count
        store_i32(index, entry, keys[row, KEY_HASH])
        store_i64(index, entry + 4, keys[row, KEY_PHYSICAL_OFFSET])
        store_i32(index, entry + 12, seconds)
        store_i32(index, entry + 16, previous)
        store_i32(index, slot, count)
        if count == 1:
            begin = timestamp
            timestamp = -1  # compute the seconds of the next entry from this beginTimestamp
            store_i64(index, 0, begin)
            store_i64(index, 16, keys[row, KEY_PHYSICAL_OFFSET])
        count += 1
    if inserted:
        store_i64(index, 8, keys[first + inserted - 1, KEY_TIMESTAMP])
        store_i64(index, 24, keys[first + inserted - 1, KEY_PHYSICAL_OFFSET])
        store_i32(index, 32, used)
        store_i32(index, 36, count)
    return inserted


@kernel()
def select_key(index: Bytes, slots: int, key_hash: int, begin_ms: int, end_ms: int, found: Numbers) -> int:
    """Find the entries that have this key hash and a time in [begin_ms, end_ms].

    The CommitLog offsets of these entries are written to `found`, newest first, until `found` is full. Entry
    times have a resolution of one second. Another thread may insert entries meanwhile: entries that the
    header field `count` does not include yet are skipped.

    Returns:
        The number of entries found.
    """
    entries = HEADER_BYTES + SLOT_BYTES * slots
    capacity = (index.size - entries) // ENTRY_BYTES
    count = index_count(index)
    begin = load_i64(index, 0)
    number = load_i32(index, HEADER_BYTES + SLOT_BYTES * (key_hash % slots))
    matches = 0
    while 0 < number < capacity and matches < found.size:
        entry = entries + ENTRY_BYTES * number
        # RocketMQ stores the first entry's seconds relative to the previous file: use beginTimestamp instead.
        time_ms = begin + (load_i32(index, entry + 12) * 1000 if number > 1 else 0)
        is_meant = load_i32(index, entry) == key_hash and begin_ms - 999 <= time_ms <= end_ms
        if is_meant and number < count:
            found[matches] = load_i64(index, entry + 4)
            matches += 1
        before = load_i32(index, entry + 16)
        if before >= number:  # damaged: a chain must lead to older entries
            break
        number = before
    return matches


@kernel()
def index_is_valid(index: Bytes, slots: int, capacity: int, newest: NDArray[np.int32]) -> bool:
    """Return True if the slots and chains are exactly those that inserting the entries in order would create.

    The CommitLog offsets of the entries must also be ascending and agree with the header. `newest` is a work
    area of `slots` zeros.
    """
    entries = HEADER_BYTES + SLOT_BYTES * slots
    count = index_count(index)
    if count > capacity:
        return False
    offset = load_i64(index, 16)
    for number in range(1, count):
        entry = entries + ENTRY_BYTES * number
        key_hash = load_i32(index, entry)
        physical = load_i64(index, entry + 4)
        if key_hash < 0 or physical < offset or load_i32(index, entry + 12) < 0:
            return False
        slot = key_hash % slots
        if load_i32(index, entry + 16) != newest[slot]:
            return False
        newest[slot] = number
        offset = physical
    if count > 1 and offset != load_i64(index, 24):
        return False
    used = 0
    for slot in range(slots):
        if load_i32(index, HEADER_BYTES + SLOT_BYTES * slot) != newest[slot]:
            return False
        if newest[slot] != 0:
            used += 1
    return used == load_i32(index, 32)


@kernel()
def entry_at_or_after(index: Bytes, slots: int, physical_offset: int) -> int:
    """Return the index of the first entry whose record is at or after CommitLog offset `physical_offset`.

    If there is no such entry, the result is the index at which the next entry will be stored.
    """
    entries = HEADER_BYTES + SLOT_BYTES * slots
    low = 1
    high = index_count(index)
    while low < high:
        middle = (low + high) // 2
        if load_i64(index, entries + ENTRY_BYTES * middle + 4) < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


@kernel()
def written_entries(index: Bytes, slots: int, capacity: int) -> int:
    """Return the index after the last entry that contains data.

    After a kill during an insert this exceeds the header field `count`, which is written last.
    """
    number = index_count(index)
    entry = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * number
    while number < capacity and (load_i64(index, entry) != 0 or load_i64(index, entry + 8) != 0):
        number += 1
        entry += ENTRY_BYTES
    return number


@kernel()
def cut_entries(index: Bytes, slots: int, cut: int, written: int) -> None:
    """Remove the entries with the indexes [cut, written) from all chains, and update the header.

    endTimestamp becomes the time of the last remaining entry, which has a resolution of one second.
    """
    entries = HEADER_BYTES + SLOT_BYTES * slots
    used = 0
    for slot in range(slots):
        place = HEADER_BYTES + SLOT_BYTES * slot
        number = load_i32(index, place)
        while cut <= number < written:
            before = load_i32(index, entries + ENTRY_BYTES * number + 16)
            number = before if before < number else 0
        number = number if 0 < number < cut else 0
        if number != load_i32(index, place):
            store_i32(index, place, number)
        if number > 0:
            used += 1
    index[entries + ENTRY_BYTES * cut : entries + ENTRY_BYTES * written] = 0
    if cut > 1:
        last = entries + ENTRY_BYTES * (cut - 1)
        store_i64(index, 8, load_i64(index, 0) + load_i32(index, last + 12) * 1000)
        store_i64(index, 24, load_i64(index, last + 4))
    else:
        index[0:32] = 0
    store_i32(index, 32, used)
    store_i32(index, 36, cut)
