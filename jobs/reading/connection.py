"""The connection of an executor to a broker.

A Spark worker runs one task at a time and has no event loop, so a blocking connection is simpler and faster.
"""

from __future__ import annotations

from actors.transport.clients.signing_blocking import open_blocking
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.client import ClientConfig
from jobs.job_errors import FetchFailed

CALL_TIMEOUT_MS = 10_000


class ReaderConnection:
    """A blocking TCP connection to the broker at `address` ("host:port").

    The environment variables RAYMQ_TLS_… and RAYMQ_CREDENTIALS of the worker decide whether it uses TLS and
    signs its requests (see `ClientConfig`); in Spark, set them with `spark.executorEnv.NAME`.

    All methods raise `FetchFailed` if the broker cannot be reached, closes the connection, or sends nothing
    for CALL_TIMEOUT_MS.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            config = ClientConfig()
            self._connection = open_blocking(
                address, CALL_TIMEOUT_MS, config.load_tls(), config.request_signer()
            )
        except (RemotingError, ValueError) as error:
            reason = error.reason if isinstance(error, RemotingError) else error
            raise FetchFailed(
                f"cannot connect to broker {address}: {reason}; check that it runs and is reachable"
            ) from error

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        """Send a request. Return its `opaque` value, by which `receive` recognizes the response.

        Raises FetchFailed.
        """
        command = RemotingCommand(code, dict(ext), body)
        try:
            self._connection.send(command)
        except RemotingError as error:
            raise FetchFailed(f"cannot send a request to broker {self.address}: {error.reason}") from error
        return command.opaque

    def receive(self, opaque: int) -> RemotingCommand:
        """Wait for the response to the request for which `send` returned `opaque`.

        All other commands that the broker sends are ignored. Raises FetchFailed.
        """
        try:
            return self._connection.receive(opaque)
        except RemotingError as error:
            raise FetchFailed(f"no response from broker {self.address}: {error.reason}") from error


def response_error(address: str, response: RemotingCommand) -> FetchFailed:
    """Return the error to raise for an error response of the broker at `address`."""
    try:
        code = ResponseCode(response.code).name
    except ValueError:
        code = str(response.code)
    return FetchFailed(f"{address} responded with {code}: {response.remark or '(no remark)'}")
