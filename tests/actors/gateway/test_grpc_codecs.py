"""Frames of messages, timeouts and texts of gRPC."""

from __future__ import annotations

import gzip
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.gateway.grpc.gzip_data import GzipInvalid, inflate
from actors.gateway.grpc.messages import MessageReader, encode_frame
from actors.gateway.grpc.status import CallFailed, decode_timeout_ns, encode_status_text


@pytest.mark.parametrize(
    ("text", "ns"), [("1n", 1), ("3S", 3_000_000_000), ("00000001H", 3_600_000_000_000), ("5m", 5_000_000)]
)
def test_timeouts_are_decoded(text: str, ns: int) -> None:
    assert decode_timeout_ns(text) == ns


@pytest.mark.parametrize("text", ["", "S", "1", "-1S", "123456789S", "1.5S", "1s", "١S"])
def test_invalid_timeouts_are_refused(text: str) -> None:
    with pytest.raises(CallFailed, match="up to 8 digits"):
        decode_timeout_ns(text)


def test_messages_of_status_are_percent_encoded() -> None:
    assert encode_status_text("100 % – \n") == "100 %25 %E2%80%93 %0A"


@given(
    st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 999), max_size=8), st.booleans()
)
def test_messages_are_split_at_any_byte(messages: list[bytes], cuts: list[int], is_compressed: bool) -> None:
    pack = (lambda raw: struct.pack(">BI", 1, len(raw)) + raw) if is_compressed else encode_frame
    stream = b"".join(pack(gzip.compress(each)) if is_compressed else pack(each) for each in messages)
    reader, found = MessageReader("gzip", 1000), []
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    for begin, end in zip((0, *places), (*places, len(stream)), strict=True):
        found += reader.feed(stream[begin:end])
    assert ([each.plain_bytes for each in found], reader.size_bytes) == ([len(each) for each in messages], 0)
    assert [inflate(each.data) if is_compressed else each.data for each in found] == messages


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">BI", 0, 1001), "over the limit of 1,000"),
        (struct.pack(">BI", 2, 0), "compressed flag 2"),
        (
            (lambda raw: struct.pack(">BI", 1, len(raw)) + raw)(gzip.compress(bytes(100_000))),
            "over the limit",
        ),
    ],
)
def test_invalid_messages_are_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(CallFailed, match=reason):
        MessageReader("gzip", 1000).feed(frame)


def test_a_compressed_message_without_encoding_is_refused() -> None:
    with pytest.raises(CallFailed, match="grpc-encoding"):
        MessageReader("identity", 1000).feed(struct.pack(">BI", 1, 0))


GZIP = gzip.compress(b"x" * 100, mtime=0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "incomplete gzip"),
        (b"abc", "not valid gzip"),
        (GZIP[:-4] + (90).to_bytes(4, "little"), "more than the 90 bytes"),
        (GZIP + gzip.compress(b"x" * 10, mtime=0), "more than the 10 bytes"),
    ],
    ids=range(4),
)
def test_gzip_that_is_not_as_it_declares_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(GzipInvalid, match=reason):
        inflate(data)
