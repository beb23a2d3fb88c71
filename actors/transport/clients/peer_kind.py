"""What listens at an address that was given as that of a nameserver, for the text of an error."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from store.message.hosts import split_address

PROBE_S: Final = 1.0
"""Limit of the connection and of the response of a probe."""
_REQUEST: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SETTINGS_FRAME: Final = b"\x04\x00"
"""Type and flags of the frame with which an HTTP/2 server begins, after its length of three bytes."""


async def peer_kind(address: str) -> str | None:
    """Return what a peer is that does not speak RocketMQ's protocol; None if it is unknown."""
    try:
        host, port = split_address(address)
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError, TimeoutError):
        return None
    data = b""
    try:
        writer.write(_REQUEST)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(PROBE_S):
                data = await reader.read(64)
    finally:
        writer.close()
    if data.startswith(b"HTTP/"):
        return "a web server, such as the port of metrics or a console"
    return "a gateway for gRPC clients" if data[3:5] == _SETTINGS_FRAME else None
