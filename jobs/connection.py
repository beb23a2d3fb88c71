"""A blocking connection to a broker.

A Spark worker runs one task at a time and has no event loop: here a plain socket is both simpler and faster.
"""

from __future__ import annotations

import socket

from actors.remoting.codes import ResponseCode
from actors.remoting.command import (
    HEADER_LENGTH_MASK,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    PREFIX,
    RemotingCommand,
    decode_command,
    encode_command,
)
from jobs.job_errors import FetchFailed

CALL_TIMEOUT_S = 10.0


class Connection:
    """One socket to `address` ("host:port"); requests are answered in the order in which they were sent.

    Raises `FetchFailed` when the peer cannot be reached, closes, or is silent for `timeout_s`.
    """

    def __init__(self, address: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout_s)
        except (OSError, ValueError) as error:
            raise FetchFailed(f"{address} cannot be reached: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        """Send a request, and give the number that its answer will carry. Raises FetchFailed."""
        self._opaque += 1
        command = RemotingCommand(code, ext, body, opaque=self._opaque)
        try:
            self._socket.sendall(encode_command(command))
        except OSError as error:
            raise FetchFailed(f"{self.address} took no request: {error}") from error
        return self._opaque

    def receive(self, opaque: int) -> RemotingCommand:
        """Wait for the answer that carries `opaque`; anything else that the peer sends is passed over. Raises
        FetchFailed.
        """
        while True:
            prefix = self._read(PREFIX.size)
            total, mark = PREFIX.unpack(prefix)
            header_bytes = mark & HEADER_LENGTH_MASK
            body_bytes = total - LENGTH_BYTES - header_bytes
            if total > MAX_FRAME_BYTES or body_bytes < 0:
                raise FetchFailed(
                    f"{self.address} sent a frame of {total} bytes with a header of {header_bytes}:"
                    " it does not speak RocketMQ's remoting protocol"
                )
            header = self._read(header_bytes)
            answer = decode_command(header, mark >> 24, self._read(body_bytes))
            if answer.is_response and answer.opaque == opaque:
                return answer

    def _read(self, size_bytes: int) -> bytearray:
        data = bytearray(size_bytes)
        view = memoryview(data)
        filled = 0
        while filled < size_bytes:
            try:
                count = self._socket.recv_into(view[filled:])
            except OSError as error:
                raise FetchFailed(f"{self.address} did not answer: {error}") from error
            if not count:
                raise FetchFailed(f"{self.address} closed the connection before it answered")
            filled += count
        return data


def refusal(address: str, answer: RemotingCommand) -> FetchFailed:
    """The error for an answer that is none of those a job can work with."""
    try:
        code = ResponseCode(answer.code).name
    except ValueError:
        code = str(answer.code)
    return FetchFailed(f"{address} answered {code}: {answer.remark or 'without a remark'}")
