"""Engine: HTTP/2 without I/O, as far as a gRPC server needs it, over ngh2, a binding of nghttp2.

bytes ──► receive ──► begin, received, ended, reset, window of Streams
send_headers, send_data, send_trailers ──► output ──► bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ngh2 import (
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionStateError,
    DataReceived,
    DenialOfServiceError,
    ErrorCode,
    Event,
    GoAwayReceived,
    NGH2Error,
    PingReceived,
    RequestReceived,
    Role,
    Setting,
    SettingsReceived,
    StreamClosed,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

FRAME_BYTES_MAX: Final = 16_384
_MAX_STREAM_ID: Final = 2**31 - 1
_GO_AWAY: Final = struct.Struct(">2xBB5xII")
"""The frame GOAWAY: length without the header, type, last stream, error code."""
_GO_AWAY_BYTES, _GO_AWAY_TYPE = 8, 7
_INITIAL_WINDOW_BYTES: Final = 65_535  # of a connection, by HTTP/2
_UNLIMITED: Final = 2**63

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

    def received(self, stream_id: int, data: bytes) -> bool:
        """Handle data of a request; return True if it is acknowledged later."""

    def ended(self, stream_id: int) -> None:
        """Handle the end of a request."""

    def reset(self, stream_id: int) -> None:
        """Handle the end of a stream on which nothing can be sent any more."""

    def window(self, stream_id: int) -> None:
        """Continue to send on a stream, or on all of them if it is 0: the peer has enlarged a window."""

    def count_control(self) -> None:
        """Count a frame without data."""

    def going_away(self) -> None:
        """Handle that the peer opens no further stream."""

    def failed(self, reason: str) -> None:
        """Close the connection after the next output: the peer violated HTTP/2."""


class Engine:
    """One HTTP/2 connection of a server."""

    def __init__(self, streams: Streams, limits: EngineLimits) -> None:
        """Create the engine; its first output is the server's settings."""
        self._streams = streams
        self._output = b""
        self._ngh2 = Connection(
            Role.SERVER,
            Configuration(
                auto_window_update=False,
                max_inbound_header_list_size=limits.header_bytes_max,
                max_outbound_ack=limits.control_frames_max,
                # `count_control` counts resets, and allows more of them for each response.
                stream_reset_rate_limit=(_UNLIMITED, _UNLIMITED),
            ),
        )
        self._ngh2.initiate_connection(
            {
                Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
                Setting.INITIAL_WINDOW_SIZE: limits.window_bytes,
                Setting.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
            }
        )
        self._ngh2.set_local_window_size(_INITIAL_WINDOW_BYTES + limits.window_bytes * limits.streams_max)

    def receive(self, data: bytes) -> None:
        """Handle received bytes. Raises EngineFailed."""
        try:
            self._ngh2.receive_data(data)
        except NGH2Error as error:
            is_flood = isinstance(error, DenialOfServiceError)
            code = ErrorCode.ENHANCE_YOUR_CALM if is_flood else ErrorCode.PROTOCOL_ERROR
            raise EngineFailed(str(error), self._output + go_away(code)) from None
        for event in self._ngh2.events():
            self._handle(event)

    def window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` accepts now. Raises StreamGone."""
        ngh2 = self._ngh2
        try:
            # The windows shrink only when the data is written.
            of_stream = ngh2.stream_remote_window_size(stream_id) - ngh2.queued_body_size(stream_id)
            return min(of_stream, ngh2.remote_window_size - ngh2.queued_body_size())
        except NGH2Error as error:
            raise StreamGone from error

    def send_headers(self, stream_id: int, headers: Headers, *, is_end: bool = False) -> None:
        """Send the headers of a response; `is_end` ends the stream. Raises StreamGone."""
        try:
            self._ngh2.send_response(stream_id, headers, end_stream=is_end)
        except NGH2Error as error:
            raise StreamGone from error

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send data, at most `window` bytes. Raises StreamGone."""
        try:
            self._ngh2.send_data(stream_id, data)
        except NGH2Error as error:
            raise StreamGone from error

    def send_trailers(self, stream_id: int, headers: Headers) -> None:
        """Send the trailers of a response, which end its stream. Raises StreamGone."""
        try:
            self._ngh2.send_trailers(stream_id, headers)
        except NGH2Error as error:
            raise StreamGone from error

    def reset(self, stream_id: int) -> None:
        """Reset a stream without an error, after what was sent on it. Raises StreamGone."""
        try:
            self._output += self._ngh2.data_to_send()  # nghttp2 would drop it
            self._ngh2.reset_stream(stream_id, ErrorCode.NO_ERROR)
        except NGH2Error as error:
            raise StreamGone from error

    def acknowledge(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send as much again: received data is handled. The stream may be closed."""
        try:
            self._ngh2.acknowledge_received_data(size_bytes, stream_id)
        except NGH2Error:  # the connection has failed
            return

    def close(self) -> None:
        """Release the memory: the connection is closed, and nothing else is called."""
        del self._streams, self._ngh2

    def output(self) -> bytes:
        """Return the bytes to write, and forget them."""
        output, self._output = self._output, b""
        try:
            output += self._ngh2.data_to_send()
        except ConnectionStateError:  # it has failed
            return output
        for event in self._ngh2.events():  # streams and connections that nghttp2 has closed
            self._handle(event)
        return output

    def _handle(self, event: Event) -> None:
        streams = self._streams
        if isinstance(event, DataReceived):
            if event.data:
                if not streams.received(event.stream_id, event.data):
                    self.acknowledge(event.stream_id, len(event.data))
            elif not event.end_stream:
                streams.count_control()
            if event.end_stream:
                streams.ended(event.stream_id)
        elif isinstance(event, RequestReceived):
            streams.begin(event.stream_id, event.headers)
            if event.end_stream:
                streams.ended(event.stream_id)
        elif isinstance(event, WindowUpdated):
            streams.window(event.stream_id)
        elif isinstance(event, StreamClosed):
            streams.reset(event.stream_id)
        else:
            self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        streams = self._streams
        if isinstance(event, TrailersReceived):
            streams.ended(event.stream_id)
        elif isinstance(event, StreamReset):
            streams.reset(event.stream_id)
            streams.count_control()
        elif isinstance(event, SettingsReceived):
            streams.count_control()
            streams.window(0)
        elif isinstance(event, PingReceived):
            streams.count_control()
        elif isinstance(event, GoAwayReceived):
            streams.going_away()
        elif isinstance(event, ConnectionClosed) and event.error_code != ErrorCode.NO_ERROR:
            streams.failed(event.debug_data.decode(errors="replace") or f"HTTP/2 error {event.error_code}")


def go_away(code: int) -> bytes:
    """Return a GOAWAY frame after which the open streams continue."""
    return _GO_AWAY.pack(_GO_AWAY_BYTES, _GO_AWAY_TYPE, _MAX_STREAM_ID, code)
