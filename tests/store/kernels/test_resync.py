"""The kernels that find records after damage give the results of their pure-Python equivalents."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.kernels import resync
from store.message.record import RecordDraft, encode_blank, encode_record
from tests.store.kernels import plain_dispatch

BASE = 4096
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

batches = st.lists(
    st.tuples(
        st.sampled_from(["A", "B"]),
        st.integers(0, 1),
        st.lists(st.binary(max_size=20), min_size=1, max_size=4),
        st.integers(0, 1),
    ),
    max_size=6,
)


def a_log(appends) -> bytearray:
    log = bytearray()
    offsets: dict[tuple[str, int], int] = {}
    timestamp = 1_700_000_000_000
    for topic, queue_id, bodies, later_ms in appends:
        timestamp += later_ms
        for body in bodies:
            offset = offsets.setdefault((topic, queue_id), 0)
            offsets[topic, queue_id] += 1
            draft = RecordDraft(topic, queue_id, body)
            log += encode_record(draft, offset, BASE + len(log), timestamp, bytes(8))
    return log + encode_blank(64) + bytes(56)


def as_array(log: bytearray) -> np.ndarray:
    return np.frombuffer(log, dtype=np.uint8)


def test_next_record_finds_valid_records_only():
    log = a_log([("A", 0, [b"body 0", b"body 1", b"body 2"], 0)])[:-64]
    size = len(log) // 3
    assert resync.next_record(as_array(log), 1, len(log), len(log), BASE) == size
    assert resync.next_record(as_array(log), 1, size, len(log), BASE) == size  # the search ends before it
    # With another base, each physicalOffset is wrong.
    assert resync.next_record(as_array(log), 1, len(log), len(log), BASE + 1) == len(log)
    log[size + 90] ^= 1
    assert resync.next_record(as_array(log), 1, len(log), len(log), BASE) == 2 * size


@given(batches, st.data())
@quick
def test_resync_kernels_equal_plain_python_for_damaged_logs(appends, data):
    log = a_log(appends)
    for _ in range(data.draw(st.integers(0, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    array, size = as_array(log), len(log)
    for start in range(0, size, data.draw(st.integers(1, 40))):
        stop = data.draw(st.integers(start, size))
        plain = plain_dispatch.plain_next_record(log, start, stop, size, BASE)
        assert resync.next_record(array, start, stop, size, BASE) == plain
        plain = plain_dispatch.plain_closing_blank(log, start, stop, size)
        assert resync.closing_blank(array, start, stop, size) == plain
        assert resync.append_end(array, start, size, BASE) == plain_dispatch.plain_append_end(
            log, start, size, BASE
        )


def test_append_end_stops_at_the_records_of_the_next_append():
    first, second = ("A", 0, [b"1", b"2"], 0), ("A", 0, [b"3"], 1)
    end = len(a_log([first])) - 64
    assert resync.append_end(as_array(a_log([first])), 0, end + 64, BASE) == end
    log = a_log([first, second])
    assert resync.append_end(as_array(log), 0, len(log), BASE) == end  # a later storeTimestamp


@given(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=6), st.data())
@quick
def test_next_bad_crc_property_equals_plain_python(bodies, data):
    log = bytearray()
    for number, (body, has_crc) in enumerate(bodies):
        draft = RecordDraft("Topic", 0, body, b"KEYS\x01k\x02")
        log += encode_record(draft, number, BASE + len(log), 1, bytes(8), append_crc=has_crc)
    assert resync.next_bad_crc_property(as_array(log), 0, len(log)) == (len(log), 0)
    if log:
        log[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    assert resync.next_bad_crc_property(
        as_array(log), 0, len(log)
    ) == plain_dispatch.plain_next_bad_crc_property(log, 0, len(log))
