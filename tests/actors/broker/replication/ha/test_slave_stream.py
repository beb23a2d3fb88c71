"""SlaveStream: where a stream begins, what counts as acknowledged, and which slaves are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.broker.replication.ha.ha_frames import CHUNK_BYTES, HaFrameReader, encode_report
from actors.broker.replication.ha.slave_stream import (
    REPORTS_AHEAD,
    SlaveRefused,
    SlaveStream,
)
from actors.broker.replication.ha.written_times import SAMPLES_MAX, WrittenTimes
from store.commitlog.positions import Positions

NS_PER_S = 1_000_000_000


def stream_of(minimum: int, written: int) -> SlaveStream:
    positions = Positions()
    positions.min, positions.written = minimum, written
    return SlaveStream(positions, 0)


@pytest.mark.parametrize(("report", "begins"), [(0, 100), (100, 100), (150, 150), (200, 200)])
def test_stream_begins_at_the_first_report(report: int, begins: int) -> None:
    stream = stream_of(100, 200)
    assert stream.received(encode_report(report), 1)
    assert (stream.next, stream.acknowledged) == (begins, report)


@pytest.mark.parametrize(
    ("report", "reason"), [(201, "records that this master does not have"), (99, "before the oldest record")]
)
def test_slave_with_another_log_is_refused_with_both_positions(report: int, reason: str) -> None:
    stream = stream_of(100, 200)
    with pytest.raises(SlaveRefused, match=reason) as refused:
        stream.received(encode_report(report), 1)
    assert str(report) in str(refused.value)
    assert not stream.is_streaming


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=20), st.integers(1, 200_000))
def test_only_sent_bytes_count_as_acknowledged(reports: list[int], size: int) -> None:
    stream = stream_of(0, 300_000)
    stream.received(encode_report(0), 1)
    frames = HaFrameReader().received(b"".join(stream.frames(memoryview(bytes(size)))))
    assert sum(len(frame.data) for frame in frames) == size == stream.next
    assert all(len(frame.data) <= CHUNK_BYTES for frame in frames)
    for report in reports:
        stream.received(encode_report(report), 1)
        assert stream.acknowledged == min(report, size)


def test_flood_of_reports_is_refused() -> None:
    stream = stream_of(0, 200)
    stream.received(encode_report(0) * REPORTS_AHEAD.limit, 1)
    with pytest.raises(SlaveRefused, match="something else uses the HA port"):
        stream.received(encode_report(0), 1)


def test_idle_slave_may_report_every_five_seconds_for_years() -> None:
    stream = stream_of(0, 200)
    for second in range(0, 100_000, 5):
        stream.received(encode_report(0), second * NS_PER_S)


def test_heartbeat_follows_five_seconds_without_frames() -> None:
    stream = stream_of(0, 200)
    assert stream.heartbeat(9 * NS_PER_S) is None
    stream.received(encode_report(200), 0)
    assert stream.heartbeat(5 * NS_PER_S - 1) is None
    (frame,) = HaFrameReader().received(stream.heartbeat(5 * NS_PER_S) or b"")
    assert (frame.offset, len(frame.data)) == (200, 0)
    assert stream.heartbeat(5 * NS_PER_S) is None
    stream.sent(8 * NS_PER_S)
    assert stream.heartbeat(10 * NS_PER_S) is None


def test_age_of_missing_records_is_that_of_the_first_one() -> None:
    times = WrittenTimes()
    assert times.age_s(0, 0) == 0
    for second, written in ((10, 100), (20, 100), (30, 300), (31, 301)):
        times.add(written, second * NS_PER_S)
    now_ns = 40 * NS_PER_S
    assert [times.age_s(offset, now_ns) for offset in (99, 100, 299, 300, 301, 500)] == [30, 10, 10, 9, 0, 0]
    for number in range(2 * SAMPLES_MAX):
        times.add(1_000 + number, now_ns)
    assert times.age_s(0, 50 * NS_PER_S) == 10
