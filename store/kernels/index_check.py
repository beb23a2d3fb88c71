"""Verifies index files: compares their entries with those that inserting the keys of the log would create.

The expected chains are computed from the keys of the log, not from the entries in the file, so that one
damaged entry causes one finding. `store.kernels.index` describes the layout of slots, entries and chains.
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

# State that `compare_keys` keeps between calls.
STATE_NUMBER = 0  # number of the next entry
STATE_BEGIN = 1  # storeTimestamp of the first entry's record, 0 if unknown
STATE_TIMESTAMP = 2  # storeTimestamp of the last entry's record
STATE_PHYSICAL_OFFSET = 3  # CommitLog offset of the last entry's record
STATE_BEFORE = 4  # endTimestamp of the previous file, −1 if unknown
STATE_FIRST_OFFSET = 5  # CommitLog offset of the first entry's record
STATE_FIELDS = 6

# Columns of a problem.
PROBLEM_CODE = 0
PROBLEM_NUMBER = 1  # number of the entry or slot; for MISSING, the CommitLog offset of the key's record
PROBLEM_EXPECTED = 2
PROBLEM_FOUND = 3
PROBLEM_FIELDS = 4

HASH = 1
PHYSICAL_OFFSET = 2
SECONDS = 3
CHAIN = 4
EXTRA = 5  # an entry for a key that no record has
MISSING = 6  # a key of a record without an entry
SLOT = 7

_SECONDS_MAX = 0x7FFFFFFF
_END_OFFSET_AT = 24  # endPhyOffset in the header


@kernel()
def _add_problem(problems: Numbers, count: int, code: int, number: int, expected: int, found: int) -> int:
    problems[count, PROBLEM_CODE] = code
    problems[count, PROBLEM_NUMBER] = number
    problems[count, PROBLEM_EXPECTED] = expected
    problems[count, PROBLEM_FOUND] = found
    return count + 1


@kernel()
def _is_gone(offset: int, log_min: int, holes: Numbers) -> bool:
    """Return True if the record at CommitLog offset `offset` cannot be read to check its index entry.

    That is the case if the record was deleted, or is in a damaged range (hole) of the log.
    """
    gone = 0 < offset < log_min
    for hole in range(holes.shape[0]):
        gone |= holes[hole, 0] <= offset < holes[hole, 1]
    return gone


@kernel()
def _is_duplicate(offset: int, wanted: int, state: Numbers) -> bool:
    """Return True if an entry indexes a record a second time, which a restart of RocketMQ may cause.

    `offset` is the CommitLog offset in the entry, `wanted` that of the next expected key.
    """
    return offset < wanted and offset <= state[STATE_PHYSICAL_OFFSET] and state[STATE_NUMBER] > 1


@kernel()
def _check_chain(
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
        count = _add_problem(problems, count, CHAIN, number, newest[slot], before)
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
        count = _add_problem(problems, count, HASH, number, keys[row, KEY_HASH], key_hash)
    offset = load_i64(index, entry + 4)
    if offset != keys[row, KEY_PHYSICAL_OFFSET]:
        count = _add_problem(problems, count, PHYSICAL_OFFSET, number, keys[row, KEY_PHYSICAL_OFFSET], offset)
    seconds = load_i32(index, entry + 12)
    timestamp = keys[row, KEY_TIMESTAMP]
    expected = _seconds(timestamp, state[STATE_BEGIN])
    if number == 1:
        # RocketMQ counts the seconds of the first entry from the endTimestamp of the previous file.
        since = _seconds(timestamp, state[STATE_BEFORE])
        expected = seconds if state[STATE_BEFORE] < 0 and seconds >= 0 else since if seconds == since else 0
        state[STATE_BEGIN] = timestamp
        state[STATE_FIRST_OFFSET] = keys[row, KEY_PHYSICAL_OFFSET]
    if seconds != expected:
        count = _add_problem(problems, count, SECONDS, number, expected, seconds)
    state[STATE_TIMESTAMP] = timestamp
    state[STATE_PHYSICAL_OFFSET] = keys[row, KEY_PHYSICAL_OFFSET]
    return count


@kernel()
def _is_entry_of(index: Bytes, entry: int, keys: Numbers, row: int) -> bool:
    return (
        load_i32(index, entry) == keys[row, KEY_HASH]
        and load_i64(index, entry + 4) == keys[row, KEY_PHYSICAL_OFFSET]
    )


@kernel()
def accept_entry(
    index: Bytes, entry: int, state: Numbers, newest: NDArray[np.int32], problems: Numbers, count: int
) -> int:
    """Accept an entry whose record cannot be checked: assume that its fields are right and advance `state`.

    `problems` contains `count` problems; the chain of the entry may add one. Returns the new number of
    problems.
    """
    key_hash = load_i32(index, entry)
    if key_hash >= 0:
        count = _check_chain(index, entry, state[STATE_NUMBER], key_hash, newest, problems, count)
    if state[STATE_NUMBER] == 1:
        state[STATE_BEGIN] = load_i64(index, 0)
        state[STATE_FIRST_OFFSET] = load_i64(index, entry + 4)
    state[STATE_TIMESTAMP] = state[STATE_BEGIN] + load_i32(index, entry + 12) * 1000
    state[STATE_PHYSICAL_OFFSET] = load_i64(index, entry + 4)
    state[STATE_NUMBER] += 1
    return count


@kernel()
def compare_keys(
    index: Bytes,  # the index file
    entry_count: int,
    keys: Numbers,  # keys of the log (KEY_FIELDS of store.kernels.index)
    first: int,
    end: int,
    newest: NDArray[np.int32],  # the newest entry of each slot so far; updated
    state: Numbers,  # state between calls (STATE_FIELDS); updated
    log_min: int,  # first offset of the log: entries below it cannot be checked
    log_end: int,
    holes: Numbers,  # damaged ranges of the log: (begin, end) per row
    is_strict: bool,
    problems: Numbers,  # output: one row per problem (PROBLEM_FIELDS)
) -> tuple[int, int]:
    """Compare the keys of the log in rows [first, end) of `keys` with the next entries of the index file.

    The next entry is that with the index `state[STATE_NUMBER]`. With `is_strict`, missing keys and duplicate
    entries are problems; files written by RocketMQ may have them. Stops at the row `end`, after the last
    entry, or when `problems` is full.

    Returns:
        The row of `keys` at which the comparison stopped, and the number of problems.
    """
    entries = HEADER_BYTES + SLOT_BYTES * newest.size
    row = first
    count = 0
    while row < end and state[STATE_NUMBER] < entry_count and count + 8 < problems.shape[0]:
        number = state[STATE_NUMBER]
        entry = entries + ENTRY_BYTES * number
        offset = load_i64(index, entry + 4)
        wanted = keys[row, KEY_PHYSICAL_OFFSET]
        if _is_entry_of(index, entry, keys, row):
            pass
        elif _is_gone(offset, log_min, holes) or (not is_strict and _is_duplicate(offset, wanted, state)):
            count = accept_entry(index, entry, state, newest, problems, count)
            continue
        else:
            following = entry + ENTRY_BYTES if number + 1 < entry_count else entry
            is_one_off = following > entry and row + 1 < end and _is_entry_of(index, following, keys, row + 1)
            # the header (endPhyOffset) repeats the offset of the last entry: another one there is damage
            next_offset = load_i64(index, following + 4)
            is_confirmed = following > entry or offset == load_i64(index, _END_OFFSET_AT)
            if not is_one_off and (
                (row + 1 < end and _is_entry_of(index, entry, keys, row + 1))
                or (is_confirmed and wanted < offset <= next_offset < log_end)
            ):
                if is_strict:
                    count = _add_problem(problems, count, MISSING, wanted, 0, 0)
                row += 1
                continue
            if not is_one_off and following > entry and _is_entry_of(index, following, keys, row):
                count = _add_problem(problems, count, EXTRA, number, 0, offset)
                count = accept_entry(index, entry, state, newest, problems, count)
                continue
        count = _compare_fields(index, entry, keys, row, state, problems, count)
        count = _check_chain(index, entry, number, keys[row, KEY_HASH], newest, problems, count)
        state[STATE_NUMBER] += 1
        row += 1
    return row, count


@kernel()
def check_remaining_entries(
    index: Bytes,
    entry_count: int,
    newest: NDArray[np.int32],
    state: Numbers,
    log_min: int,
    log_end: int,
    holes: Numbers,
    problems: Numbers,
) -> int:
    """Check the entries of an index file that remain after the last key of the log.

    An entry whose offset is within the log is a problem, because no record there has its key. The arguments
    are those of `compare_keys`. Returns the number of problems.
    """
    entries = HEADER_BYTES + SLOT_BYTES * newest.size
    count = 0
    while state[STATE_NUMBER] < entry_count and count + 8 < problems.shape[0]:
        number = state[STATE_NUMBER]
        entry = entries + ENTRY_BYTES * number
        offset = load_i64(index, entry + 4)
        is_gone = _is_gone(offset, log_min, holes)
        if not is_gone and offset < log_end and offset != state[STATE_PHYSICAL_OFFSET]:
            count = _add_problem(problems, count, EXTRA, number, 0, offset)
        count = accept_entry(index, entry, state, newest, problems, count)
    return count


@kernel()
def compare_slots(
    index: Bytes, newest: NDArray[np.int32], first: int, entry_count: int, may_lead: bool, problems: Numbers
) -> tuple[int, int]:
    """Compare the slots of an index file, beginning with slot `first`, with the expected slots in `newest`.

    `newest[i]` is the index of the newest entry in the chain of slot i. With `may_lead`, a slot may also
    point to an entry after the checked ones, because a writer may have added it meanwhile. Stops when
    `problems` is full.

    Returns:
        The slot at which the comparison stopped, and the number of problems.
    """
    count = 0
    slot = first
    while slot < newest.size and count < problems.shape[0]:
        there = load_i32(index, HEADER_BYTES + SLOT_BYTES * slot)
        if there != newest[slot] and not (may_lead and there >= entry_count):
            count = _add_problem(problems, count, SLOT, slot, newest[slot], there)
        slot += 1
    return slot, count
