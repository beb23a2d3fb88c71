"""Index files against the log: the entries that inserting its keys would make, compared with those there.

Chains are followed by the keys of the log, not by what the entries say, so that one damaged entry is one
finding. The layout stands in `store.kernels.index`.
"""

import numpy as np
from numpy.typing import NDArray

from store.kernels.compiled import kernel
from store.kernels.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    KEY_HASH,
    KEY_PHYSICAL_OFFSET,
    KEY_TIMESTAMP,
    SLOT_BYTES,
)
from store.kernels.memory import load_i32, load_i64

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

# What `compare_keys` carries from call to call.
STATE_NUMBER = 0  # the next entry
STATE_BEGIN = 1  # the storeTimestamp of the first entry's record; 0 if it is not known
STATE_TIMESTAMP = 2  # that of the last entry's
STATE_PHYSICAL_OFFSET = 3  # where the last entry's record stands
STATE_BEFORE = 4  # the end of the file before it; −1 if that is not known
STATE_FIRST_OFFSET = 5  # where the first entry's record stands
STATE_FIELDS = 6

# Columns of a problem.
PROBLEM_CODE = 0
PROBLEM_NUMBER = 1  # of the entry, or the key's physical offset
PROBLEM_EXPECTED = 2
PROBLEM_FOUND = 3
PROBLEM_FIELDS = 4

HASH = 1
PHYSICAL_OFFSET = 2
SECONDS = 3
CHAIN = 4
EXTRA = 5  # no record has this key
MISSING = 6  # the key of a record that has no entry
SLOT = 7

_SECONDS_MAX = 0x7FFFFFFF


@kernel()
def _tell(problems: Numbers, count: int, code: int, number: int, expected: int, found: int) -> int:
    problems[count, PROBLEM_CODE] = code
    problems[count, PROBLEM_NUMBER] = number
    problems[count, PROBLEM_EXPECTED] = expected
    problems[count, PROBLEM_FOUND] = found
    return count + 1


@kernel()
def _is_gone(offset: int, log_min: int, holes: Numbers) -> bool:
    """Whether no record can be expected at an entry's offset; zeros are no entry."""
    gone = 0 < offset < log_min
    for hole in range(holes.shape[0]):
        gone |= holes[hole, 0] <= offset < holes[hole, 1]
    return gone


@kernel()
def _is_again(offset: int, wanted: int, state: Numbers) -> bool:
    """Whether an entry is of a record that has had its entries: RocketMQ's restarts make such."""
    return offset < wanted and offset <= state[STATE_PHYSICAL_OFFSET] and state[STATE_NUMBER] > 1


@kernel()
def _chain(
    index: Bytes,
    entry: int,
    number: int,
    key_hash: int,
    newest: NDArray[np.int32],
    problems: Numbers,
    count: int,
) -> int:
    slot = key_hash % newest.size
    before = load_i32(index, entry + 16)
    if before != newest[slot]:
        count = _tell(problems, count, CHAIN, number, newest[slot], before)
    newest[slot] = number
    return count


@kernel()
def _seconds(timestamp: int, begin: int) -> int:
    return min(max((timestamp - begin) // 1000, 0), _SECONDS_MAX) if begin > 0 else 0


@kernel()
def _compare_fields(
    index: Bytes, entry: int, keys: Numbers, row: int, state: Numbers, problems: Numbers, count: int
) -> int:
    number = state[STATE_NUMBER]
    key_hash = load_i32(index, entry)
    if key_hash != keys[row, KEY_HASH]:
        count = _tell(problems, count, HASH, number, keys[row, KEY_HASH], key_hash)
    offset = load_i64(index, entry + 4)
    if offset != keys[row, KEY_PHYSICAL_OFFSET]:
        count = _tell(problems, count, PHYSICAL_OFFSET, number, keys[row, KEY_PHYSICAL_OFFSET], offset)
    seconds = load_i32(index, entry + 12)
    timestamp = keys[row, KEY_TIMESTAMP]
    expected = _seconds(timestamp, state[STATE_BEGIN])
    if number == 1:
        # RocketMQ counts the first entry's seconds from the end of the file before.
        since = _seconds(timestamp, state[STATE_BEFORE])
        expected = seconds if state[STATE_BEFORE] < 0 and seconds >= 0 else since if seconds == since else 0
        state[STATE_BEGIN] = timestamp
        state[STATE_FIRST_OFFSET] = keys[row, KEY_PHYSICAL_OFFSET]
    if seconds != expected:
        count = _tell(problems, count, SECONDS, number, expected, seconds)
    state[STATE_TIMESTAMP] = timestamp
    state[STATE_PHYSICAL_OFFSET] = keys[row, KEY_PHYSICAL_OFFSET]
    return count


@kernel()
def _agree(index: Bytes, entry: int, keys: Numbers, row: int) -> bool:
    return (
        load_i32(index, entry) == keys[row, KEY_HASH]
        and load_i64(index, entry + 4) == keys[row, KEY_PHYSICAL_OFFSET]
    )


@kernel()
def pass_own(
    index: Bytes, entry: int, state: Numbers, newest: NDArray[np.int32], problems: Numbers, count: int
) -> int:
    """Go over an entry whose record is not there any more: it is believed."""
    key_hash = load_i32(index, entry)
    if key_hash >= 0:
        count = _chain(index, entry, state[STATE_NUMBER], key_hash, newest, problems, count)
    if state[STATE_NUMBER] == 1:
        state[STATE_BEGIN] = load_i64(index, 0)
        state[STATE_FIRST_OFFSET] = load_i64(index, entry + 4)
    state[STATE_TIMESTAMP] = state[STATE_BEGIN] + load_i32(index, entry + 12) * 1000
    state[STATE_PHYSICAL_OFFSET] = load_i64(index, entry + 4)
    state[STATE_NUMBER] += 1
    return count


@kernel()
def compare_keys(
    index: Bytes,
    entry_count: int,
    keys: Numbers,
    first: int,
    end: int,
    newest: NDArray[np.int32],
    state: Numbers,
    log_min: int,
    log_end: int,
    holes: Numbers,
    is_strict: bool,
    problems: Numbers,
) -> tuple[int, int]:
    """Compare rows [first, end) of `keys` with the entries from STATE_NUMBER on, below `entry_count`.

    Returns the row where it stopped – at the end, at that of the file, or as `problems` is full – and how
    many problems there are. `newest` has the newest entry of each slot so far. Without `is_strict` the file
    may lack keys, and have entries twice, as RocketMQ's do.
    """
    entries = HEADER_BYTES + SLOT_BYTES * newest.size
    row = first
    count = 0
    while row < end and state[STATE_NUMBER] < entry_count and count + 8 < problems.shape[0]:
        number = state[STATE_NUMBER]
        entry = entries + ENTRY_BYTES * number
        offset = load_i64(index, entry + 4)
        wanted = keys[row, KEY_PHYSICAL_OFFSET]
        if _agree(index, entry, keys, row):
            pass
        elif _is_gone(offset, log_min, holes) or (not is_strict and _is_again(offset, wanted, state)):
            count = pass_own(index, entry, state, newest, problems, count)
            continue
        else:
            following = entry + ENTRY_BYTES if number + 1 < entry_count else entry
            is_one_off = following > entry and row + 1 < end and _agree(index, following, keys, row + 1)
            next_offset = load_i64(index, following + 4)
            if not is_one_off and (
                (row + 1 < end and _agree(index, entry, keys, row + 1))
                or wanted < offset <= next_offset < log_end
            ):
                if is_strict:
                    count = _tell(problems, count, MISSING, wanted, 0, 0)
                row += 1
                continue
            if not is_one_off and following > entry and _agree(index, following, keys, row):
                count = _tell(problems, count, EXTRA, number, 0, offset)
                count = pass_own(index, entry, state, newest, problems, count)
                continue
        count = _compare_fields(index, entry, keys, row, state, problems, count)
        count = _chain(index, entry, number, keys[row, KEY_HASH], newest, problems, count)
        state[STATE_NUMBER] += 1
        row += 1
    return row, count


@kernel()
def pass_rest(
    index: Bytes,
    entry_count: int,
    newest: NDArray[np.int32],
    state: Numbers,
    log_min: int,
    log_end: int,
    holes: Numbers,
    problems: Numbers,
) -> int:
    """Go over the entries that are left when there are no more keys; those within the log are problems."""
    entries = HEADER_BYTES + SLOT_BYTES * newest.size
    count = 0
    while state[STATE_NUMBER] < entry_count and count + 8 < problems.shape[0]:
        number = state[STATE_NUMBER]
        entry = entries + ENTRY_BYTES * number
        offset = load_i64(index, entry + 4)
        is_gone = _is_gone(offset, log_min, holes)
        if not is_gone and offset < log_end and offset != state[STATE_PHYSICAL_OFFSET]:
            count = _tell(problems, count, EXTRA, number, 0, offset)
        count = pass_own(index, entry, state, newest, problems, count)
    return count


@kernel()
def compare_slots(
    index: Bytes, newest: NDArray[np.int32], first: int, entry_count: int, may_lead: bool, problems: Numbers
) -> tuple[int, int]:
    """Compare the slots from `first` on; returns where it stopped, and how many problems there are.

    With `may_lead` a slot may point to an entry that a writer has added since.
    """
    count = 0
    slot = first
    while slot < newest.size and count < problems.shape[0]:
        there = load_i32(index, HEADER_BYTES + SLOT_BYTES * slot)
        if there != newest[slot] and not (may_lead and there >= entry_count):
            count = _tell(problems, count, SLOT, slot, newest[slot], there)
        slot += 1
    return slot, count
