"""RaftRequests: receives the messages of other replicas of a Raft group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from actors.broker.replication.raft.message_codec import decode_message, encode_message
from actors.raft.members import Member
from actors.raft.messages import Message
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES, RemotingCommand
from actors.wire.headers import RaftMessageHeader
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster
from store.common.logs import get_logger

_log = get_logger(__name__)


class RaftPeer(NamedTuple):
    """This replica, as the receiver of messages."""

    group: str
    me: Member
    receive: Callable[[Message, str, str], None]
    """Called with each message for this replica, its sender's address and group id; it may raise Refused."""


class RaftRequests:
    """Request handler for RAFT_MESSAGE. With users configured, only the inner user may send one."""

    def __init__(self, peer: RaftPeer | None) -> None:
        """Create the handler; without `peer`, the broker is in no group and refuses all messages."""
        self._peer = peer
        self._logged = ""

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        return (
            RequestRow(
                RayMQRequestCode.RAFT_MESSAGE, self.receive, RaftMessageHeader, on_cluster(Action.UPDATE),
                body_bytes_max=MAX_FRAME_BYTES, on_slave=OnSlave.SERVED, is_inner=True,
            ),
        )  # fmt: skip

    def receive(self, context: RequestContext) -> RemotingCommand:
        """Handle RAFT_MESSAGE. The sender of a one-way request gets no response, so refusals are logged."""
        try:
            self._receive(context)
        except Refused as refused:
            if refused.remark != self._logged:
                self._logged = refused.remark
                _log.warning("raft_message_refused", peer=context.connection.peer, reason=refused.remark)
            raise
        return RemotingCommand.response()

    def _receive(self, context: RequestContext) -> None:
        peer, header = self._peer, context.header
        if peer is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is in no Raft group, so it takes no message of group {header.raft_group!r}",
            )
        if header.raft_group != peer.group:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"a message of group {header.raft_group!r}, but this is {peer.me} of group {peer.group!r}",
            )
        to = Member(header.to_replica, header.to_store_id)
        if to != peer.me:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"a message for {to}, but this is {peer.me}: the sender has an old address or store id",
            )
        try:
            message = decode_message(context.command.body)
        except ValueError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"not a message of a Raft group: {error}") from None
        if message.sender == peer.me:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"a message to {peer.me} from itself")
        peer.receive(message, header.sender_address, header.group_id)


def raft_message(
    group: str, to: Member, message: Message, sender_address: str = "", group_id: str = ""
) -> RemotingCommand:
    """Return the request that carries a message to a member. Raises ValueError if it exceeds a limit."""
    header = RaftMessageHeader(group, to.replica, to.store_id, sender_address, group_id)
    return RemotingCommand(RayMQRequestCode.RAFT_MESSAGE, header.to_ext(), encode_message(message))
