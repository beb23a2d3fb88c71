"""TlsGate: decides by the first byte of an accepted connection whether it uses TLS.

    accepted ── first byte 0x16 ──► handshake ── done ──► Connection over a TlsTransport
       │                                └── failed, `handshake_timeout_ms` passed ──► closed
       ├── another byte, permissive ──► Connection on the raw transport, as without a gate
       └── another byte, enforced, or no byte for `idle_ms` ──► closed

A gate counts as a connection of its hub until a `Connection` replaces it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from actors.ports import NEVER_ASKED_NS
from actors.transport.hub import Hub
from actors.transport.tls.contexts import ServerTls
from actors.transport.tls.transport import TlsTransport
from actors.wire.frame import describe_bytes
from store.common.clock import NS_PER_MS
from store.common.logs import get_logger

_log = get_logger(__name__)

_HANDSHAKE_BYTE: Final = 0x16
# No more than a connection accepts at once (see `InputQueue.get_buffer`).
_FIRST_READ_BYTES: Final = 16 * 1024


class TlsGate(asyncio.BufferedProtocol):
    """The first protocol of an accepted connection on a listener with TLS."""

    unread_bytes = 0
    open_requests = 0

    def __init__(
        self, hub: Hub, tls: ServerTls, make_connection: Callable[[], asyncio.BufferedProtocol]
    ) -> None:
        """Create the gate of one connection; `make_connection` creates its successor."""
        self.peer = "?"
        self._hub = hub
        self._tls = tls
        self._make_connection = make_connection
        self._transport: asyncio.Transport
        self._since_ns = hub.clock.monotonic_ns()
        self._is_handshaking = False

    # ---- for the transport --------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the accepted socket: register the connection, or abort if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        self._hub.enter(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the first bytes of the socket."""
        return self._hub.memory.view[:_FIRST_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the connection on to TLS or to a plain `Connection`, with the bytes received so far."""
        first = bytes(self._hub.memory.view[:nbytes])
        if first[0] == _HANDSHAKE_BYTE:
            self._is_handshaking, self._since_ns = True, self._hub.clock.monotonic_ns()
            self._hand_over(
                TlsTransport(self._hub.memory, self._tls, self._make_connection(), self._opened), first
            )
        elif self._tls.is_enforced:
            _log.warning(
                "connection_refused",
                peer=self.peer,
                reason="this port accepts only TLS connections (tls: enforced, or ha_tls)",
                looks_like=_describe_plain(first),
            )
            self.close("not TLS")
        else:
            self._hub.connections.discard(self)
            self._hand_over(self._make_connection(), first)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a socket that was closed before its first byte."""
        self._hub.connections.discard(self)

    def _hand_over(self, successor: asyncio.BufferedProtocol, received: bytes) -> None:
        transport = self._transport
        transport.set_protocol(successor)
        successor.connection_made(transport)
        if not transport.is_closing():
            memoryview(successor.get_buffer(-1))[: len(received)] = received
            successor.buffer_updated(len(received))

    def _opened(self, failure: str) -> None:
        is_counted = self in self._hub.connections
        self._hub.connections.discard(self)
        if failure and is_counted:  # else it was closed by this side
            _log.warning("tls_handshake_failed", peer=self.peer, reason=failure)
            self._transport.close()  # after the alert, which names the reason to the client

    # ---- for the hub --------------------

    def check(self, now_ns: int) -> None:
        """Abort if the handshake or the first byte is overdue."""
        limits = self._hub.limits
        if self._is_handshaking:
            limit_ms, missing = limits.handshake_timeout_ms, "the TLS handshake is not finished"
        else:
            limit_ms, missing = limits.idle_ms, "no byte was received"
        if now_ns - self._since_ns >= limit_ms * NS_PER_MS:
            self.abort(f"{missing} after {limit_ms / 1000:g} s")

    def idle_ns(self, now_ns: int) -> int:
        """Return the age of the gate: no request has arrived yet."""
        return now_ns - self._since_ns + NEVER_ASKED_NS

    def close(self, reason: str) -> None:
        """Close the socket."""
        self._hub.connections.discard(self)
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the socket immediately and log the reason."""
        _log.info("connection_closed", peer=self.peer, reason=reason)
        self.give_way()

    def give_way(self) -> None:
        """Close the socket immediately, without a log event."""
        self._hub.connections.discard(self)
        self._transport.abort()

    def discard_input(self) -> None:
        """Close the connection, on which no request has arrived yet."""
        self.close("no further requests are accepted")

    def flush(self) -> None:
        """Do nothing: there are no responses."""

    def expire_calls(self, now_ns: int) -> int | None:
        """Return None: there are no calls."""
        return None

    def count_unread(self) -> None:
        """Do nothing: there are no responses."""


def _describe_plain(first: bytes) -> str:
    if first[0] == 0:  # the length of a frame up to 16 MiB
        return "a remoting client without TLS (switch TLS on in the client)"
    return describe_bytes(first)
