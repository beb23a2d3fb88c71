"""Forwarder: a replica of a Raft group sends requests of clients to the leader, a slave to its master.

RocketMQ's clients refresh their routes every 30 s, and not when a send fails. After a planned change of the
leader they send to the former one until then, so it forwards what it does not serve. Changes that mqadmin
sends to all replicas of a cluster are forwarded by each follower, and each slave of a pair, at any time.

    transfer begins ──→ requests are held ──new leader accepts sends──→ forwarded ──window over──→ refused
                                        └──no other leader elected──→ handled here

The new leader checks the permissions of the user again, as for requests through a gateway (`OnBehalfOf`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from actors.access.authorization import source_of
from actors.bounds import AtLimit, Bound, Use
from actors.transport.client import RemotingClient
from actors.transport.request import OnSlave, RequestContext
from actors.wire.codes import FLAG_ONEWAY, ResponseCode, request_name
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import ConnectFailed, Refused, RemotingError
from actors.wire.signing import ACCESS_KEY, ON_BEHALF_OF, ON_BEHALF_OF_SOURCE, SIGNATURE
from store.common.clock import NS_PER_MS, Clock

HOLD_MS: Final = 2_500
"""How long a request waits for the new leader; RocketMQ's clients wait 3 s for the response to a send."""
RETRY_MS: Final = 10
FORWARD_TIMEOUT_MS: Final = 40_000
"""Exceeds the longest time for which a leader holds a request."""
FORWARDED: Final = "Forwarded"
"""Field of a forwarded request: another follower does not forward it again."""
WAITING: Final = Bound(
    "forwarded_bytes",
    64 << 20,
    AtLimit.REFUSE,
    "Bytes of requests that wait for the leader of a Raft group, with 1 KiB for each.",
)
REQUEST_BYTES: Final = 1024


class Forwarder:
    """Chain step that forwards requests for some time after a transfer of the leadership."""

    def __init__(
        self,
        client: RemotingClient,
        accepts_sends: Callable[[], bool],
        leader_address: Callable[[], str],
        sender_of: Callable[[RequestContext], str | None],
        clock: Clock,
        *,
        serves_reads: Callable[[], bool],
        handle: Callable[[RequestContext], RemotingCommand | None],
    ) -> None:
        """Create the step.

        Args:
            client: sends the requests; it signs them as the inner user if there are users.
            accepts_sends: returns True while this replica leads and appends.
            leader_address: returns the address of another replica that leads, or an empty text.
            sender_of: returns the user on whose behalf a request is sent, as `BrokerAccess.sender_of`.
            clock: for the end of the window.
            serves_reads: returns True if a follower serves pulls.
            handle: handles a request here, and returns the response, or None if it is sent later.
        """
        self._client = client
        self._accepts_sends = accepts_sends
        self._leader_address = leader_address
        self._sender_of = sender_of
        self._clock = clock
        self._serves_reads = serves_reads
        self._handle = handle
        self._until_ms = 0
        self._waiting_bytes = 0

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (WAITING.use(lambda: self._waiting_bytes),)

    def begin(self, window_ms: int) -> None:
        """Forward requests for this time, beginning now."""
        self._until_ms = self._now_ms() + window_ms

    def end(self) -> None:
        """Forward no further requests."""
        self._until_ms = 0

    def __call__(self, context: RequestContext) -> bool:
        """Take the request over if another replica must handle it. Raises Refused if too many wait."""
        is_change = context.row.is_for_all and FORWARDED not in context.command.ext
        if self._accepts_sends() or not (is_change or self._now_ms() < self._until_ms):
            return False
        on_slave = context.row.on_slave
        if on_slave is OnSlave.SERVED or (on_slave is OnSlave.READ and self._serves_reads()):
            return False
        fields = context.command.ext.items()
        size_bytes = REQUEST_BYTES + len(context.command.body) + sum(map(len, chain.from_iterable(fields)))
        if self._waiting_bytes + size_bytes > WAITING.limit:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{self._waiting_bytes:,} bytes of requests wait for the new leader, and this one with "
                f"{size_bytes:,} exceeds the limit of {WAITING.limit:,}: send again",
            )
        self._waiting_bytes += size_bytes
        context.spawn(self._forward(context, size_bytes))
        return True

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // NS_PER_MS

    async def _forward(self, context: RequestContext, size_bytes: int) -> RemotingCommand | None:
        try:
            return await self._response(context)
        finally:
            self._waiting_bytes -= size_bytes

    async def _response(self, context: RequestContext) -> RemotingCommand | None:
        deadline_ms = self._now_ms() + HOLD_MS
        while not self._accepts_sends():
            response = await self._attempt(context)
            if response is not None and response.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                return response
            if self._now_ms() >= deadline_ms:
                if response is not None:
                    return response
                raise Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"{request_name(context.command.code)} is refused: the leader of the group is not known "
                    f"after {HOLD_MS:,} ms",
                )
            await asyncio.sleep(RETRY_MS / 1000)
        return self._handle(context)  # the transfer has failed

    async def _attempt(self, context: RequestContext) -> RemotingCommand | None:
        """Return the leader's response; None if there is no leader yet. Raises Refused if it was lost."""
        address = self._leader_address()
        if not address:
            return None
        command = self._copy(context)
        if context.command.flag & FLAG_ONEWAY:
            self._client.oneway(address, command)
            return RemotingCommand.response()
        try:
            return await self._client.invoke(address, command, FORWARD_TIMEOUT_MS)
        except ConnectFailed:
            return None
        except RemotingError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"forwarded to the leader: {error}") from error

    def _copy(self, context: RequestContext) -> RemotingCommand:
        command = context.command
        ext = {name: value for name, value in command.ext.items() if name not in (ACCESS_KEY, SIGNATURE)}
        ext[FORWARDED] = "true"
        user = self._sender_of(context)
        if user is not None:
            ext[ON_BEHALF_OF], ext[ON_BEHALF_OF_SOURCE] = user, str(source_of(context)) if user else ""
        return RemotingCommand(
            command.code, ext, command.body, language=command.language, version=command.version
        )
