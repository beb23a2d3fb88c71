"""Frame decoder: splits a byte stream into frames, without I/O and with few copies.

    | length (4) | encoding (1) | header length (3) | header | body |

All connections of an event loop receive into one shared buffer, because a loop reads one socket at a time.
The bytes of an incomplete frame are copied (`_kept`) and put in front of the next ones. A long frame is
received into a buffer of its own, which grows with the received bytes: a peer cannot make this process
allocate memory by sending a large length. Its place in the account of memory is reserved before.
"""

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from actors.wire.codes import SerializeType
from actors.wire.command import (
    HEADER_LENGTH_MASK,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    PREFIX,
    RemotingCommand,
    decode_command,
    decode_json_command,
)
from actors.wire.remoting_errors import ProtocolError

SHARED_BUFFER_BYTES: Final = 256 * 1024
# Frames of at least this size get their own buffer; an incomplete smaller frame is copied once.
OWN_MEMORY_BYTES: Final = 32 * 1024
FIRST_ALLOCATION_BYTES: Final = 256 * 1024
_BEGINNING_BYTES: Final = 16 * 1024
MAX_SPARES: Final = 16
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
# Header prefixes that contain the request code. In JSON `code` is the first key, as RocketMQ writes it.
_JSON_CODE: Final = b'{"code":%d,'
_ROCKETMQ_CODE: Final = struct.Struct(">H")
# Bytes of a frame that suffice to see its code.
_SHOWN_BYTES: Final = PREFIX.size + len(_JSON_CODE % 9_999_999)
MAX_SPARE_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
# Frames of a stream of batches differ in length by a few bytes, and should fit into the same buffers.
_ROUND_BYTES: Final = 64 * 1024
Memory = bytearray | mmap.mmap


class ReceiveMemory:
    """Receive buffers of the connections of one event loop: the shared buffer and the buffers of long frames.

    A buffer of a long frame is reused when no view of it exists any more, because touching new pages costs
    more than copying the bytes.
    """

    __slots__ = ("_spares", "assembly_bytes", "shared", "view")

    def __init__(self) -> None:
        self.shared = bytearray(SHARED_BUFFER_BYTES)
        self.view = memoryview(self.shared)
        self.assembly_bytes = 0
        self._spares: list[bytearray] = []

    def take(self, size_bytes: int, wanted_bytes: int) -> Memory:
        """Return a spare buffer of at least `wanted_bytes`, or a new one of `size_bytes`.

        A buffer that will be too long to be reused is mapped, because its pages are then released with it.
        From a heap, a thousand incomplete frames of 16 MiB left 500 MiB behind.
        """
        for index, spare in enumerate(self._spares):
            if len(spare) >= wanted_bytes and _is_free(spare):
                self.assembly_bytes += len(spare)
                return self._spares.pop(index)
        if size_bytes == wanted_bytes <= MAX_SPARE_BYTES:
            size_bytes += -size_bytes % _ROUND_BYTES
        self.assembly_bytes += size_bytes
        if wanted_bytes > MAX_SPARE_BYTES:
            return mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return bytearray(size_bytes)

    def release(self, memory: Memory, *, is_reusable: bool = False) -> None:
        """Keep the buffer of a complete frame for a later one; a handler may still hold a view of it.

        A buffer that was outgrown is too short for the frames of this size: it would only displace others.
        """
        self.assembly_bytes -= len(memory)
        if is_reusable and isinstance(memory, bytearray) and len(memory) <= MAX_SPARE_BYTES:
            if len(self._spares) >= MAX_SPARES:
                self._spares.pop(0)
            self._spares.append(memory)


def _is_free(memory: bytearray) -> bool:
    try:
        memory.pop()  # raises BufferError while a view exists
    except BufferError:
        return False
    memory.append(0)
    return True


class CodeMarks:
    """A set of request codes, with the header prefixes that identify them in undecoded frames."""

    __slots__ = ("_codes", "json", "rocketmq")

    def __init__(self, codes: Iterable[int] = ()) -> None:
        self._codes: set[int] = set()
        self.json: tuple[bytes, ...] = ()
        self.rocketmq: tuple[bytes, ...] = ()
        for code in codes:
            self.add(code)

    def __contains__(self, code: int) -> bool:
        return code in self._codes

    def begin(self, data: bytearray, at: int) -> bool:
        """Return True if the frame at position `at` has one of the codes, judged by its undecoded header."""
        marks = self.rocketmq if data[at + LENGTH_BYTES] == _ROCKETMQ else self.json
        return data.startswith(marks, at + PREFIX.size)

    def add(self, code: int) -> None:
        """Add a request code."""
        self._codes.add(code)
        self.json += (_JSON_CODE % code,)
        if code <= 0xFFFF:  # that encoding has 16 bits for a code: POP requests use JSON
            self.rocketmq += (_ROCKETMQ_CODE.pack(code),)


class Room(Protocol):
    """The place of a long frame in the account of memory."""

    def reserve(self, size_bytes: int) -> bool:
        """Return True if there is room; otherwise `FrameReader.take_place` is called later."""

    def give(self, size_bytes: int) -> None:
        """Release the place of a frame that is complete or dropped."""


class _Unlimited:
    def reserve(self, size_bytes: int) -> bool:
        return True

    def give(self, size_bytes: int) -> None:
        pass


class _LongFrame:
    """An incomplete frame in a buffer of its own, which grows with the received bytes."""

    __slots__ = ("_filled", "_memory", "_spares", "size_bytes")

    def __init__(self, spares: ReceiveMemory, size_bytes: int, beginning: memoryview) -> None:
        self._spares = spares
        self.size_bytes = size_bytes
        self._filled = len(beginning)
        # Leave free space: a transport that gets an empty buffer closes the connection.
        room = max(FIRST_ALLOCATION_BYTES, 2 * self._filled)
        self._memory = spares.take(min(size_bytes, room), size_bytes)
        self._memory[: self._filled] = beginning

    @property
    def is_complete(self) -> bool:
        return self._filled == self.size_bytes

    def get_buffer(self) -> memoryview:
        return memoryview(self._memory)[self._filled : self.size_bytes]

    def received(self, count: int) -> None:
        self._filled += count
        if self._filled == len(self._memory) and not self.is_complete:
            old = self._memory
            self._memory = self._spares.take(min(self.size_bytes, 2 * len(old)), self.size_bytes)
            self._memory[: self._filled] = memoryview(old)
            self._spares.release(old)

    def finish(self) -> RemotingCommand:
        """Decode the complete frame; its body is a view of the buffer."""
        memory = self._memory
        self._spares.release(memory, is_reusable=True)
        _, mark = PREFIX.unpack_from(memory)
        body_at = PREFIX.size + (mark & HEADER_LENGTH_MASK)
        body = memoryview(memory)[body_at : self.size_bytes]
        return decode_command(memory[PREFIX.size : body_at], mark >> 24, body)

    def drop(self) -> None:
        self._spares.release(self._memory)


class FrameReader:
    """Decodes the frames of one connection.

        get_buffer ──► received ──► next_command until None
                                      │
                                      └─ to stop earlier: set_aside … resume ──► next_command

    A caller that stops before None must call `set_aside` before it returns to the event loop, because the
    next connection overwrites the shared buffer.
    """

    __slots__ = (
        "_data",
        "_end",
        "_kept",
        "_long",
        "_memory",
        "_position",
        "_room",
        "_was_long",
        "frame_bytes",
        "frames",
        "received_bytes",
        "reserved_bytes",
        "waits_for_bytes",
    )

    def __init__(self, memory: ReceiveMemory, room: Room | None = None) -> None:
        self._memory = memory
        self._room = room or _Unlimited()
        self.reserved_bytes = 0
        """Size of the incomplete long frame."""
        self.waits_for_bytes = 0
        """Size of a long frame that waits for its place: the socket must not be read until `take_place`."""
        self._data: bytearray = memory.shared  # undecoded bytes are [_position, _end)
        self._position = 0
        self._end = 0
        self._kept = b""
        self._long: _LongFrame | None = None
        self._was_long = False
        self.frame_bytes = 0
        """Size of the frame that was decoded last."""
        self.frames = 0
        self.received_bytes = 0

    @property
    def has_partial(self) -> bool:
        """Whether bytes of an incomplete frame, or of frames that were set aside, are held."""
        return self._long is not None or bool(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that were set aside, or that wait for the rest of a short frame."""
        return len(self._kept)

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; valid until `received` is called."""
        if self._long is not None:
            return self._long.get_buffer()
        kept = self._kept
        if kept:
            self._memory.view[: len(kept)] = kept
            return self._memory.view[len(kept) :]
        # After a frame that the shared buffer cannot hold, the next one is probably as long: receive only its
        # beginning into the shared buffer, because that part must be copied.
        return self._memory.view[:_BEGINNING_BYTES] if self._was_long else self._memory.view

    def received(self, count: int) -> None:
        """Accept `count` bytes that have been written into the buffer."""
        self.received_bytes += count
        if self._long is not None:
            self._long.received(count)
            return
        self._data = self._memory.shared
        self._position = 0
        self._end = len(self._kept) + count
        self._kept = b""

    @property
    def unread_bytes(self) -> int:
        """Number of received bytes that are not decoded yet."""
        return self._end - self._position

    @property
    def has_several(self) -> bool:
        """Whether bytes follow the first received frame."""
        left = self._end - self._position
        if self._long is not None or left < PREFIX.size:
            return False
        return left > LENGTH_BYTES + int(PREFIX.unpack_from(self._data, self._position)[0])

    def has_only(self, codes: CodeMarks) -> bool:
        """Return True if all received frames have one of `codes`, judged by their undecoded headers."""
        data, at, end = self._data, self._position, self._end
        if self._long is not None or end - at < _SHOWN_BYTES:
            return False
        while end - at >= _SHOWN_BYTES:
            total, mark = PREFIX.unpack_from(data, at)
            marks = codes.rocketmq if mark >> 24 == _ROCKETMQ else codes.json
            if not data.startswith(marks, at + PREFIX.size):
                return False
            at += LENGTH_BYTES + total
        return True

    def may_take(self, codes: CodeMarks) -> bool:
        """Return True if the next frame has one of `codes`, judged by its undecoded header."""
        at = self._position
        return self._long is None and self._end - at >= _SHOWN_BYTES and codes.begin(self._data, at)

    def take_frames(self, take: Callable[[bytearray, int, int], int]) -> bool:
        """Offer the undecoded frames to `take`; return True if it handled some of them.

        `take(data, at, end)` handles frames at the front and returns the position after the last one.
        """
        at = self._position
        self._position = take(self._data, at, self._end)
        if self._position == at:
            return False
        self._was_long = False
        self.frames += 1
        return True

    def next_command(self) -> RemotingCommand | None:
        """Return the next complete command, or None. Raises ProtocolError for an invalid frame."""
        if self._long is not None:
            return self._finish_long(self._long)
        position = self._position
        available = self._end - position
        if available < PREFIX.size:
            if available:
                self.set_aside()
            return None
        total, mark = PREFIX.unpack_from(self._data, position)
        header_length = mark & HEADER_LENGTH_MASK
        if total > MAX_FRAME_BYTES or header_length > total - LENGTH_BYTES or total < LENGTH_BYTES:
            raise _bad_lengths(total, header_length, bytes(self._data[position : position + 16]))
        end = position + LENGTH_BYTES + total
        if end > self._end:
            if total >= OWN_MEMORY_BYTES:
                self._begin_long(total + LENGTH_BYTES)
            else:
                self.set_aside()
            return None
        self._position = end
        self.frame_bytes = end - position
        self._was_long = False
        self.frames += 1
        data = self._data
        body_at = position + PREFIX.size + header_length
        header = data[position + PREFIX.size : body_at]
        body = data[body_at:end] if body_at < end else b""
        serialize_type = mark >> 24
        if serialize_type == 0:
            return decode_json_command(header, body)
        return decode_command(header, serialize_type, body)

    def set_aside(self) -> None:
        """Copy the undecoded bytes out of the shared buffer, which other connections use next."""
        self._kept = bytes(self._data[self._position : self._end])
        self._position = self._end = 0

    def resume(self) -> None:
        """Make the bytes that were set aside available to `next_command` again."""
        if self._kept:
            self._data = bytearray(self._kept)
            self._kept = b""
            self._position = 0
            self._end = len(self._data)

    def close(self) -> None:
        """Drop all bytes and release the buffer of an incomplete frame."""
        if self._long is not None:
            self._long.drop()
            self._long = None
        self._give_place()
        self._kept = b""
        self._position = self._end = 0

    def take_place(self) -> None:
        """Give the frame that waits its place; its bytes were set aside (see `resume`)."""
        self.reserved_bytes, self.waits_for_bytes = self.waits_for_bytes, 0

    def _give_place(self) -> None:
        reserved_bytes, self.reserved_bytes, self.waits_for_bytes = self.reserved_bytes, 0, 0
        self._room.give(reserved_bytes)

    def _begin_long(self, size_bytes: int) -> None:
        if not self.reserved_bytes:
            if not self._room.reserve(size_bytes):
                self.waits_for_bytes = size_bytes
                self.set_aside()
                return
            self.reserved_bytes = size_bytes
        beginning = memoryview(self._data)[self._position : self._end]
        self._long = _LongFrame(self._memory, size_bytes, beginning)
        self._position = self._end = 0

    def _finish_long(self, frame: _LongFrame) -> RemotingCommand | None:
        if not frame.is_complete:
            return None
        self._long = None
        self.frame_bytes = frame.size_bytes
        self._was_long = frame.size_bytes > SHARED_BUFFER_BYTES
        self._give_place()
        self.frames += 1
        return frame.finish()


def decode_frames(frames: bytes) -> Iterator[RemotingCommand]:
    """Decode complete frames."""
    at = 0
    while at < len(frames):
        total, mark = PREFIX.unpack_from(frames, at)
        body = at + PREFIX.size + (mark & HEADER_LENGTH_MASK)
        end = at + LENGTH_BYTES + total
        yield decode_command(frames[at + PREFIX.size : body], mark >> 24, frames[body:end])
        at = end


def _bad_lengths(total: int, header_length: int, first: bytes) -> ProtocolError:
    if total > MAX_FRAME_BYTES:
        reason = f"a frame of {total:,} bytes exceeds the limit of {MAX_FRAME_BYTES:,}"
    else:
        reason = f"a header of {header_length:,} bytes does not fit into a frame of {total:,}"
    return ProtocolError(reason, describe_bytes(first))


def describe_bytes(first: bytes) -> str:
    """Return which protocol the first bytes of a connection look like, for the log."""
    if first[:1] == b"\x16" and first[1:2] == b"\x03":
        return "a TLS handshake (TLS is disabled here: set tls: permissive, or switch it off in the client)"
    if first.startswith(b"PRI * HTTP/2"):
        return "HTTP/2 or gRPC (this is the remoting port)"
    if first.split(b" ", 1)[0] in _HTTP_METHODS:
        return "an HTTP request (this is the remoting port)"
    if first.startswith((b"PROXY ", b"\r\n\r\n\x00\r\nQUIT")):
        return "the PROXY protocol (switch it off in the load balancer)"
    if first.startswith(b"SSH-"):
        return "SSH"
    return f"an unknown protocol that begins with {first[:16]!r}"


_HTTP_METHODS: Final = frozenset(
    {b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"CONNECT", b"PATCH", b"TRACE", b"HTTP/1.1"}
)
