"""Access: authenticates the clients of a gateway, and checks permissions that no broker checks otherwise.

    call ──► signature ──► CHECK_USER to a broker, which knows the user's key ──► Caller
    rpc  ──► requests on behalf of the caller ──► each broker checks the user's policies and the address

A checked signature is accepted for CHECKED_MS without asking again. A user that was disabled or has lost a
permission is refused by the brokers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from actors.access.signatures import FREE_FAILURES, REFUSAL_DELAY_MS, Failures, packed_network
from actors.bounds import AtLimit, Bound, Newest, Use
from actors.gateway.callers import Caller, Signature, caller_source, client_id_of
from actors.gateway.groups import group_name
from actors.gateway.grpc.calls import Call
from actors.gateway.proto.definition_pb2 import Code, Resource
from actors.gateway.statuses import RpcFailed
from actors.gateway.topics import topic_name
from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers
from actors.wire.bodies.routes import ClusterInfo
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.raymq_requests import CheckUserHeader, encode_targets
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, Target
from actors.wire.targets import Resource as Kind
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

CHECKED_MS: Final = 20_000
CHECKED: Final = Bound(
    "gateway_signatures",
    20_000,
    AtLimit.EVICT,
    "Signatures that a broker has checked; SDKs make a new one each second.",
)


class Access:
    """The users of one gateway's clients."""

    def __init__(
        self,
        nameservers: Nameservers | None,
        client: RemotingClient,
        clock: Clock,
        refresh_ms: int,
        timeout_ms: int,
    ) -> None:
        """Create the object.

        Args:
            nameservers: know the brokers; None if the cluster has no users.
            client: signs its requests as the inner user.
            clock: for the lifetime of what is kept.
            refresh_ms: time for which the list of brokers is used.
            timeout_ms: limits each request to a broker.
        """
        self._nameservers = nameservers
        self._client = client
        self._clock = clock
        self._refresh_ns = refresh_ms * NS_PER_MS
        self._timeout_ms = timeout_ms
        self._checked = Newest[tuple[Signature, str], int](CHECKED)
        self._failures = Failures()
        self._brokers: list[str] = []
        self._brokers_ns = 0

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._checked.use(), *self._failures.bounds())

    async def caller(self, call: Call) -> Caller:
        """Return the client of a call, with its user if the cluster has users.

        Raises RpcFailed if client id or signature are missing or wrong, RemotingError without a broker.
        """
        client_id = client_id_of(call.metadata)
        if self._nameservers is None:
            return Caller(client_id)
        signature, source = Signature.of(call.metadata), caller_source(call.peer)
        caller = Caller(client_id, signature.user, str(source))
        key, now_ns = (signature, caller.source), self._clock.monotonic_ns()
        # Without an entry the check is due, also if the monotonic clock has just begun at 0.
        if now_ns - self._checked.get(key, -CHECKED_MS * NS_PER_MS) < CHECKED_MS * NS_PER_MS:
            return caller
        header = CheckUserHeader(signature.text, signature.digits)
        try:
            await self._ask(lambda: caller.request(RayMQRequestCode.CHECK_USER, header))
        except Refused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            await self._note_failure(caller, source.packed)
            raise RpcFailed(Code.UNAUTHORIZED, str(error.remark)) from None
        self._checked[key] = now_ns
        return caller

    async def check(self, caller: Caller, *alternatives: Iterable[Target]) -> None:
        """Raise Refused unless the caller has permission for all targets of one of the alternatives."""
        refused: Refused | None = None
        for targets in alternatives if caller.user else ():
            body = encode_targets(targets)
            try:
                await self._ask(
                    lambda body=body: caller.request(  # type: ignore[misc]
                        RayMQRequestCode.CHECK_USER, CheckUserHeader(), body
                    )
                )
            except Refused as error:
                refused = error
            else:
                return
        if refused is not None:
            raise refused

    async def _note_failure(self, caller: Caller, address: bytes) -> None:
        """Log a failed signature; slow its address down after several."""
        count = self._failures.add(packed_network(address), self._clock.monotonic_ns())
        if count <= FREE_FAILURES:
            _log.warning("call_not_authenticated", peer=caller.source, user=caller.user[:100])
        else:
            await asyncio.sleep(REFUSAL_DELAY_MS / 1000)

    async def _ask(self, command: Callable[[], RemotingCommand]) -> None:
        """Send a request to the first broker that responds. Raises Refused or RemotingError."""
        failure: RemotingError | None = None
        for address in await self._addresses():
            try:
                await self._client.ask(address, command(), self._timeout_ms)
            except RemotingError as error:
                failure = error
            else:
                return
        self._brokers = []
        raise failure or RpcFailed(
            Code.INTERNAL_SERVER_ERROR, "no broker is registered that could check the user: start a broker"
        )

    async def _addresses(self) -> list[str]:
        now_ns = self._clock.monotonic_ns()
        if self._nameservers is None or (self._brokers and now_ns - self._brokers_ns < self._refresh_ns):
            return self._brokers
        found: dict[str, None] = {}
        for response in await self._nameservers.request_all(
            lambda: RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        ):
            if response.code == ResponseCode.SUCCESS:
                brokers = ClusterInfo.decode(response.body).brokers.values()
                found |= dict.fromkeys(each for of in brokers for each in of.broker_addrs.values())
        self._brokers, self._brokers_ns = list(found), now_ns
        return self._brokers


def targets_for(
    action: Action, groups: Iterable[Resource] = (), topics: Iterable[Resource] = ()
) -> list[Target]:
    """Return groups and topics as targets of an action. Raises RpcFailed if a name is not valid."""
    return [
        *(Target(Kind.GROUP, group_name(each), action) for each in groups),
        *(Target(Kind.TOPIC, topic_name(each), action) for each in topics),
    ]
