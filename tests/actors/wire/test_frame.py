"""FrameReader: streams split at any byte, long frames without copies, and bytes of other protocols."""

from __future__ import annotations

import os
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.wire.command import MAX_FRAME_BYTES, PREFIX, RemotingCommand, encode_command
from actors.wire.frame import (
    FIRST_ALLOCATION_BYTES,
    MAX_SPARE_BYTES,
    OWN_MEMORY_BYTES,
    SHARED_BUFFER_BYTES,
    CodeMarks,
    FrameReader,
    ReceiveMemory,
    describe_bytes,
)
from actors.wire.remoting_errors import ProtocolError
from benchmarks.processes import anonymous_bytes


def frame(number: int, body: bytes = b"") -> bytes:
    return encode_command(RemotingCommand(number, {"n": str(number)}, body))


def feed(reader: FrameReader, data: bytes) -> list[RemotingCommand]:
    """Pass bytes to the reader as a socket would, as many at a time as fit into its buffer."""
    commands = []
    while data:
        buffer = reader.get_buffer()
        assert len(buffer), "a transport closes the connection if its buffer is empty"
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        reader.received(count)
        while (command := reader.next_command()) is not None:
            commands.append(command)
    return commands


def test_stream_split_at_every_byte_gives_the_same_commands() -> None:
    stream = frame(1, b"one") + frame(2) + frame(3, b"three")
    for cut in range(1, len(stream)):
        reader = FrameReader(ReceiveMemory())
        found = feed(reader, stream[:cut]) + feed(reader, stream[cut:])
        assert [(each.code, bytes(each.body)) for each in found] == [(1, b"one"), (2, b""), (3, b"three")]
        assert not reader.has_partial


def test_several_frames_are_recognized_by_the_bytes_after_the_first() -> None:
    first, second = frame(1, b"one"), frame(2)
    for data, has_several in (
        (first[:3], False),
        (first[:-1], False),
        (first, False),
        (first + second, True),
    ):
        reader = FrameReader(ReceiveMemory())
        reader.get_buffer()[: len(data)] = data
        reader.received(len(data))
        assert reader.has_several is has_several


def test_only_the_beginning_of_the_next_long_frame_is_received_for_copying() -> None:
    reader = FrameReader(ReceiveMemory())
    assert len(reader.get_buffer()) == SHARED_BUFFER_BYTES
    [first] = feed(reader, frame(1, b"x" * SHARED_BUFFER_BYTES))
    beginning = len(reader.get_buffer())
    assert beginning < SHARED_BUFFER_BYTES / 10
    commands = feed(reader, frame(2, b"y" * SHARED_BUFFER_BYTES) + frame(3))
    assert [len(each.body) for each in (first, *commands)] == [SHARED_BUFFER_BYTES, SHARED_BUFFER_BYTES, 0]
    assert len(reader.get_buffer()) == SHARED_BUFFER_BYTES, "the last frame was short"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3 * OWN_MEMORY_BYTES), min_size=1, max_size=3), st.data())
def test_frames_of_two_connections_do_not_mix(sizes: list[int], data: st.DataObject) -> None:
    memory = ReceiveMemory()
    streams = [
        b"".join(frame(c * 100 + i, bytes([c]) * size) for i, size in enumerate(sizes)) for c in (1, 2)
    ]
    readers = [FrameReader(memory), FrameReader(memory)]
    found: list[list[tuple[int, bytes]]] = [[], []]
    while any(streams):
        which = data.draw(st.sampled_from([c for c in (0, 1) if streams[c]]))
        count = data.draw(st.sampled_from([5_000, 40_000, 100_001]))
        chunk, streams[which] = streams[which][:count], streams[which][count:]
        found[which] += [(each.code, bytes(each.body)) for each in feed(readers[which], chunk)]
    for c in (0, 1):
        assert found[c] == [((c + 1) * 100 + i, bytes([c + 1]) * size) for i, size in enumerate(sizes)]
    assert memory.assembly_bytes == 0


@pytest.mark.parametrize("size", [SHARED_BUFFER_BYTES, 3 * FIRST_ALLOCATION_BYTES, MAX_SPARE_BYTES])
def test_body_of_a_long_frame_is_a_writable_view_of_its_own_buffer(size: int) -> None:
    reader = FrameReader(ReceiveMemory())
    (command,) = feed(reader, frame(1, b"x" * size))
    assert isinstance(command.body, memoryview)
    assert len(command.body) == size
    assert not command.body.readonly
    assert command.body == b"x" * size


def test_buffer_of_a_long_frame_is_reused_only_after_its_views_are_released() -> None:
    reader = FrameReader(ReceiveMemory())
    (held,) = feed(reader, frame(1, b"1" * SHARED_BUFFER_BYTES))
    (other,) = feed(reader, frame(2, b"2" * SHARED_BUFFER_BYTES))
    assert isinstance(held.body, memoryview)
    assert isinstance(other.body, memoryview)
    assert held.body.obj is not other.body.obj
    assert held.body == b"1" * SHARED_BUFFER_BYTES
    first = held.body.obj
    held.body.release()
    (third,) = feed(reader, frame(3, b"3" * SHARED_BUFFER_BYTES))
    assert isinstance(third.body, memoryview)
    assert third.body.obj is first


def test_long_frames_of_similar_length_reuse_the_same_buffers() -> None:
    """Buffers that earlier frames outgrew, or that are a byte too short, do not displace those."""
    reader, least = FrameReader(ReceiveMemory()), 4 * FIRST_ALLOCATION_BYTES
    held: deque[memoryview] = deque()
    used = {}
    for number in range(40):
        (command,) = feed(reader, frame(number, bytes(least + number)))
        assert isinstance(command.body, memoryview)
        held.append(command.body)
        if len(held) > 8:  # as a consumer's unread chunks
            held.popleft().release()
        used[id(command.body.obj)] = command.body.obj
        del command
    assert len(used) <= 10


def test_large_frame_length_alone_allocates_only_the_first_buffer() -> None:
    memory = ReceiveMemory()
    readers = [FrameReader(memory) for _ in range(3)]
    for reader in readers:
        feed(reader, PREFIX.pack(MAX_FRAME_BYTES, 100))
    assert memory.assembly_bytes == 3 * FIRST_ALLOCATION_BYTES
    for reader in readers:
        reader.close()
    assert memory.assembly_bytes == 0


def test_memory_of_incomplete_long_frames_is_released_to_the_system() -> None:
    """A heap keeps the pages between blocks that are still in use."""
    memory = ReceiveMemory()
    half = frame(1, bytes(MAX_FRAME_BYTES - 1024))[: MAX_FRAME_BYTES // 2]
    before = anonymous_bytes(os.getpid())
    readers = [FrameReader(memory) for _ in range(20)]
    for start in range(0, len(half), SHARED_BUFFER_BYTES):
        for reader in readers:
            feed(reader, half[start : start + SHARED_BUFFER_BYTES])
    held = anonymous_bytes(os.getpid()) - before
    assert len(readers) * len(half) // 2 < held <= memory.assembly_bytes + 16 * SHARED_BUFFER_BYTES
    for reader in readers:
        reader.close()
    assert anonymous_bytes(os.getpid()) - before < held // 4


def test_frames_set_aside_are_decoded_later_without_affecting_others() -> None:
    memory = ReceiveMemory()
    reader, other = FrameReader(memory), FrameReader(memory)
    stream = frame(1) + frame(2) + frame(3)[:-1]
    reader.get_buffer()[: len(stream)] = stream
    reader.received(len(stream))
    first = reader.next_command()
    reader.set_aside()
    assert [each.code for each in feed(other, frame(9))] == [9]
    reader.resume()
    second = reader.next_command()
    assert first is not None
    assert second is not None
    assert (first.code, second.code, reader.next_command()) == (1, 2, None)
    assert [each.code for each in feed(reader, frame(3)[-1:])] == [3]


@pytest.mark.parametrize(
    ("first", "looks_like"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (b"POST /x HTTP/1.1", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\n", "HTTP/2 or gRPC"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "a TLS handshake"),
        (b"PROXY TCP4 1.2.3.4", "the PROXY protocol"),
        (b"SSH-2.0-OpenSSH_9.6", "SSH"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "an unknown protocol"),
    ],
)
def test_other_protocols_are_recognized_by_their_first_bytes(first: bytes, looks_like: str) -> None:
    with pytest.raises(ProtocolError, match="exceeds the limit of 16,777,216") as error:
        feed(FrameReader(ReceiveMemory()), first)
    assert looks_like in error.value.looks_like
    assert looks_like in describe_bytes(first)
    assert len(describe_bytes(first + b"\xff" * 1000)) < 150


@pytest.mark.parametrize(("total", "mark"), [(0, 0), (3, 0), (10, 7), (MAX_FRAME_BYTES + 1, 10)])
def test_invalid_frame_lengths_are_refused(total: int, mark: int) -> None:
    with pytest.raises(ProtocolError):
        feed(FrameReader(ReceiveMemory()), PREFIX.pack(total, mark) + b"{}")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_random_frame_bytes_decode_or_raise_protocol_error(chunks: list[bytes]) -> None:
    reader = FrameReader(ReceiveMemory())
    try:
        for chunk in chunks:
            feed(reader, chunk)
    except ProtocolError as error:
        assert error.looks_like  # noqa: PT017 - any input may or may not be an error


SHOWN_BYTES = 24
"""Number of bytes of a frame from which its request code is recognized."""


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 9, 10, 11, 34, 32_000]), st.sampled_from([0, 1])), max_size=4),
    st.integers(0, 400),
)
def test_request_codes_are_recognized_in_incomplete_frames(
    given: list[tuple[int, int]], received: int
) -> None:
    costly = frozenset({11, 34, 32_000})
    stream, seen = b"", []
    for code, encoding in given:
        if len(stream) + SHOWN_BYTES <= received:
            seen.append(code)
        stream += encode_command(RemotingCommand(code, {"topic": "T"}, serialize_type=encoding))
    if received > len(stream):
        received = len(stream)
    reader = FrameReader(ReceiveMemory())
    reader.get_buffer()[:received] = stream[:received]
    reader.received(received)
    assert reader.has_only(CodeMarks(costly)) == (bool(seen) and costly.issuperset(seen))
    commands = [command.code for command in iter(reader.next_command, None)]
    assert commands == [code for code, _ in given[: len(commands)]]  # has_only has consumed nothing


@pytest.mark.parametrize(
    "header", [b'{"flag":0,"code":11}', b'{ "code":11, "flag":0}', b'{"code":11.5,"a":""}', b"11"]
)
def test_request_code_is_recognized_only_as_the_first_json_key(header: bytes) -> None:
    data = PREFIX.pack(4 + len(header), len(header)) + header + bytes(SHOWN_BYTES)
    reader = FrameReader(ReceiveMemory())
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    assert not reader.has_only(CodeMarks([11]))
