"""GrpcLimits: bounds on the streams, headers, requests and times of gRPC connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.bounds import AtLimit, Bound

STREAMS: Final = Bound("gateway_streams", 1000, AtLimit.REFUSE, "Open streams of one connection.")


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Bounds on what one peer, and all peers, can make a server keep."""

    streams_max: int = STREAMS.limit
    """Open streams of one connection."""
    message_bytes_max: int = 5 * 1024 * 1024
    """Size of one request."""
    header_bytes_max: int = 16 * 1024
    """Size of the headers of one call."""
    window_bytes: int = 256 * 1024
    """Data of one stream that a peer may send before it is handled."""
    control_frames_max: int = 2000
    """Frames without data, such as pings, settings and resets, between two sweeps (5 s).

    Each frame of a response allows one more."""
    request_timeout_ms: int = 60_000
    """Time without a byte after which an incomplete request fails."""
    crowded_timeout_ms: int = 10_000
    """Time after which an incomplete request that has its place fails while others wait for room."""
