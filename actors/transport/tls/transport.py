"""TlsTransport: encrypts and decrypts the bytes of one connection.

    socket ◄──► raw transport ◄── encrypted ──► TlsTransport ◄── plain ──► Connection

It is the protocol of the raw transport and the transport of the connection. OpenSSL (`ssl.SSLObject`) reads
and writes two memory buffers, so nothing here waits for the socket.

    handshake ── done ──► open ── close(), close_notify of the peer, lost ──► closed
        └── failed, lost ──► closed

The handshake computes signatures, which takes a millisecond or more; each of its steps runs in a thread, and
the socket is not read meanwhile.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from actors.transport.tls.contexts import TlsContext
from actors.wire.frame import ReceiveMemory

Opened = Callable[[str], None]
Data = bytes | bytearray | memoryview


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The encrypted transport of one protocol, which must be a BufferedProtocol."""

    def __init__(
        self,
        memory: ReceiveMemory,
        tls: TlsContext,
        protocol: asyncio.BufferedProtocol,
        on_opened: Opened,
        server_host: str | None = None,
    ) -> None:
        """Create the transport; the caller makes it the protocol of a raw transport.

        Args:
            memory: receive buffer of the event loop.
            tls: the certificates of this side, and the threads of the handshake.
            protocol: receives the decrypted bytes; its `connection_made` is called after the handshake.
            on_opened: called once: with an empty string when the handshake is done, else with the reason why
                it failed. The caller then closes the raw transport.
            server_host: host name or address of the server; None if this side is the server.
        """
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = tls.current.wrap_bio(
            self._incoming, self._outgoing, server_side=server_host is None, server_hostname=server_host
        )
        self._memory = memory
        self._executor = tls.executor
        self._protocol = protocol
        self._on_opened: Opened | None = on_opened  # None after the handshake
        self._raw: asyncio.Transport
        self._is_client = server_host is not None
        self._is_paused = False

    # ---- for the raw transport --------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; a server waits for the client's first message."""
        self._raw = cast("asyncio.Transport", transport)
        if self._is_client:
            self._shake()  # only composes the first message
            self._write_outgoing()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next encrypted bytes."""
        return self._memory.view

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` encrypted bytes that the socket has written into the buffer."""
        self._incoming.write(self._memory.view[:nbytes])
        if self._on_opened is None:
            self._deliver()
        else:
            self._step()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the closed socket."""
        if self._on_opened is None:
            self._protocol.connection_lost(exc)
        else:
            self._finish(f"the connection was lost during the TLS handshake: {exc or 'closed by the peer'}")

    def pause_writing(self) -> None:
        """Forward to the protocol: the peer reads more slowly than this side writes."""
        if self._on_opened is None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Forward to the protocol: the peer has read most of the output."""
        if self._on_opened is None:
            self._protocol.resume_writing()

    # ---- for the protocol --------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `ssl_object`, or information of the raw transport such as `peername`."""
        return self._ssl if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def write(self, data: Data) -> None:
        """Encrypt and write bytes."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        """Encrypt several buffers; write them in one call."""
        if self._raw.is_closing():
            return
        try:
            for data in list_of_data:
                view = memoryview(data)
                while view:
                    view = view[self._ssl.write(view) :]
        except ssl.SSLError as error:
            self._lose(error)
        else:
            self._write_outgoing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits at which `pause_writing` and `resume_writing` are called."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that the kernel has not accepted yet."""
        return self._raw.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Deliver no more bytes and do not read the socket."""
        self._is_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Deliver the bytes that were received before the pause, soon, then read the socket again."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._resume)

    def is_closing(self) -> bool:
        """Return True if the connection is closed or closing."""
        return self._raw.is_closing()

    def close(self) -> None:
        """Send the rest of the output and `close_notify`, then close the socket."""
        if self._on_opened is None and not self._raw.is_closing():
            try:
                self._ssl.unwrap()
            except ssl.SSLError:  # always: the peer has not responded yet
                self._write_outgoing()
        self._raw.close()

    def abort(self) -> None:
        """Close the socket immediately."""
        self._raw.abort()

    # ---- handshake --------------------

    def _step(self) -> None:
        """Process the received part of the handshake in a thread."""
        self._raw.pause_reading()  # no bytes may be added while the thread uses the memory buffers
        step = asyncio.get_running_loop().run_in_executor(self._executor, self._shake)
        step.add_done_callback(self._stepped)

    def _shake(self) -> bool:
        """Return True if the handshake is done. Runs in a thread. Raises ssl.SSLError if it fails."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _stepped(self, step: asyncio.Future[bool]) -> None:
        error = None if step.cancelled() else step.exception()
        if step.cancelled() or self._raw.is_closing():
            return
        self._write_outgoing()  # the next part of the handshake, or an alert
        if error is not None:
            self._finish(f"the TLS handshake failed: {describe_tls_error(error)}")
        elif step.result():
            self._finish("")
        else:
            self._raw.resume_reading()

    def _finish(self, failure: str) -> None:
        """End the handshake; without a failure, pass the transport to the protocol."""
        on_opened, self._on_opened = self._on_opened, None
        if on_opened is None:
            return
        on_opened(failure)
        if not failure:
            self._protocol.connection_made(self)
            self._resume()

    # ---- decryption --------------------

    def _resume(self) -> None:
        if self._is_paused or self._raw.is_closing():
            return
        self._deliver()
        if not self._is_paused and not self._raw.is_closing():
            self._raw.resume_reading()

    def _deliver(self) -> None:
        """Pass the decrypted bytes to the protocol until it pauses or no complete TLS record is left."""
        is_full = True
        while is_full and not self._is_paused and not self._raw.is_closing():
            room = self._protocol.get_buffer(-1)
            count, is_full = self._decrypt(memoryview(room))
            if count:
                self._protocol.buffer_updated(count)

    def _decrypt(self, room: memoryview) -> tuple[int, bool]:
        """Fill `room`; return the number of decrypted bytes, and whether more may follow."""
        filled = 0
        try:
            while filled < len(room):
                count = self._ssl.read(len(room) - filled, room[filled:])
                if not count:  # close_notify
                    self._raw.close()
                    return filled, False
                filled += cast("int", count)
        except ssl.SSLWantReadError:
            self._write_outgoing()  # such as the response to a key update
            return filled, False
        except ssl.SSLError as error:
            self._lose(error)
            return filled, False
        return filled, True

    def _lose(self, error: ssl.SSLError) -> None:
        """Close after a damaged record or an alert of the peer; the protocol gets the reason."""
        self._write_outgoing()
        protocol, self._protocol = self._protocol, asyncio.BufferedProtocol()
        self._raw.abort()
        protocol.connection_lost(ConnectionError(f"TLS error: {describe_tls_error(error)}"))

    def _write_outgoing(self) -> None:
        if data := self._outgoing.read():
            self._raw.write(data)


def describe_tls_error(error: BaseException) -> str:
    """Return OpenSSL's reason in words, with the remedy for the common cases."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the peer's certificate is not valid: {error.verify_message}: "
            "use the CA file that has signed it, and a certificate for this host name"
        )
    reason = getattr(error, "reason", None)
    if not reason:
        return str(error) or type(error).__name__
    return str(reason).lower().replace("_", " ")
