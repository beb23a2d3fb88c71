"""SigningConnection: a BlockingConnection that signs requests and checks its peer, as RemotingClient does."""

from __future__ import annotations

from actors.transport.calls import Callback
from actors.transport.clients.blocking import BlockingConnection
from actors.transport.clients.proofs import Demand, RequestSigner
from actors.transport.tls.contexts import ClientTls
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import NotProven, RemotingError


class SigningConnection(BlockingConnection):
    """BlockingConnection that signs its requests.

    If `signer` demands it, the peer proves itself before the first request, and each response must be signed:
    all methods then raise NotProven for a peer that is no process of the cluster.
    """

    def __init__(self, address: str, timeout_ms: int, tls: ClientTls | None, signer: RequestSigner) -> None:
        """Connect within `timeout_ms`, which also limits each later wait. Raises ConnectFailed, NotProven."""
        super().__init__(address, timeout_ms, tls)
        self.is_proven = False
        self._signer = signer
        self._checks: dict[int, Callback] = {}  # of requests without a response yet, by opaque
        if signer.demand_of(address) is Demand.PROOF:
            try:
                self._prove()
            except BaseException:
                self.close()
                raise

    def send(self, command: RemotingCommand) -> None:
        """Sign `command` and send it with a new `opaque`. Raises as `exchange`."""
        self._signer.sign(command, self.address, self.peer)
        super().send(command)
        if self._signer.demand is not Demand.NOTHING:
            check = self._signer.checking(self.address, self, command, _raise_error)
            self._checks[command.opaque] = check

    def receive(self, opaque: int | None = None) -> RemotingCommand:
        """Return the response to the request with this `opaque`, or to any request. Raises as `exchange`."""
        response = super().receive(opaque)
        if self._signer.demand is not Demand.NOTHING:
            self._checks.pop(response.opaque)(response)
        return response

    def _prove(self) -> None:
        command, check = self._signer.proving(self.address, self, _raise_error)
        super().send(command)
        response = super().receive(command.opaque)
        check(response)
        if not self.is_proven:
            raise NotProven(self.address, f"the peer did not prove itself: {response.remark}")


def open_blocking(
    address: str, timeout_ms: int, tls: ClientTls | None, signer: RequestSigner | None
) -> BlockingConnection:
    """Return a connection that signs its requests if there is a signer. Raises ConnectFailed, NotProven."""
    if signer is None:
        return BlockingConnection(address, timeout_ms, tls)
    return SigningConnection(address, timeout_ms, tls, signer)


def _raise_error(result: RemotingCommand | RemotingError) -> None:
    if isinstance(result, RemotingError):
        raise result
