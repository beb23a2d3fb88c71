"""RequestSigner: signs the requests of one user, and checks that the peer is a process of the cluster.

Anybody can listen at an address. Before a process of the cluster sends its first request over a connection,
it sends PROVE_PEER, and it uses no response that the peer has not signed (`actors.wire.signing`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto
from functools import partial
from typing import Final, Protocol

from actors.transport.calls import Callback
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import NotProven, RemotingError
from actors.wire.signing import PROOF, RECEIVER, SIGNATURE, Credentials, Signer
from store.common.clock import Clock, SystemClock

NEEDS_PROOF: Final = frozenset(
    {
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RayMQRequestCode.CHECK_USER,
        RayMQRequestCode.GET_ALL_USERS,
    }
)
"""Requests about the keys of users. They go only to a peer that has proved itself, whatever is demanded."""


class Demand(Enum):
    """What a requester demands of its peers."""

    NOTHING = auto()
    """Clients: only requests of NEEDS_PROOF need a proof."""
    PROOF_OF_NEWER = auto()
    """The peer may be of a version of RayMQ that does not sign responses, or RocketMQ."""
    PROOF = auto()


class Peer(Protocol):
    """The other end of a connection."""

    @property
    def peer(self) -> str:
        """Return its socket address."""

    is_proven: bool


class RequestSigner:
    """Signs requests as one user. Thread-safe."""

    def __init__(
        self,
        signer: Signer,
        clock: Clock,
        demand: Demand = Demand.NOTHING,
        nameservers: Callable[[], Collection[str]] = tuple,
        as_rocketmq: bool = False,
    ) -> None:
        """Create the object.

        Args:
            signer: the user's.
            clock: for the times of signatures.
            demand: what peers must prove.
            nameservers: returns their addresses, which the operator has given. They may have no access
                control: what they return are addresses of processes, which must prove themselves.
            as_rocketmq: write RocketMQ's signature; peers prove nothing.
        """
        self._signer = signer
        self._clock = clock
        self.demand = Demand.NOTHING if as_rocketmq else demand
        self._nameservers = nameservers
        self._as_rocketmq = as_rocketmq

    def demand_of(self, address: str) -> Demand:
        """Return what the process at an address must prove."""
        if self.demand is Demand.PROOF and address in self._nameservers():
            return Demand.PROOF_OF_NEWER
        return self.demand

    def sign(self, command: RemotingCommand, address: str, peer: str) -> None:
        """Sign a request that is sent now.

        Args:
            command: the request.
            address: the address of its receiver, as it was dialled.
            peer: the socket address at the other end of the connection.
        """
        if self._as_rocketmq:
            self._signer.sign_as_rocketmq(command)
            return
        command.ext[RECEIVER] = address if address == peer else f"{address}={peer}"
        self._signer.sign(command, self._clock.wall_ms())

    @property
    def can_prove(self) -> bool:
        """True if peers can prove that they know the key: RocketMQ's signature has no proof."""
        return not self._as_rocketmq

    def proving(self, address: str, connection: Peer, callback: Callback) -> tuple[RemotingCommand, Callback]:
        """Return the request by which a peer proves itself, and the callback for its response.

        `callback` gets NotProven if the response is not signed, unless it refuses the request.
        """
        command = RemotingCommand(RayMQRequestCode.PROVE_PEER, {PROOF: "true"})
        self.sign(command, address, connection.peer)

        def check(result: RemotingCommand | RemotingError) -> None:
            if isinstance(result, RemotingCommand):
                connection.is_proven = self._is_signed(command.ext[SIGNATURE], result)
                if not connection.is_proven and result.code != ResponseCode.NO_PERMISSION:
                    result = _not_proven(address, result)
            callback(result)

        return command, check

    def checking(
        self, address: str, connection: Peer, command: RemotingCommand, callback: Callback
    ) -> Callback:
        """Return a callback that passes on the response to a signed request, NotProven if it is forged."""
        if self.demand is Demand.NOTHING and PROOF not in command.ext:
            return callback
        may_be_older = not connection.is_proven and self.demand_of(address) is not Demand.PROOF
        return partial(self._check, address, command.ext[SIGNATURE], may_be_older, callback)

    def _check(
        self,
        address: str,
        signature: str,
        may_be_older: bool,
        callback: Callable[[RemotingCommand | RemotingError], None],
        result: RemotingCommand | RemotingError,
    ) -> None:
        if isinstance(result, RemotingCommand) and not self._is_signed(signature, result):
            # A refusal that comes before the peer has accepted the signature cannot be signed.
            is_refusal = result.code == ResponseCode.NO_PERMISSION
            if SIGNATURE in result.ext or not (is_refusal or may_be_older):
                result = _not_proven(address, result)
        callback(result)

    def _is_signed(self, signature: str, response: RemotingCommand) -> bool:
        is_signed = self._signer.has_answered(signature, response)
        if is_signed:
            del response.ext[SIGNATURE]  # the response may be passed on to a client
        return is_signed


def client_signer(
    credentials: Credentials,
    nameservers: Callable[[], Collection[str]],
    as_rocketmq: bool,
) -> RequestSigner:
    """Return the signer of a client. One with the keys of the inner user demands proofs."""
    demand = Demand.PROOF if credentials.is_inner else Demand.NOTHING
    return RequestSigner(Signer(credentials), SystemClock(), demand, nameservers, as_rocketmq)


def _not_proven(address: str, response: RemotingCommand) -> NotProven:
    remark = "" if response.remark is None else f" with the remark {response.remark[:500]!r}"
    return NotProven(
        address,
        f"the response (code {response.code}{remark}) is not signed with the key of the request: this is no "
        "process of the cluster, or one with other keys, without inner_credentials_file, behind an address "
        "that is not in its receiver_addresses, or of an older version (see docs/security.md, Upgrade)",
    )
