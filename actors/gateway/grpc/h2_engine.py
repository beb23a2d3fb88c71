"""H2Engine: the engine over h2, which is written in Python."""

from __future__ import annotations

import contextlib
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from actors.gateway.grpc.engine import (
    FRAME_BYTES_MAX,
    EngineFailed,
    EngineLimits,
    Headers,
    StreamGone,
    Streams,
    go_away,
)

_PREFACE_BYTES: Final = 24
_LENGTH_BYTES, _HEADER_BYTES = 3, 9  # of a frame


class FrameLengths:
    """Finds frames over the limit before they are complete: h2 would keep up to 16 MiB of such a frame."""

    def __init__(self) -> None:
        self._left = _PREFACE_BYTES  # of the present frame
        self._length = b""

    def has_long_frame(self, data: bytes) -> bool:
        """Return True if a frame that begins in `data` is longer than `FRAME_BYTES_MAX`."""
        at = 0
        while at < len(data):
            if self._left:
                passed = min(self._left, len(data) - at)
                self._left -= passed
                at += passed
                continue
            missing = _LENGTH_BYTES - len(self._length)
            self._length += data[at : at + missing]
            at += missing
            if len(self._length) == _LENGTH_BYTES:
                length, self._length = int.from_bytes(self._length), b""
                if length > FRAME_BYTES_MAX:
                    return True
                self._left = length + _HEADER_BYTES - _LENGTH_BYTES
        return False


class H2Engine:
    """An `Engine`."""

    def __init__(self, streams: Streams, limits: EngineLimits) -> None:
        """Create the engine; its first output is the server's settings."""
        self._streams = streams
        self._frames = FrameLengths()
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams_max,
                SettingCodes.INITIAL_WINDOW_SIZE: limits.window_bytes,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
                SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(limits.window_bytes * limits.streams_max)

    def receive(self, data: bytes) -> None:
        """Handle received bytes. Raises EngineFailed."""
        if self._frames.has_long_frame(data):
            last = self.output() + go_away(ErrorCodes.FRAME_SIZE_ERROR)
            raise EngineFailed(f"a frame of more than {FRAME_BYTES_MAX:,} bytes", last)
        try:
            events = self._h2.receive_data(data)
        except ProtocolError as error:
            raise EngineFailed(str(error), self.output()) from None
        for event in events:
            self._handle(event)

    def window(self, stream_id: int) -> int:
        """Return how many bytes `send_data` accepts now. Raises StreamGone."""
        try:
            return min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
        except ProtocolError as error:
            raise StreamGone from error

    def send_headers(self, stream_id: int, headers: Headers, *, is_end: bool = False) -> None:
        """Send the headers of a response; `is_end` ends the stream. Raises StreamGone."""
        try:
            self._h2.send_headers(stream_id, headers, end_stream=is_end)
        except ProtocolError as error:
            raise StreamGone from error

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send data, at most `window` bytes. Raises StreamGone."""
        try:
            self._h2.send_data(stream_id, data)
        except ProtocolError as error:
            raise StreamGone from error

    def send_trailers(self, stream_id: int, headers: Headers) -> None:
        """Send the trailers of a response, which end its stream. Raises StreamGone."""
        self.send_headers(stream_id, headers, is_end=True)

    def reset(self, stream_id: int) -> None:
        """Reset a stream without an error, after what was sent on it. Raises StreamGone."""
        try:
            self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        except ProtocolError as error:
            raise StreamGone from error

    def acknowledge(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send as much again: received data is handled. The stream may be closed."""
        with contextlib.suppress(ProtocolError):  # the connection has failed
            if size_bytes:
                self._h2.acknowledge_received_data(size_bytes, stream_id)

    def close(self) -> None:
        """Release the memory: the connection is closed, and nothing else is called."""
        del self._streams, self._h2

    def output(self) -> bytes:
        """Return the bytes to write, and forget them."""
        return self._h2.data_to_send()

    def _handle(self, event: Event) -> None:
        streams = self._streams
        if isinstance(event, DataReceived):
            stream_id, data = event.stream_id or 0, event.data or b""
            if not event.flow_controlled_length and event.stream_ended is None:
                streams.count_control()
            is_kept = streams.received(stream_id, data)
            self.acknowledge(stream_id, (event.flow_controlled_length or 0) - is_kept * len(data))
        elif isinstance(event, RequestReceived):
            streams.begin(event.stream_id or 0, event.headers or ())
        elif isinstance(event, StreamEnded):
            streams.ended(event.stream_id or 0)
        elif isinstance(event, WindowUpdated):
            streams.window(event.stream_id or 0)
        elif isinstance(event, StreamReset):
            streams.reset(event.stream_id or 0)
            streams.count_control()
        elif isinstance(event, RemoteSettingsChanged):
            streams.count_control()
            streams.window(0)
        elif isinstance(event, PingReceived | PriorityUpdated):
            streams.count_control()
        elif isinstance(event, ConnectionTerminated):
            streams.going_away()
