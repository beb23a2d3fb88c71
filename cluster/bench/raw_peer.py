"""Blocking connection to a broker with little overhead, so that the broker dominates the measurement."""

from __future__ import annotations

import socket
from types import TracebackType

from actors.remoting.codes import ResponseCode
from actors.remoting.command import PREFIX, RemotingCommand, decode_command, encode_command
from cluster.bench.options import BenchFailed

TIMEOUT_S = 30.0


class RawPeer:
    """Connection to `address` (host:port) that sends a request and reads its response. A context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._prefix = bytearray(PREFIX.size)
        self._frame = bytearray(1024 * 1024)
        self._opaque = 0

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def request(self, code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
        """Return the frame of a request, without sending it."""
        self._opaque += 1
        return encode_command(RemotingCommand(code, ext, body, opaque=self._opaque))

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request and return its response, which may be an error.

        The next response overwrites the body of this one.
        """
        self.socket.sendall(self.request(code, ext, body))
        return self.read()

    def call_checked(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request and return its response. Raises BenchFailed if the response is an error."""
        response = self.call(code, ext, body)
        if response.code != ResponseCode.SUCCESS:
            raise BenchFailed(f"request {code} failed: {response.remark} (response code {response.code})")
        return response

    def read(self) -> RemotingCommand:
        """Read the next response. Raises BenchFailed if the broker closes the connection."""
        self._receive(memoryview(self._prefix))
        total, mark = PREFIX.unpack(self._prefix)
        rest = total - 4
        if rest > len(self._frame):
            self._frame = bytearray(rest)
        view = memoryview(self._frame)[:rest]
        self._receive(view)
        length = mark & 0xFFFFFF
        return decode_command(bytes(view[:length]), mark >> 24, view[length:])

    def _receive(self, into: memoryview) -> None:
        while into:
            count = self.socket.recv_into(into)
            if not count:
                raise BenchFailed("the broker closed the connection")
            into = into[count:]
