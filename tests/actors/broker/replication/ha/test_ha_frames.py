"""RocketMQ's HA frames: streams split at any byte, bounds, and bytes of other protocols."""

from __future__ import annotations

import contextlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.broker.replication.ha.ha_frames import (
    DATA_BYTES_MAX,
    HEADER_BYTES,
    HaFrameReader,
    ReportReader,
    encode_header,
    encode_report,
)
from actors.wire.remoting_errors import ProtocolError

OFFSETS = st.integers(0, 2**63 - 1)
FRAMES = st.lists(st.tuples(OFFSETS, st.binary(max_size=40)), max_size=12)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def test_frames_have_the_bytes_of_rocketmq() -> None:
    assert encode_report(0x0102) == bytes.fromhex("0000000000000102")
    assert encode_header(0x0102, 3) == bytes.fromhex("000000000000010200000003")


@given(FRAMES, st.lists(st.integers(min_value=0), max_size=8))
def test_frames_are_read_however_the_stream_is_split(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_header(offset, len(data)) + data for offset, data in frames)
    reader = HaFrameReader()
    read = [
        (frame.offset, bytes(frame.data)) for part in split(stream, cuts) for frame in reader.received(part)
    ]
    assert read == frames
    assert reader.held_bytes == 0


@given(FRAMES, st.binary(max_size=20))
def test_frames_do_not_change_when_more_is_received(frames: list[tuple[int, bytes]], more: bytes) -> None:
    reader = HaFrameReader()
    read = reader.received(b"".join(encode_header(at, len(data)) + data for at, data in frames))
    reader.received(encode_header(7, len(more)) + more)
    assert [(frame.offset, bytes(frame.data)) for frame in read] == frames


@given(st.lists(OFFSETS, min_size=1), st.lists(st.integers(min_value=0), max_size=8))
def test_newest_report_is_read_however_the_stream_is_split(ends: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    read = [reader.received(part) for part in split(b"".join(map(encode_report, ends)), cuts)]
    reported = [end for end in read if end is not None]
    assert reported[-1] == ends[-1]
    assert set(reported) <= set(ends)


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=8))
def test_garbage_raises_only_protocol_errors_and_is_not_kept(garbage: bytes, cuts: list[int]) -> None:
    frames, reports = HaFrameReader(), ReportReader()
    for read in (frames.received, reports.received):
        with contextlib.suppress(ProtocolError):
            for part in split(garbage, cuts):
                read(part)
    assert frames.held_bytes <= len(garbage)


@pytest.mark.parametrize("report", [-1, -(2**63)])
def test_negative_report_is_refused(report: int) -> None:
    with pytest.raises(ProtocolError, match="negative log end"):
        ReportReader().received(encode_report(report))


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, DATA_BYTES_MAX + 1), (5, 2**31 - 1)])
def test_frame_out_of_bounds_is_refused_before_its_data_arrives(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="the limit is"):
        HaFrameReader().received(struct.pack(">qi", offset, size))


def test_greatest_frame_is_read() -> None:
    data = bytes(DATA_BYTES_MAX)
    reader = HaFrameReader()
    assert reader.received(encode_header(9, len(data))) == []
    (frame,) = reader.received(data)
    assert (frame.offset, len(frame.data)) == (9, DATA_BYTES_MAX)
    assert len(data) + HEADER_BYTES == 4 * 1024 * 1024
