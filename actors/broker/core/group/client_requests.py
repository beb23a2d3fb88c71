"""Requests that register and unregister clients, and that return or assign the members of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.broker.core.group.clients import Clients, ConsumerHeartbeat, Subscription
from actors.broker.core.group.rebalancer_link import RebalancerLink
from actors.broker.core.group.subscriptions import compile_filter, compile_in_steps, subscription_data
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.registration import WhenRegistered
from actors.transport.connection import Connection
from actors.transport.request import (
    HEARTBEAT_BYTES_MAX,
    SYNC_BYTES_MAX,
    Cost,
    OnSlave,
    RequestContext,
    RequestRow,
    UserOf,
)
from actors.transport.slices import Steps, run_in_slices
from actors.wire.bodies.groups import (
    CONSUME_POP,
    ConsumerData,
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupReply,
    SyncGroupRequest,
)
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerGroupHeader, UnregisterClientHeader
from actors.wire.json_fields import get_object, load_request
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, DecodedRequest, Resource, Target, each_of, on_cluster, on_group
from store.common.logs import get_logger
from store.message.validate import MAX_RETRY_TOPIC_CHARS, RETRY_TOPIC_PREFIX

_log = get_logger(__name__)

CONFIG_VALUES_MAX = 10_000
SKIPPED: Final = Bound(
    "skipped_groups", 1_000, AtLimit.EVICT, "Refused groups of heartbeats that were logged."
)
"""Number of skipped groups that are remembered, so that each is logged once."""


class ClientRequests:
    """Request handler for group membership.

    Clients send HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP and
    SYNC_GROUP. A rebalancer sends GROUP_CHANGED.
    """

    def __init__(
        self,
        broker_name: str,
        clients: Clients[Connection],
        tables: BrokerTables,
        rebalancers: RebalancerLink,
        when_registered: WhenRegistered,
        user_of: UserOf,
    ) -> None:
        """Create the handler.

        Args:
            broker_name: the name of this broker.
            clients: the connected clients.
            tables: topics, groups and offsets.
            rebalancers: the connections to the rebalancers.
            when_registered: calls its argument when all nameservers have received the current topics.
            user_of: returns the user that signed a request.
        """
        self._broker_name = broker_name
        self._clients = clients
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._rebalancers = rebalancers
        self._when_registered = when_registered
        self._user_of = user_of
        self._skipped_groups = Newest[str, None](SKIPPED)

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.SERVED)
        code, cost, sub = RequestCode, Cost.CLIENT, on_group(Action.SUB)
        beat, size = Cost.HEARTBEAT, HEARTBEAT_BYTES_MAX
        leave = each_of(on_group(Action.PUB, "producer_group"), sub)
        return (
            row(RayMQRequestCode.SYNC_GROUP, self.sync_group, None, _synced_group, cost, SYNC_BYTES_MAX),
            row(code.GET_CONSUMER_LIST_BY_GROUP, self.members, ConsumerGroupHeader, sub, cost),
            row(code.CHECK_CLIENT_CONFIG, self.check, cost=cost, body_bytes_max=size),
            row(code.HEART_BEAT, self.heartbeat, None, _heartbeat_targets, beat, size),
            row(code.UNREGISTER_CLIENT, self.unregister, UnregisterClientHeader, leave, cost),
            *self.rebalancer_rows(),
        )

    def rebalancer_rows(self) -> Iterable[RequestRow]:
        """Return the rows for a rebalancer's requests, sent over the connection that this broker opened."""
        code, header, update = RayMQRequestCode.GROUP_CHANGED, ConsumerGroupHeader, on_cluster(Action.UPDATE)
        return (RequestRow(code, self.group_changed, header, update, Cost.CLIENT, on_slave=OnSlave.SERVED),)

    def heartbeat(self, context: RequestContext) -> None:
        """Handle HEART_BEAT: register the client in its groups.

        Creates missing consumer groups, if that is allowed, and their retry topics. As in RocketMQ, a group
        that is refused is skipped: the other groups of the client must not lose their member.
        """
        heartbeat = HeartbeatData.decode(context.command.body)
        connection = context.connection
        attributes = connection.attributes
        if attributes.client_id is None:  # the first heartbeat over this connection
            connection.on_close(self._connection_closed)
        attributes.client_id = heartbeat.client_id
        attributes.language = context.command.language
        attributes.version = context.command.version
        context.work(self._heartbeat(context, heartbeat))

    def _heartbeat(self, context: RequestContext, heartbeat: HeartbeatData) -> Steps:
        client_id, connection = heartbeat.client_id, context.connection
        user = self._user_of(context)
        registered: list[ConsumerData] = []
        for group in heartbeat.producer_groups:
            self._is_registered(
                group, partial(self._clients.register_producer, group, client_id, connection, user)
            )
            yield
        for each in heartbeat.consumers:
            register = partial(self._register_consumer, each, client_id, connection, user)
            if self._is_registered(each.group_name, register) and each.consume_type != CONSUME_POP:
                registered.append(each)
            for subscription in each.subscriptions:
                # Refused if too many filters are in use: then the pulls are refused too, with the reason.
                with suppress(Refused):
                    yield from compile_in_steps(subscription.sub_string, subscription.expression_type)
            yield
            if connection.is_closed:  # the client was removed from its groups
                return None
        heartbeat.consumers = registered
        if registered and self._rebalancers.is_used:
            self._rebalancers.forward_heartbeat(heartbeat, connection)
        # The client requests the route of its group's retry topic next, so it must be registered by then.
        self._when_registered(lambda: context.reply(RemotingCommand.response()))
        return None

    def check(self, context: RequestContext) -> None:
        """Handle CHECK_CLIENT_CONFIG: refuse the request if a starting consumer's filter is invalid."""
        context.work(self._check(context))

    def _check(self, context: RequestContext) -> Steps:
        fields = get_object(
            load_request(context.command.body, "client configuration", CONFIG_VALUES_MAX), "subscriptionData"
        )
        if fields:
            subscription = SubscriptionData.from_json(fields)
            yield from compile_in_steps(subscription.sub_string, subscription.expression_type)
            compile_filter(subscription.sub_string, subscription.expression_type)
        return RemotingCommand.response()

    def unregister(self, context: RequestContext) -> None:
        """Handle UNREGISTER_CLIENT: remove the client from a producer group, a consumer group or both.

        As in RocketMQ, this ends only what heartbeats over the same connection have registered.
        """
        context.work(self._unregister(context))  # after a heartbeat that takes long

    def _unregister(self, context: RequestContext) -> Steps:
        yield
        header: UnregisterClientHeader = context.header
        if header.producer_group:
            self._clients.unregister_producer(header.producer_group, header.client_id, context.connection)
        if header.consumer_group and self._clients.unregister_consumer(
            header.consumer_group, header.client_id, context.connection
        ):
            self._consumer_removed(header.consumer_group, header.client_id, connection_closed=False)
        return RemotingCommand.response()

    def members(self, context: RequestContext) -> None:
        """Handle GET_CONSUMER_LIST_BY_GROUP: respond with the rebalancer's member list.

        If the rebalancer does not respond, the broker responds with the members that are connected to itself.
        """
        header: ConsumerGroupHeader = context.header
        group, requester = header.consumer_group, context.connection.attributes.client_id

        def respond(known: GroupMembers) -> None:
            if requester is not None and requester not in known.members and self._is_member(group, requester):
                # A Java client that is missing in the list releases all its queues for at least 20 s.
                self._forward_again(group, requester, context.connection)
                members = tuple(sorted({*known.members, requester}))
                known = GroupMembers(members, known.is_self_assigning)
            if known.members:
                context.reply(RemotingCommand.response(body=known.encode()))
            else:
                remark = f"group {group!r} has no connected member: start a consumer of this group"
                context.reply(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))

        self.find_members(group, respond)

    def find_members(self, group: str, on_members: Callable[[GroupMembers], None]) -> None:
        """Call `on_members` with the members of a group, immediately or when the rebalancer has responded.

        Without a response, these are the members that are connected to this broker.
        """

        def on_known(known: GroupMembers | None) -> None:
            if known is None or not known.members:
                known = GroupMembers(self._local_members(group), is_self_assigning=True)
            on_members(known)

        if self._rebalancers.is_used:
            self._rebalancers.members(group, on_known)
        else:
            on_known(None)

    def sync_group(self, context: RequestContext) -> None:
        """Handle SYNC_GROUP: forward the queues that a member holds, and respond with its assignment.

        Raises Refused if the group may not consume, if the client id is another user's, or if this broker
        has no rebalancer.
        """
        request = SyncGroupRequest.decode(context.command.body)
        self._clients.check_user(request.group, request.client_id, self._user_of(context))
        self._groups.for_consuming(request.group)
        if not self._rebalancers.is_used:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this broker has no rebalancer, so members assign themselves: configure `rebalancers`",
            )

        def on_response(response: RemotingCommand | RemotingError) -> None:
            if isinstance(response, RemotingError):
                remark = f"the rebalancer of group {request.group!r} did not respond: {response}; retry later"
                context.reply(RemotingCommand.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
                return
            if response.code == ResponseCode.SUCCESS:
                self._fence(request.group, SyncGroupReply.decode(response.body))
            context.reply(RemotingCommand.response(response.code, response.remark, body=response.body))

        self._rebalancers.forward_sync(request, on_response)

    def group_changed(self, context: RequestContext) -> RemotingCommand:
        """Handle a rebalancer's GROUP_CHANGED: cache the new member list, if the request has one.

        Notifies the members of the group that are connected to this broker (NOTIFY_CONSUMER_IDS_CHANGED).
        """
        header: ConsumerGroupHeader = context.header
        if context.command.body:
            self._rebalancers.cache_members(header.consumer_group, GroupMembers.decode(context.command.body))
        else:
            self._rebalancers.drop_members(header.consumer_group)
        self._notify(header.consumer_group)
        return RemotingCommand.response()

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._skipped_groups.use(),)

    def expire(self) -> None:
        """Remove clients whose last heartbeat is older than the expiry time; call every few seconds."""
        for group, client_id in self._clients.expire():
            self._consumer_removed(group, client_id, connection_closed=True)

    def _is_registered(self, group: str, register: Callable[[], None]) -> bool:
        """Register a client in one group of its heartbeat. Return False if the group is refused."""
        try:
            register()
        except Refused as error:
            # Clients repeat their heartbeats every 30 s: log each group once.
            if group not in self._skipped_groups:
                self._skipped_groups[group] = None
                _log.warning("heartbeat_group_skipped", group=group[:100], error=error.remark)
            return False
        self._skipped_groups.pop(group, None)
        return True

    def _register_consumer(
        self, consumer: ConsumerData, client_id: str, connection: Connection, user: str | None
    ) -> None:
        group = self._groups.get(consumer.group_name)
        retry_topic = f"{RETRY_TOPIC_PREFIX}{group.group_name}"
        if (
            len(retry_topic) <= MAX_RETRY_TOPIC_CHARS
        ):  # else the group can consume, but not send messages back
            self._topics.ensure(retry_topic, max(group.retry_queue_nums, 1))
        subscriptions = {
            each.topic: Subscription(each.topic, each.sub_string, each.sub_version, each.expression_type)
            for each in consumer.subscriptions
        }
        heartbeat = ConsumerHeartbeat(
            consumer.group_name,
            subscriptions,
            consumer.consume_type,
            consumer.message_model,
            consumer.consume_from_where,
        )
        if self._clients.register_consumer(heartbeat, client_id, connection, user):
            self._changed(consumer.group_name)

    def _connection_closed(self, connection: Connection) -> None:
        run_in_slices(connection.hub, self._leave(self._clients.connection_closed(connection)))

    def _leave(self, members: Iterable[tuple[str, str]]) -> Steps:
        for group, client_id in members:
            self._consumer_removed(group, client_id, connection_closed=True)
            yield
        return None

    def _consumer_removed(self, group: str, client_id: str, *, connection_closed: bool) -> None:
        if self._rebalancers.is_used:
            self._rebalancers.forward_unregister(group, client_id, connection_closed=connection_closed)
        self._changed(group)

    def _changed(self, group: str) -> None:
        self._rebalancers.drop_members(group)
        if not self._rebalancers.is_used:
            self._notify(group)

    def _notify(self, group_name: str) -> None:
        group = self._clients.group(group_name)
        config = self._groups.table.groups.get(group_name)
        if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
            return
        ext = ConsumerGroupHeader(group_name).to_ext()
        for member in group.dividing():
            for connection in member.heartbeats_ns:
                connection.oneway(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext))

    def _is_member(self, group_name: str, client_id: str) -> bool:
        group = self._clients.group(group_name)
        return group is not None and client_id in group.members

    def _forward_again(self, group_name: str, client_id: str, connection: Connection) -> None:
        """Forward a member's last heartbeat again: its rebalancer has restarted or missed the heartbeat."""
        group = self._clients.group(group_name)
        if group is None or not self._rebalancers.is_used:
            return
        consumer = ConsumerData(
            group_name,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
            list(map(subscription_data, group.subscriptions.values())),
        )
        self._rebalancers.forward_heartbeat(HeartbeatData(client_id, [consumer]), connection)

    def _local_members(self, group_name: str) -> tuple[str, ...]:
        group = self._clients.group(group_name)
        return () if group is None else tuple(sorted(member.client_id for member in group.dividing()))

    def _fence(self, group: str, reply: SyncGroupReply) -> None:
        for assigned in reply.assigned:  # with what a member has reported, which may be any name
            queue = assigned.queue
            if queue.broker_name == self._broker_name and self._topics.has_queue(queue):
                self._offsets.claim(group, queue.topic, queue.queue_id, assigned.generation)


def _synced_group(context: DecodedRequest) -> Iterable[Target]:
    request = SyncGroupRequest.decode(context.command.body)
    yield Target(Resource.GROUP, request.group, Action.SUB)
    for topic in sorted({*request.subscriptions, *(each.queue.topic for each in request.owned)}):
        yield Target(Resource.TOPIC, topic, Action.SUB)


def _heartbeat_targets(context: DecodedRequest) -> Iterable[Target]:
    heartbeat = HeartbeatData.decode(context.command.body)
    for group in heartbeat.producer_groups:
        yield Target(Resource.GROUP, group, Action.PUB)
    for consumer in heartbeat.consumers:
        yield Target(Resource.GROUP, consumer.group_name, Action.SUB)
        for subscription in consumer.subscriptions:
            yield Target(Resource.TOPIC, subscription.topic, Action.SUB)
