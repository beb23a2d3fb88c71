"""Replies: RocketMQ's request-reply messaging (SEND_REPLY_MESSAGE 324 and 325).

    requester ──request message with its client id──> broker ──> consumer
    requester <──PUSH_REPLY_MESSAGE_TO_CLIENT 326──── broker <──reply with that client id── consumer

The broker also stores the reply like any other message. With access control, it pushes a reply only to the
client that has sent the request with its correlation id (`OutstandingRequests`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from actors.broker.core.group.clients import CLIENT_TIMEOUT_MS, Clients, GroupMember
from actors.broker.core.metadata.topics import refuse_broker_only
from actors.broker.core.sending.outstanding_requests import OtherBrokers, OutstandingRequests
from actors.broker.core.sending.send import Sender
from actors.transport.connection import Connection
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES, RemotingCommand
from actors.wire.hot_headers import SendMessageHeader, SendMessageHeaderV1
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, on_topic
from store.common.clock import Clock
from store.message.properties import MessageConst, decode_properties, encode_properties


class Replies:
    """Pushes each reply message to the client that sent the request message."""

    def __init__(
        self,
        sender: Sender,
        clients: Clients[Connection],
        clock: Clock,
        address: str,
        added_fields: Mapping[str, str],
        requests: OutstandingRequests,
        others: OtherBrokers,
    ) -> None:
        """Create the handler.

        Args:
            sender: stores a reply after the requester has acknowledged it.
            clients: finds the connection of the requester.
            clock: for the time at which the broker received a reply.
            address: the broker's address, `host:port`.
            added_fields: properties that every reply gets: region and trace. RocketMQ adds them by a hook,
                before the reply is pushed.
            requests: the requests that wait for a reply.
            others: finds requests that passed another broker.
        """
        self._requests = requests
        self._others = others
        self._clients = clients
        self._clock = clock
        self._store_host = address
        self._sender = sender
        self._added = added_fields

    def rows(self) -> Iterable[RequestRow]:
        """Return the rows of the request table that this object handles."""
        row = partial(RequestRow, on_slave=OnSlave.BUSY)
        code, pub, frame = RequestCode, on_topic(Action.PUB), MAX_FRAME_BYTES
        return (
            *self._requests.rows(),
            row(code.SEND_REPLY_MESSAGE, self.send, SendMessageHeaderV1, pub, Cost.SEND, frame),
            row(code.SEND_REPLY_MESSAGE_V2, self.send, SendMessageHeader, pub, Cost.SEND, frame),
        )

    def send(self, context: RequestContext) -> None:
        """Handle SEND_REPLY_MESSAGE and _V2: push the reply, store it, then respond."""
        header: SendMessageHeader = context.header
        refuse_broker_only(header.topic)  # before the push, because the send follows it
        properties = decode_properties(header.properties.encode())
        client_id = properties.get(MessageConst.REPLY_TO_CLIENT)
        if not client_id:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the reply has no property {MessageConst.REPLY_TO_CLIENT}: set it to the client id of the "
                "requester",
            )
        members = self._clients.producers_with(client_id)
        if not members:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> not found."
            )
        correlation_id = properties.get(MessageConst.CORRELATION_ID, "")
        for member in members:
            if self._requests.may_reply(context, member.user, client_id, correlation_id):
                self._push(context, properties, member)
                return
        context.spawn(self._push_if_known(context, properties, members))

    async def _push_if_known(
        self, context: RequestContext, properties: dict[str, str], members: Sequence[GroupMember[Connection]]
    ) -> None:
        """Push the reply if its request passed another broker. Raises Refused (NO_PERMISSION) if not."""
        header: SendMessageHeader = context.header
        correlation_id = properties.get(MessageConst.CORRELATION_ID, "")
        for member in members:
            if await self._others.know(member.user, member.client_id, correlation_id, header.topic):
                self._push(context, properties, member)
                return
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"client {members[0].client_id[:200]!r} waits for no reply with {MessageConst.CORRELATION_ID} "
            f"{correlation_id[:100]!r}: reply within the {MessageConst.TTL} of the request",
        )

    def _push(
        self, context: RequestContext, properties: dict[str, str], member: GroupMember[Connection]
    ) -> None:
        client_id = member.client_id

        def pushed(response: RemotingCommand | RemotingError) -> None:
            if isinstance(response, RemotingError) or response.code != ResponseCode.SUCCESS:
                cause = response if isinstance(response, RemotingError) else response.remark
                remark = f"push reply message to {client_id} fail: {cause}"
                context.reply(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
                return
            try:
                self._sender.send(context)
            except Exception as error:  # noqa: BLE001 - becomes the response, as in the request chain
                context.refuse(error)

        member.connection.call(self._push_command(context, properties), CLIENT_TIMEOUT_MS, pushed)

    def _push_command(self, context: RequestContext, properties: dict[str, str]) -> RemotingCommand:
        header: SendMessageHeader = context.header
        now_ms = self._clock.wall_ms()
        ext = header.long_ext()
        properties |= self._added
        properties[MessageConst.PUSH_REPLY_TIME] = str(now_ms)
        ext["properties"] = encode_properties(properties).decode()
        ext["bornHost"] = context.connection.peer
        ext["storeHost"] = self._store_host
        ext["storeTimestamp"] = str(now_ms)
        return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, context.command.body)
