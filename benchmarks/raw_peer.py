"""Blocking connection to a broker with little overhead, so that the broker dominates the measurement."""

from __future__ import annotations

from actors.transport.clients.blocking import BlockingConnection
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.remoting_errors import RemotingError
from cluster.lab.bench.options import BenchFailed

TIMEOUT_MS = 30_000


class RawPeer(BlockingConnection):
    """Connection to `address` (host:port) that sends a request and reads its response. A context manager."""

    def __init__(self, address: str) -> None:
        super().__init__(address, TIMEOUT_MS)

    def request(self, code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
        """Return the frame of a request, without sending it."""
        return encode_command(RemotingCommand(code, ext, body, opaque=self.next_opaque()))

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request and return its response, which may be an error."""
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
        try:
            return self.receive()
        except RemotingError as error:
            raise BenchFailed(str(error)) from error
