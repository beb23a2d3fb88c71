"""OutstandingRequests: the request messages that wait for a reply; others get no replies.

    request message with CORRELATION_ID, REPLY_TO_CLIENT and TTL  →  remembered under its user until the TTL
    reply with both of them  →  pushed to the client with this id that the same user has registered

A reply may arrive at another broker than its request. That broker sends FIND_REQUEST to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.transport.chain import Step
from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow, UserOf
from actors.wire.bodies.routes import MASTER_ID
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import FindRequestHeader
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, on_cluster
from store.common.clock import NS_PER_MS, Clock
from store.message.properties import MessageConst, decode_properties

REQUESTS: Final = Bound(
    "requests_without_reply",
    10_000,
    AtLimit.EVICT,
    "Requests of one user that wait for their replies.",
)
"""The oldest request of a user is forgotten if it has more."""
TTL_DEFAULT_MS: Final = 3_000
TTL_MAX_MS: Final = 600_000
FIND_TIMEOUT_MS: Final = 1_000
_ID_CHARS_MAX: Final = 256
_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})


class OutstandingRequests:
    """The requests that passed this broker and whose time has not expired, by user and correlation id."""

    def __init__(self, clock: Clock, user_of: UserOf, *, is_enforced: bool) -> None:
        """Create the object.

        Args:
            clock: for the time until which a request waits.
            user_of: returns the user that has signed a request.
            is_enforced: False if all clients are equal, without access control: then all replies are known.
        """
        self.steps: tuple[Step, ...] = (self.note,) if is_enforced else ()
        """The steps of the request chain that remember the requests."""
        self._clock = clock
        self._user_of = user_of
        self._by_user: dict[str | None, Newest[str, tuple[str, int]]] = {}

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (REQUESTS.use(lambda: max(map(len, self._by_user.values()), default=0)),)

    def note(self, context: RequestContext) -> None:
        """Remember the request if it sends a request message (step of the request chain)."""
        if context.row.code not in _SENDS or MessageConst.REPLY_TO_CLIENT not in context.header.properties:
            return
        properties = decode_properties(context.header.properties.encode("utf-8", "replace"))
        client_id = properties.get(MessageConst.REPLY_TO_CLIENT, "")
        correlation_id = properties.get(MessageConst.CORRELATION_ID, "")
        if not client_id or not 0 < len(correlation_id) <= _ID_CHARS_MAX:
            return
        requests = self._by_user.setdefault(self._user_of(context), Newest(REQUESTS))
        requests[correlation_id] = (client_id, self._clock.monotonic_ns() + _ttl_ms(properties) * NS_PER_MS)

    def may_reply(
        self, context: RequestContext, user: str | None, client_id: str, correlation_id: str
    ) -> bool:
        """Return True if a client of this user waits for the reply, or if its sender may do everything."""
        if not self.steps or self._user_of(context) is None:
            return True
        return self.is_known(user, client_id, correlation_id)

    def is_known(self, user: str | None, client_id: str, correlation_id: str) -> bool:
        """Return True if a client of this user waits for the reply."""
        requests = self._by_user.get(user)
        found = None if requests is None else requests.get(correlation_id)
        return found is not None and found[0] == client_id and self._clock.monotonic_ns() < found[1]

    def rows(self) -> Iterable[RequestRow]:
        """Return the row of FIND_REQUEST, which only the processes of the cluster may send."""
        code, targets = RayMQRequestCode.FIND_REQUEST, on_cluster(Action.UPDATE)
        return (
            RequestRow(code, self.find, FindRequestHeader, targets, Cost.CLIENT, on_slave=OnSlave.SERVED),
        )

    def find(self, context: RequestContext) -> RemotingCommand:
        """Handle FIND_REQUEST: respond with SUCCESS or QUERY_NOT_FOUND."""
        header: FindRequestHeader = context.header
        is_known = self.is_known(header.user or None, header.client_id, header.correlation_id)
        return RemotingCommand.response(ResponseCode.SUCCESS if is_known else ResponseCode.QUERY_NOT_FOUND)


class OtherBrokers:
    """Finds the requests that passed other brokers of the cluster."""

    def __init__(self, client: RemotingClient, nameservers: Nameservers, address: str) -> None:
        """Create the object; `client` sends the requests, `address` is the address of this broker."""
        self._client = client
        self._nameservers = nameservers
        self._address = address

    async def know(self, user: str | None, client_id: str, correlation_id: str, reply_topic: str) -> bool:
        """Return True if a broker with the reply topic knows the request."""
        ext = FindRequestHeader(correlation_id, client_id, user or "").to_ext()
        responses = await asyncio.gather(
            *(
                self._invoke(address, RemotingCommand(RayMQRequestCode.FIND_REQUEST, ext))
                for address in await self._masters(reply_topic)
                if address != self._address
            )
        )
        return any(each is not None for each in responses)

    async def _masters(self, topic: str) -> list[str]:
        try:
            brokers = (await self._nameservers.route(topic)).broker_datas
        except (RemotingError, Refused):
            return []
        return [each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs]

    async def _invoke(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        """Return the response, or None if it is an error."""
        try:
            response = await self._client.invoke(address, command, FIND_TIMEOUT_MS)
        except RemotingError:
            return None
        return response if response.code == ResponseCode.SUCCESS else None


def _ttl_ms(properties: dict[str, str]) -> int:
    text = properties.get(MessageConst.TTL, "")
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(TTL_MAX_MS)):
        return TTL_DEFAULT_MS
    return min(int(text), TTL_MAX_MS)
