"""Requests that list connected clients, and requests that the broker forwards to a client."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from actors.broker.group.clients import CLIENT_TIMEOUT_MS, Clients, Member
from actors.broker.group.subscriptions import subscription_data
from actors.broker.loop.reads import Reads
from actors.remoting.admin_headers import (
    ClientHeader,
    ConsumerStatusHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
)
from actors.remoting.bodies.connected import (
    ClientConnection,
    ConsumerConnection,
    ProducerInfo,
    encode_producer_table,
    encode_producers,
    encode_subscription,
)
from actors.remoting.bodies.consumer_status import encode_of_group, table_of_member
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.headers import ConsumerGroupHeader
from actors.remoting.remoting_errors import Refused, RemotingError, TimedOut
from actors.remoting.request import RequestContext, RequestRow
from actors.remoting.targets import Action, Resource, each_of, on_every, on_group, on_topic
from store.clock import NS_PER_MS, Clock
from store.message.message_id import decode_message_id
from store.message_store import MessageStore
from store.store_errors import StoreError


class ClientAdmin:
    """Handles GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO and
    QUERY_SUBSCRIPTION_BY_CONSUMER; forwards GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY and
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS to clients.
    """

    def __init__(
        self,
        broker_name: str,
        clients: Clients[Connection],
        store: MessageStore,
        reads: Reads,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._clients = clients
        self._clock = clock
        self._store = store
        self._reads = reads

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        code, row = RequestCode, RequestRow
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
        """GET_CONSUMER_CONNECTION_LIST."""
        header: ConsumerGroupHeader = context.header
        group = self._clients.group(header.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
        body = ConsumerConnection(
            _connections(group.members.values()),
            {topic: subscription_data(each) for topic, each in sorted(group.subscriptions.items())},
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return RemotingCommand.response(body=body.encode())

    def producers(self, context: RequestContext) -> RemotingCommand:
        """GET_PRODUCER_CONNECTION_LIST."""
        header: ProducerGroupHeader = context.header
        connections = _connections(self._clients.producers(header.producer_group))
        if not connections:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
        return RemotingCommand.response(body=encode_producers(connections))

    def subscription(self, context: RequestContext) -> RemotingCommand:
        """QUERY_SUBSCRIPTION_BY_CONSUMER: the subscription of an online group to a topic."""
        header: GroupTopicHeader = context.header
        group = self._clients.group(header.group)
        found = group.subscriptions.get(header.topic) if group is not None else None
        wanted = None if found is None else subscription_data(found)
        return RemotingCommand.response(body=encode_subscription(header.group, header.topic, wanted))

    def all_producers(self, context: RequestContext) -> RemotingCommand:
        """GET_ALL_PRODUCER_INFO."""
        now_ns, now_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        groups = {
            group: [
                ProducerInfo(
                    member.client_id,
                    f"/{member.connection.peer}",  # as Java writes an address that has no name
                    member.connection.attributes.language or "OTHER",
                    member.connection.attributes.version,
                    now_ms - (now_ns - member.last_heartbeat_ns) // NS_PER_MS,
                )
                for member in self._clients.producers(group)
            ]
            for group in self._clients.producer_groups()
        }
        return RemotingCommand.response(body=encode_producer_table(groups))

    def running_info(self, context: RequestContext) -> None:
        """GET_CONSUMER_RUNNING_INFO: the member's own response, unchanged."""
        self._forward(context, bytes(context.command.body))

    def consume_directly(self, context: RequestContext) -> None:
        """CONSUME_MESSAGE_DIRECTLY: send a message to a member, and respond with its result."""
        header: ClientHeader = context.header
        _, offset = decode_message_id(header.msg_id or "")

        def read() -> bytes:
            try:
                return bytes(self._store.record_at(offset))
            except StoreError as error:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"no message at offset {offset}: {error}") from error

        self._reads.serve(context, read, lambda record: self._forward(context, record))

    def consumer_status(self, context: RequestContext) -> None:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets of each member that responds in time."""
        header: ConsumerStatusHeader = context.header
        group = self._clients.group(header.group)
        if group is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        wanted = header.client_addr.strip()
        members = [each for each in group.members.values() if wanted in ("", each.client_id)]
        statuses: dict[str, bytes] = {}
        left = len(members)

        def answered(client_id: str, answer: RemotingCommand | RemotingError) -> None:
            nonlocal left
            left -= 1
            if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS and answer.body:
                with suppress(Refused):  # an unreadable response counts as none
                    statuses[client_id] = table_of_member(bytes(answer.body))
            if not left:
                context.reply(RemotingCommand.response(body=encode_of_group(statuses)))

        ext = ConsumerStatusHeader(header.topic, header.group).to_ext()
        for member in members:
            command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
            member.connection.call(command, CLIENT_TIMEOUT_MS, partial(answered, member.client_id))
        if not members:
            context.reply(RemotingCommand.response(body=encode_of_group(statuses)))

    def _forward(self, context: RequestContext, body: bytes) -> None:
        """Forward the request to the member that it names, and respond with its response."""
        header: ClientHeader = context.header
        group = self._clients.group(header.consumer_group)
        member = group.members.get(header.client_id) if group is not None else None
        who = f"<{header.consumer_group}> <{header.client_id}>"
        if member is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer {who} not online")
        request = context.command
        ext = {**request.ext, "brokerName": self._broker_name}

        def answered(answer: RemotingCommand | RemotingError) -> None:
            if isinstance(answer, TimedOut):
                remark = f"consumer {who} Timeout: {answer}"
                context.reply(RemotingCommand.response(ResponseCode.CONSUME_MSG_TIMEOUT, remark))
            elif isinstance(answer, RemotingError):
                remark = f"invoke consumer {who} Exception: {answer}"
                context.reply(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
            else:
                context.reply(
                    RemotingCommand.response(answer.code, answer.remark, answer.ext, bytes(answer.body))
                )

        command = RemotingCommand(request.code, ext, body)
        member.connection.call(command, CLIENT_TIMEOUT_MS, answered)


def _connections(members: Iterable[Member[Connection]]) -> list[ClientConnection]:
    return [
        ClientConnection(
            member.client_id,
            member.connection.peer,
            member.connection.attributes.language or "OTHER",
            member.connection.attributes.version,
        )
        for member in members
    ]
