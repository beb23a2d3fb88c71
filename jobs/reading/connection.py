"""A blocking connection to a broker.

A Spark worker runs one task at a time and has no event loop, so a plain socket is simpler and faster.
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
from actors.remoting.tls.blocking import secured
from cluster.client import ClientConfig
from jobs.job_errors import FetchFailed
from store.message.hosts import split_address

CALL_TIMEOUT_S = 10.0


class Connection:
    """A blocking TCP connection to the broker at `address` ("host:port").

    The environment variables RAYMQ_TLS_… and RAYMQ_CREDENTIALS of the worker decide whether it uses TLS and
    signs its requests (see `ClientConfig`); in Spark, set them with `spark.executorEnv.NAME`.

    All methods raise `FetchFailed` if the broker cannot be reached, closes the connection, or sends nothing
    for `timeout_s`.
    """

    def __init__(self, address: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.address = address
        try:
            host, port = split_address(address)
            config = ClientConfig()
            tls, self._sign = config.load_tls(), config.request_signer()
            self._socket = socket.create_connection((host, port), timeout_s)
            if tls is not None:
                self._socket = secured(self._socket, tls, host)
        except (OSError, ValueError) as error:
            raise FetchFailed(
                f"cannot connect to broker {address}: {error}; check that it runs and is reachable"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        """Send a request. Return its `opaque` value, by which `receive` recognizes the response.

        Raises FetchFailed.
        """
        self._opaque += 1
        command = RemotingCommand(code, dict(ext), body, opaque=self._opaque)
        if self._sign is not None:
            self._sign(command)
        try:
            self._socket.sendall(encode_command(command))
        except OSError as error:
            raise FetchFailed(f"cannot send a request to broker {self.address}: {error}") from error
        return self._opaque

    def receive(self, opaque: int) -> RemotingCommand:
        """Wait for the response to the request for which `send` returned `opaque`.

        All other commands that the broker sends are ignored. Raises FetchFailed.
        """
        while True:
            prefix = self._read(PREFIX.size)
            total, mark = PREFIX.unpack(prefix)
            header_bytes = mark & HEADER_LENGTH_MASK
            body_bytes = total - LENGTH_BYTES - header_bytes
            if total > MAX_FRAME_BYTES or body_bytes < 0:
                raise FetchFailed(
                    f"{self.address} sent a frame of {total} bytes with a header of {header_bytes} bytes:"
                    " it does not speak RocketMQ's remoting protocol"
                )
            header = self._read(header_bytes)
            response = decode_command(header, mark >> 24, self._read(body_bytes))
            if response.is_response and response.opaque == opaque:
                return response

    def _read(self, size_bytes: int) -> bytearray:
        data = bytearray(size_bytes)
        view = memoryview(data)
        filled = 0
        while filled < size_bytes:
            try:
                count = self._socket.recv_into(view[filled:])
            except OSError as error:
                raise FetchFailed(f"no response from broker {self.address}: {error}") from error
            if not count:
                raise FetchFailed(f"broker {self.address} closed the connection before it responded")
            filled += count
        return data


def response_error(address: str, response: RemotingCommand) -> FetchFailed:
    """Return the error to raise for an error response of the broker at `address`."""
    try:
        code = ResponseCode(response.code).name
    except ValueError:
        code = str(response.code)
    return FetchFailed(f"{address} responded with {code}: {response.remark or '(no remark)'}")
