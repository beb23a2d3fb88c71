"""The walk, dispatch, hash and index kernels give the results of their pure-Python equivalents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.consumequeue.unit import UNIT
from store.kernels import index, java_hash, units, walk
from store.kernels.index import KEY_FIELDS
from store.kernels.properties import FOUND_FIELDS
from store.kernels.units import valid_units
from store.message.properties import encode_properties
from store.message.record import RecordDraft, encode_blank, encode_record
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tests.store.kernels import plain_dispatch

DELAYS_MS = [0, 1000, 5000, 10_000]
BASE = 4096

text = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), max_size=12)
drafts = st.builds(
    lambda topic, queue_id, body, properties, sys_flag, host: RecordDraft(
        topic, queue_id, body, encode_properties(properties), sys_flag=sys_flag, born_host=bytes(host)
    ),
    topic=st.sampled_from(["A", "B", "SCHEDULE_TOPIC_XXXX", "тема", "T" * 127, "%RETRY%" + "g" * 150]),
    queue_id=st.integers(0, 3),
    body=st.binary(max_size=40),
    properties=st.fixed_dictionaries(
        {},
        optional={
            "TAGS": text,
            "KEYS": st.lists(text, max_size=4).map(" ".join),
            "UNIQ_KEY": text,
            "DELAY": st.sampled_from(["0", "1", "3", "9"]),
            "other": text,
            "KEYSX": text,
        },
    ),
    sys_flag=st.sampled_from([0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK]),
    host=st.sampled_from([8, 20]),
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def a_log(messages: list[RecordDraft], blank: bool = True) -> bytearray:
    log = bytearray()
    for number, draft in enumerate(messages):
        log += encode_record(draft, number, BASE + len(log), 1_700_000_000_000 + number, bytes(8))
    return log + encode_blank(64) + bytes(56) if blank else log


def as_array(log: bytearray) -> np.ndarray:
    return np.frombuffer(log, dtype=np.uint8)


def dispatch(log: bytearray, rows: int = 1000, groups: int = 64):
    out = (
        np.zeros((rows, units.ROW_FIELDS), np.int64),
        np.zeros((groups, units.GROUP_FIELDS), np.int64),
        np.zeros(256, np.int32),
        np.zeros(rows * 20, np.uint8),
        np.zeros((40_000, KEY_FIELDS), np.int64),
        np.zeros(FOUND_FIELDS, np.int64),
    )
    delays = np.array(DELAYS_MS, np.int64)
    position, status, count, group_count, key_count, _ = units.dispatch_records(
        as_array(log), 0, len(log), BASE, True, delays, *out
    )
    assert not out[2].any()
    queues = {}
    for group in out[1][:group_count].tolist():
        start = group[units.GROUP_TOPIC]
        topic = bytes(log[start : start + group[units.GROUP_TOPIC_LENGTH]]).decode()
        first = group[units.GROUP_FIRST_UNIT] * 20
        made = out[3][first : first + group[units.GROUP_COUNT] * 20].tobytes()
        if made:
            queues[topic, group[units.GROUP_QUEUE_ID]] = list(UNIT.iter_unpack(made))
    return position, status, count, queues, [tuple(key) for key in out[4][:key_count].tolist()]


@given(st.lists(drafts, max_size=12))
@quick
def test_dispatch_equals_plain_python(messages):
    log = a_log(messages)
    plain = plain_dispatch.plain_dispatch(log, 0, len(log), BASE, DELAYS_MS)
    position, status, count, queues, keys = dispatch(log)
    expected = {}
    for made in plain:
        if made.unit is not None:
            expected.setdefault((made.topic, made.queue_id), []).append(made.unit)
    assert (position, status, count) == (len(log) - 64, units.AT_BLANK, len(messages))
    assert queues == expected
    assert keys == [key for made in plain for key in made.keys]


@given(st.lists(drafts, min_size=1, max_size=6), st.data())
@quick
def test_check_record_at_equals_plain_python_for_damaged_logs(messages, data):
    log = a_log(messages)
    for _ in range(data.draw(st.integers(0, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    for position in range(0, len(log), 1):
        code = walk.check_record_at(as_array(log), position, len(log), BASE, True)
        plain = plain_dispatch.plain_check_record_at(log, position, len(log), BASE, True)
        assert code == plain or (code < 0 and plain < 0), position


def test_dispatch_with_full_output_stops_at_a_record_boundary():
    messages = [RecordDraft("Topic", number, b"") for number in range(10)]
    log = a_log(messages, blank=False)
    assert dispatch(log, rows=4)[2] == 4
    position, status, count, queues, _ = dispatch(log, groups=3)
    assert (status, count, len(queues)) == (units.AT_END, 3, 3)
    assert walk.check_record_at(as_array(log), position, len(log), BASE, True) > 0


def test_dispatch_stops_before_an_incomplete_record():
    log = a_log([RecordDraft("Topic", 0, b"one"), RecordDraft("Topic", 0, b"two")], blank=False)
    position, status, count, _, _ = dispatch(log[:-1])
    assert (status, count) == (walk.BEYOND_END, 1)
    assert position == len(log) // 2


ascii_text = st.text(st.characters(max_codepoint=127), min_size=8)


@given(st.binary(max_size=40) | text.map(str.encode) | ascii_text.map(str.encode))
@quick
def test_java_hash_kernels_equal_plain_python(data):
    array = np.frombuffer(data, dtype=np.uint8)
    value = java_hash.hash_bytes(array, 0, len(array), 0)
    assert value == plain_dispatch.plain_hash(data)
    assert java_hash.key_hash(value) == java_hash.plain_key_hash(data)


def test_key_hash_of_min_value_is_zero():
    assert java_hash.key_hash(0x80000000) == 0
    assert java_hash.key_hash(0xFFFFFFFF) == 1


SLOTS, CAPACITY = 5, 40
keys_of_records = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 50), st.integers(0, 100_000)), max_size=60
).map(lambda rows: [(h, 100 * n + o, 1_700_000_000_000 + t) for n, (h, o, t) in enumerate(rows)])


def an_index() -> bytearray:
    return bytearray(index.HEADER_BYTES + 4 * SLOTS + 20 * CAPACITY)


def rows_of(keys) -> np.ndarray:
    return np.array(keys, dtype=np.int64).reshape(-1, KEY_FIELDS)


@given(keys_of_records, st.integers(1, 7))
@quick
def test_insert_keys_equals_plain_python(keys, step):
    compiled, plain = an_index(), an_index()
    inserted = sum(
        index.insert_keys(
            as_array(compiled), SLOTS, CAPACITY, rows_of(keys), first, min(first + step, len(keys))
        )
        for first in range(0, len(keys), step)
    )
    assert (
        inserted
        == plain_dispatch.plain_insert_keys(plain, SLOTS, CAPACITY, keys)
        == min(len(keys), CAPACITY - 1)
    )
    assert compiled == plain
    assert index.index_is_valid(as_array(compiled), SLOTS, CAPACITY, np.zeros(SLOTS, np.int32))


@given(keys_of_records, st.data())
@quick
def test_cut_entries_restores_the_earlier_state(keys, data):
    cut = data.draw(st.integers(0, min(len(keys), CAPACITY - 1)))
    truncated, before = an_index(), an_index()
    plain_dispatch.plain_insert_keys(truncated, SLOTS, CAPACITY, keys)
    plain_dispatch.plain_insert_keys(before, SLOTS, CAPACITY, keys[:cut])
    written = index.written_entries(as_array(truncated), SLOTS, CAPACITY)
    index.cut_entries(as_array(truncated), SLOTS, cut + 1, written)
    before[39] = max(before[39], 1)  # cut_entries writes the count 1, a new file has 0; both mean empty
    if cut:  # the exact end time is lost: entries have a resolution of one second
        seconds = int.from_bytes(truncated[8:16], "big")
        assert 0 <= int.from_bytes(before[8:16], "big") - seconds < 1000 or keys[cut - 1][2] < keys[0][2]
        truncated[8:16] = before[8:16]
    assert truncated == before


@given(keys_of_records)
@quick
def test_select_key_returns_the_newest_entries_first(keys):
    content = an_index()
    count = plain_dispatch.plain_insert_keys(content, SLOTS, CAPACITY, keys)
    for key_hash in {key[0] for key in keys[:count]}:
        found = np.empty(64, np.int64)
        matches = index.select_key(as_array(content), SLOTS, key_hash, 0, 1 << 60, found)
        assert found[:matches].tolist() == [
            offset for h, offset, _ in reversed(keys[:count]) if h == key_hash
        ]


@pytest.mark.parametrize("place", [8, 24, 32, 36, 41, 80, 84, 91, 92, 96, 99])
def test_index_is_valid_detects_damage(place):
    damaged = an_index()
    keys = [(n * 7, n, 1_700_000_000_000 + n) for n in range(1, 20)]
    plain_dispatch.plain_insert_keys(damaged, SLOTS, CAPACITY, keys)
    damaged[place] ^= 0x80
    is_valid = index.index_is_valid(as_array(damaged), SLOTS, CAPACITY, np.zeros(SLOTS, np.int32))
    assert is_valid == (place == 8)  # endTimestamp is not checked: it is stored in the header only


def test_valid_units_stops_at_the_first_invalid_unit():
    good = [(0, 100, 1), (100, 50, 2), (0, 0x7FFFFFFF, 0), (200, 100, 3)]
    for bad in [(250, 10, 0), (300, 0, 0), (300, -1, 0), (-1, 10, 0), (950, 100, 0)]:
        packed = b"".join(UNIT.pack(*unit) for unit in [*good, bad])
        assert valid_units(np.frombuffer(packed, np.uint8), 5, 0, 1000) == (4, 300), bad
