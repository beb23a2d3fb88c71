"""Transfers: moves the leadership of a Raft group to another replica, on request and before a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from actors.broker.replication.raft.driver import RaftDriver
from actors.broker.replication.raft.forwarding import Forwarder
from actors.raft.members import Member, NotAllowed
from actors.raft.state import Timing
from actors.transport.request import Handler, OnSlave, RequestContext, RequestRow
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TransferLeadershipHeader
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster
from store.common.logs import get_logger

_log = get_logger(__name__)

POLL_MS: Final = 5
WAIT_MS: Final = 2 * Timing().election_ms
"""Exceeds the time after which a leader gives up a transfer."""


class Transfers:
    """Request handler for TRANSFER_LEADERSHIP."""

    def __init__(
        self,
        driver: RaftDriver,
        forwarder: Forwarder,
        address_of: Callable[[Member], str],
        forward_ms: Callable[[], int],
        flush_progress: Callable[[], object],
    ) -> None:
        """Create the handler.

        Args:
            driver: drives the node of this replica.
            forwarder: forwards requests to the new leader.
            address_of: returns the address of a member.
            forward_ms: returns how long requests are forwarded after a transfer.
            flush_progress: logs offsets and progress, which the new leader then has.
        """
        self._driver = driver
        self._forwarder = forwarder
        self._address_of = address_of
        self._forward_ms = forward_ms
        self._flush_progress = flush_progress

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        return (transfer_row(self.transfer),)

    def transfer(self, context: RequestContext) -> RemotingCommand | None:
        """Handle TRANSFER_LEADERSHIP; the response is sent when the other replica leads."""
        node = self._driver.node
        member = self._voter(context.header.to_replica)
        if node.leader is not None and (member == node.leader or context.header.dry_run):
            return RemotingCommand.response(ext={"leader": self._address_of(node.leader)})
        context.spawn(self._transfer(member))
        return None

    async def leave(self) -> None:
        """Before this replica stops: hand over to the other one with the longest log, if it leads."""
        match = self._driver.node.match_offsets
        for member in sorted(match, key=lambda each: -match[each]):
            try:
                await self.hand_over(member)
            except Refused as error:
                _log.warning("raft_transfer_failed", to=str(member), reason=error.remark)
            else:
                return

    def _voter(self, replica: int) -> Member:
        voters = {each.replica: each for each in self._driver.node.members.voters}
        if replica not in voters:
            known = ", ".join(map(str, voters))
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"replica {replica} is no voter of the group: these are {known}",
            )
        return voters[replica]

    async def _transfer(self, member: Member) -> RemotingCommand:
        await self.hand_over(member)
        return RemotingCommand.response(ext={"leader": self._address_of(member)})

    async def hand_over(self, member: Member) -> None:
        """Transfer the leadership, and wait until the member leads. Raises Refused if it does not."""
        driver = self._driver
        self._flush_progress()
        try:
            driver.transfer(member)
        except NotAllowed as error:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from None
        self._forwarder.begin(self._forward_ms())
        _log.info("raft_transfer_begun", to=str(member), term=driver.node.term)
        for _ in range(WAIT_MS // POLL_MS):
            if driver.accepts_sends:
                break
            if driver.node.leader not in (None, driver.node.me):
                _log.info("raft_transfer_ended", leader=str(driver.node.leader), term=driver.node.term)
                return
            await asyncio.sleep(POLL_MS / 1000)
        if driver.accepts_sends:
            self._forwarder.end()
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{member} did not take over: try again")


def transfer_row(handler: Handler) -> RequestRow:
    """Return the entry of the request table for TRANSFER_LEADERSHIP."""
    return RequestRow(
        RayMQRequestCode.TRANSFER_LEADERSHIP, handler, TransferLeadershipHeader, on_cluster(Action.UPDATE),
        on_slave=OnSlave.SERVED,
    )  # fmt: skip


def refuse_transfer(context: RequestContext) -> RemotingCommand:
    """Handle TRANSFER_LEADERSHIP on a broker that is in no Raft group."""
    raise Refused(
        ResponseCode.SYSTEM_ERROR,
        "this broker is in no Raft group, so its leadership cannot be transferred: see `raymq promote`",
    )
