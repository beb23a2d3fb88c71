"""QUERY_ASSIGNMENT: a RocketMQ client with `clientRebalance` false requests its queues from a broker.

The broker takes all readable queues of the topic's route and allocates them among the group's members by the
requested strategy. A client that rebalances itself computes the same result, so both kinds of client can be
members of one group.

A group in POP mode shares the queues. Each member may pop from all queues of each broker (queue id -1), or,
with a pop share number N below the number of the others, from its own queues and those of the next N members.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import orjson

from actors.broker.core.metadata.request_modes import POP, PULL, RequestModes
from actors.strategies import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueStrategy,
)
from actors.transport.clients.nameservers import Nameservers
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.wire.bodies.body import Body, queue_json, wire
from actors.wire.bodies.groups import BROADCASTING, GroupMembers
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.header import ClientId, Group, Name, Topic
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, DecodedRequest, Resource, Target
from store.message.message_queue import MessageQueue

# RocketMQ's brokers have these strategies too. A client that requests another one gets no queues.
STRATEGIES: dict[str, AllocateMessageQueueStrategy] = {
    strategy.name: strategy
    for strategy in (AllocateMessageQueueAveragely(), AllocateMessageQueueAveragelyByCircle())
}

FindMembers = Callable[[str, Callable[[GroupMembers], None]], None]
"""Calls its second argument, now or later, with the members of the group that the first one names."""


class QueryAssignment(Body):
    """One client's request for its queues of a topic: RocketMQ's QueryAssignmentRequestBody."""

    title = "query of an assignment"
    values_max = 1_000

    topic: Topic = ""
    group: Group = wire(name="consumerGroup", default="")
    client_id: ClientId = ""
    strategy: Name = wire(name="strategyName", default="")
    message_model: Name = ""


class Assignments:
    """Request handler for QUERY_ASSIGNMENT."""

    def __init__(self, nameservers: Nameservers, find_members: FindMembers, modes: RequestModes) -> None:
        """Create the handler; `find_members` finds the members of a group, `modes` has their modes."""
        self._modes = modes
        self._nameservers = nameservers
        self._find_members = find_members

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, served = RequestCode.QUERY_ASSIGNMENT, OnSlave.SERVED
        return (RequestRow(code, self.query, None, _targets, Cost.CLIENT, on_slave=served),)

    def query(self, context: RequestContext) -> None:
        """Handle QUERY_ASSIGNMENT: respond with the queues of a topic that are assigned to the client."""
        context.spawn(self._query(context, QueryAssignment.decode(context.command.body)))

    async def _query(self, context: RequestContext, request: QueryAssignment) -> RemotingCommand | None:
        try:
            route = await self._nameservers.route(request.topic)
        except RemotingError as error:
            remark = f"no nameserver of the cluster returned the route of topic {request.topic!r}: {error}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from error
        queues = _readable(request.topic, route)
        if request.message_model == BROADCASTING:
            return _response(queues, PULL)
        mode = self._modes.of(request.topic, request.group)
        share = partial(_share_pops, mode.pop_share_queue_num) if mode.mode == POP else _share
        self._find_members(
            request.group,
            lambda known: context.reply(_response(share(request, queues, known.members), mode.mode)),
        )
        return None


def _readable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.is_readable
        for queue_id in range(data.read_queue_nums)
    ]


def _response(queues: Iterable[MessageQueue], mode: str) -> RemotingCommand:
    """Return the response with RocketMQ's QueryAssignmentResponseBody."""
    assigned = [{"messageQueue": queue_json(queue), "mode": mode} for queue in queues]
    return RemotingCommand.response(body=orjson.dumps({"messageQueueAssignments": assigned}))


def _share(
    request: QueryAssignment, queues: list[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    strategy = STRATEGIES.get(request.strategy)
    return strategy.allocate(request.client_id, queues, members) if strategy else ()


def _share_pops(
    following: int, request: QueryAssignment, queues: list[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    """Return the queues that a member pops from: its own, and those of the `following` next members."""
    if not 0 < following < len(members) - 1:
        brokers = sorted({queue.broker_name for queue in queues})
        return [MessageQueue(request.topic, broker_name, -1) for broker_name in brokers]
    clients = sorted(members)
    if request.client_id not in clients or not queues:
        return ()
    index = clients.index(request.client_id)
    if len(clients) > len(queues):
        return [sorted(queues)[index % len(queues)]]
    near = [clients[(index + step) % len(clients)] for step in range(following + 1)]
    return [queue for each in near for queue in _share(_of_client(request, each), queues, clients)]


def _of_client(request: QueryAssignment, client_id: str) -> QueryAssignment:
    return msgspec.structs.replace(request, client_id=client_id)


def _targets(context: DecodedRequest) -> Iterable[Target]:
    query = QueryAssignment.decode(context.command.body)
    return (
        Target(Resource.GROUP, query.group, Action.SUB),
        Target(Resource.TOPIC, query.topic, Action.SUB),
    )
