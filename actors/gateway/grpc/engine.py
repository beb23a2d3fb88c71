"""Engine: HTTP/2 without I/O, as far as a gRPC server needs it; two libraries implement it.

    bytes ──► receive ──► begin, received, ended, reset, window of Streams
    send_headers, send_data, send_trailers ──► output ──► bytes

`Ngh2Engine` uses ngh2, a binding of the C library nghttp2. `H2Engine` uses h2, which is written in Python and
takes ten times as much CPU time. All tests of the gRPC layer run with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hyperframe.frame import GoAwayFrame

FRAME_BYTES_MAX: Final = 16_384
_MAX_STREAM_ID: Final = 2**31 - 1

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds on what a peer can make an engine keep."""

    streams_max: int
    """Open streams."""
    header_bytes_max: int
    """Size of the headers of one stream."""
    window_bytes: int
    """Data of one stream that is not acknowledged yet. Streams of a connection do not wait for each other."""
    control_frames_max: int
    """Frames without data that may wait for their acknowledgement."""


class EngineFailed(Exception):
    """The peer violated HTTP/2 or a limit. `output` is to be written before the connection is closed."""

    def __init__(self, reason: str, output: bytes) -> None:
        super().__init__(reason)
        self.output = output


class StreamGone(Exception):
    """The stream was closed or reset, so nothing can be sent on it."""


class Streams(Protocol):
    """The connection that an engine calls for what it has received."""

    def begin(self, stream_id: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin a stream with the headers of a request."""
        ...

    def received(self, stream_id: int, data: bytes) -> bool:
        """Handle data of a request; return True if it is acknowledged later."""
        ...

    def ended(self, stream_id: int) -> None:
        """Handle the end of a request."""
        ...

    def reset(self, stream_id: int) -> None:
        """Handle the end of a stream on which nothing can be sent any more."""
        ...

    def window(self, stream_id: int) -> None:
        """Continue to send on a stream, or on all of them if it is 0: the peer has enlarged a window."""
        ...

    def count_control(self) -> None:
        """Count a frame without data."""
        ...

    def going_away(self) -> None:
        """Handle that the peer opens no further stream."""
        ...

    def failed(self, reason: str) -> None:
        """Close the connection after the next output: the peer violated HTTP/2."""
        ...


class Engine(Protocol):
    """One HTTP/2 connection of a server."""

    def receive(self, data: bytes) -> None:
        """Handle received bytes. Raises EngineFailed."""
        ...

    def window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` accepts now. Raises StreamGone."""
        ...

    def send_headers(self, stream_id: int, headers: Headers, *, is_end: bool = False) -> None:
        """Send the headers of a response; `is_end` ends the stream. Raises StreamGone."""
        ...

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send data, at most `window` bytes. Raises StreamGone."""
        ...

    def send_trailers(self, stream_id: int, headers: Headers) -> None:
        """Send the trailers of a response, which end its stream. Raises StreamGone."""
        ...

    def reset(self, stream_id: int) -> None:
        """Reset a stream without an error, after what was sent on it. Raises StreamGone."""
        ...

    def acknowledge(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send as much again: received data is handled. The stream may be closed."""
        ...

    def output(self) -> bytes:
        """Return the bytes to write, and forget them."""
        ...

    def close(self) -> None:
        """Release the memory: the connection is closed, and nothing else is called."""
        ...


NewEngine = Callable[[Streams, EngineLimits], Engine]


def go_away(code: int) -> bytes:
    """Return a GOAWAY frame after which the open streams continue, which h2 cannot send."""
    return bytes(GoAwayFrame(0, last_stream_id=_MAX_STREAM_ID, error_code=code).serialize())
