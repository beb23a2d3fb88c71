"""Requests that list connected clients, and requests that the broker forwards to connected clients."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from actors.broker.core.group.clients import CLIENT_TIMEOUT_MS, Clients, GroupMember
from actors.broker.core.group.subscriptions import subscription_data
from actors.broker.core.loop.reads import Reads, stored_record
from actors.transport.connection import Connection
from actors.transport.request import OnSlave, Permits, RequestContext, RequestRow, TopicCheck
from actors.wire.admin_headers import (
    ClientHeader,
    ConsumerStatusHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
)
from actors.wire.bodies.connected import (
    ClientConnection,
    ConsumerConnection,
    ProducerInfo,
    encode_producer_table,
    encode_producers,
    encode_subscription,
)
from actors.wire.bodies.consumer_status import encode_of_group, table_of_member
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerGroupHeader
from actors.wire.remoting_errors import Refused, RemotingError, TimedOut
from actors.wire.targets import Action, Resource, Target, each_of, on_every, on_group, on_topic
from store.common.clock import NS_PER_MS, Clock
from store.message.message_id import decode_message_id
from store.message.record import decode_record
from store.message_store import MessageStore


class ClientAdmin:
    """Request handler that lists connected clients and forwards requests to them.

    It lists clients for GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO and
    QUERY_SUBSCRIPTION_BY_CONSUMER. It forwards GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY and
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS to clients, and relays their responses.
    """

    def __init__(
        self,
        broker_name: str,
        clients: Clients[Connection],
        store: MessageStore,
        reads: Reads,
        clock: Clock,
        may_read: TopicCheck,
        permits: Permits,
    ) -> None:
        self._may_read = may_read
        self._permits = permits
        self._broker_name = broker_name
        self._clients = clients
        self._clock = clock
        self._store = store
        self._reads = reads

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, row = RequestCode, partial(RequestRow, on_slave=OnSlave.SERVED)
        get, update = on_group(Action.GET), on_group(Action.UPDATE)
        producers, every = on_group(Action.GET, "producer_group"), on_every(Resource.GROUP, Action.LIST)
        both = each_of(on_group(Action.GET, "group"), on_topic(Action.GET))
        status = code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        return (
            row(code.GET_CONSUMER_CONNECTION_LIST, self.consumers, ConsumerGroupHeader, get),
            row(code.GET_PRODUCER_CONNECTION_LIST, self.producers, ProducerGroupHeader, producers),
            row(code.GET_ALL_PRODUCER_INFO, self.all_producers, None, every),
            row(code.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription, GroupTopicHeader, both),
            row(code.GET_CONSUMER_RUNNING_INFO, self.running_info, ClientHeader, get),
            row(code.CONSUME_MESSAGE_DIRECTLY, self.consume_directly, ClientHeader, update),
            row(status, self.consumer_status, ConsumerStatusHeader, both),
        )

    def consumers(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_CONSUMER_CONNECTION_LIST: return the members and the subscriptions of a consumer group.

        Raises Refused (CONSUMER_NOT_ONLINE) if no member is connected to this broker.
        """
        header: ConsumerGroupHeader = context.header
        group = self._clients.group(header.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
        body = ConsumerConnection(
            _connections(group.members.values()),
            {
                topic: subscription_data(each)
                for topic, each in sorted(group.subscriptions.items())
                if self._permits(context, Target(Resource.TOPIC, topic, Action.GET))
            },
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return RemotingCommand.response(body=body.encode())

    def producers(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_PRODUCER_CONNECTION_LIST: return the connected members of a producer group.

        Raises Refused (SYSTEM_ERROR) if no member is connected to this broker.
        """
        header: ProducerGroupHeader = context.header
        connections = _connections(self._clients.producers(header.producer_group))
        if not connections:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
        return RemotingCommand.response(body=encode_producers(connections))

    def subscription(self, context: RequestContext) -> RemotingCommand:
        """Handle QUERY_SUBSCRIPTION_BY_CONSUMER: return a connected group's subscription to a topic."""
        header: GroupTopicHeader = context.header
        group = self._clients.group(header.group)
        subscription = group.subscriptions.get(header.topic) if group is not None else None
        data = None if subscription is None else subscription_data(subscription)
        return RemotingCommand.response(body=encode_subscription(header.group, header.topic, data))

    def all_producers(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_ALL_PRODUCER_INFO: return the connected producers of all groups."""
        now_ns, now_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        groups = {
            group: [
                ProducerInfo(
                    member.client_id,
                    f"/{connection.peer}",  # Java's text for an address without a host name
                    connection.attributes.language or "OTHER",
                    connection.attributes.version,
                    now_ms - (now_ns - heartbeat_ns) // NS_PER_MS,
                )
                for member in self._clients.producers(group)
                for connection, heartbeat_ns in member.heartbeats_ns.items()
            ]
            for group in self._clients.producer_groups()
        }
        return RemotingCommand.response(body=encode_producer_table(groups))

    def running_info(self, context: RequestContext) -> None:
        """Handle GET_CONSUMER_RUNNING_INFO: forward it to the member and relay its response."""
        self._forward(context, b"")

    def consume_directly(self, context: RequestContext) -> None:
        """Handle CONSUME_MESSAGE_DIRECTLY: send a stored message to a member and relay its result.

        Raises Refused if the sender of the request may not read the topic of the message.
        """
        header: ClientHeader = context.header
        _, offset = decode_message_id(header.msg_id or "")

        def read() -> bytes:
            return bytes(stored_record(self._store, offset))

        def forward(record: bytes) -> None:
            self._may_read(context, decode_record(record, check_crc=False).topic)
            self._forward(context, record)

        self._reads.serve(context, read, forward)

    def consumer_status(self, context: RequestContext) -> None:
        """Handle INVOKE_BROKER_TO_GET_CONSUMER_STATUS: return the offsets of each member of a group.

        The broker requests them from all members, or from the one that the request names. Members that do not
        respond within CLIENT_TIMEOUT_MS are omitted. Raises Refused (SYSTEM_ERROR) if the group has no
        connected member.
        """
        header: ConsumerStatusHeader = context.header
        group = self._clients.group(header.group)
        if group is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        requested_id = header.client_addr.strip()
        members = [each for each in group.members.values() if requested_id in ("", each.client_id)]
        statuses: dict[str, bytes] = {}
        pending = len(members)

        def on_response(client_id: str, response: RemotingCommand | RemotingError) -> None:
            nonlocal pending
            pending -= 1
            if (
                isinstance(response, RemotingCommand)
                and response.code == ResponseCode.SUCCESS
                and response.body
            ):
                with suppress(Refused):  # treat an unreadable response as a missing one
                    statuses[client_id] = table_of_member(bytes(response.body))
            if not pending:
                context.reply(RemotingCommand.response(body=encode_of_group(statuses)))

        ext = ConsumerStatusHeader(header.topic, header.group).to_ext()
        for member in members:
            command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
            member.connection.call(command, CLIENT_TIMEOUT_MS, partial(on_response, member.client_id))
        if not members:
            context.reply(RemotingCommand.response(body=encode_of_group(statuses)))

    def _forward(self, context: RequestContext, body: bytes) -> None:
        """Send the member that the header names a request with `body`, and relay the response.

        Only the fields of the header are sent, and no field of the response is relayed: the requester's
        AccessKey and Signature would let the member act as the requester.
        """
        header: ClientHeader = context.header
        group = self._clients.group(header.consumer_group)
        member = group.members.get(header.client_id) if group is not None else None
        consumer = f"<{header.consumer_group}> <{header.client_id}>"
        if member is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer {consumer} not online")
        ext = {**header.to_ext(), "brokerName": self._broker_name}

        def on_response(response: RemotingCommand | RemotingError) -> None:
            if isinstance(response, TimedOut):
                remark = f"consumer {consumer} Timeout: {response}"
                context.reply(RemotingCommand.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark))
            elif isinstance(response, RemotingError):
                remark = f"invoke consumer {consumer} Exception: {response}"
                context.reply(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
            else:
                context.reply(
                    RemotingCommand.response(response.code, response.remark, body=bytes(response.body))
                )

        command = RemotingCommand(context.row.code, ext, body)
        member.connection.call(command, CLIENT_TIMEOUT_MS, on_response)


def _connections(members: Iterable[GroupMember[Connection]]) -> list[ClientConnection]:
    return [
        ClientConnection(
            member.client_id,
            connection.peer,
            connection.attributes.language or "OTHER",
            connection.attributes.version,
        )
        for member in members
        for connection in member.heartbeats_ns
    ]
