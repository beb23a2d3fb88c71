"""QUERY_ASSIGNMENT: a RocketMQ client with `clientRebalance` false requests its queues from a broker.

The broker takes all readable queues of the topic's route and allocates them among the group's members by the
requested strategy. A client that rebalances itself computes the same result, so both kinds of client can be
members of one group. All queues are assigned in PULL mode; POP is not supported.
"""

from collections.abc import Callable, Iterable, Sequence

import orjson

from actors.broker.metadata.request_modes import PULL
from actors.remoting.bodies.body import Body, queue_json, wire
from actors.remoting.bodies.groups import BROADCASTING, GroupMembers
from actors.remoting.bodies.routes import TopicRouteData
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.header import ClientId, Group, Name, Topic
from actors.remoting.headers import GetRouteInfoHeader
from actors.remoting.remoting_errors import RemotingError
from actors.remoting.request import Cost, RequestContext, RequestRow
from actors.remoting.targets import Action, DecodedRequest, Resource, Target
from actors.strategies import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueStrategy,
)
from store.message.message_queue import MessageQueue

ROUTE_TIMEOUT_MS = 3_000
"""Limit of one route request to a nameserver."""

# RocketMQ's brokers have these strategies too. A client that requests another one gets no queues.
STRATEGIES: dict[str, AllocateMessageQueueStrategy] = {
    strategy.name: strategy
    for strategy in (AllocateMessageQueueAveragely(), AllocateMessageQueueAveragelyByCircle())
}

OnQueues = Callable[[list[MessageQueue] | None], None]
"""Receives the readable queues of a topic, or None if no nameserver returned its route."""
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


def encode_assignment(queues: Iterable[MessageQueue]) -> bytes:
    """Encode RocketMQ's QueryAssignmentResponseBody."""
    assigned = [{"messageQueue": queue_json(queue), "mode": PULL} for queue in queues]
    return orjson.dumps({"messageQueueAssignments": assigned})


class Assignments:
    """Request handler for QUERY_ASSIGNMENT."""

    def __init__(self, client: RemotingClient, nameservers: Sequence[str], find_members: FindMembers) -> None:
        """Create the handler.

        Args:
            client: sends route requests to the nameservers.
            nameservers: their addresses, in the order in which they are tried.
            find_members: finds the members of a group.
        """
        self._client = client
        self._nameservers = nameservers
        self._find_members = find_members

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        return (RequestRow(RequestCode.QUERY_ASSIGNMENT, self.query, None, _targets, Cost.CLIENT),)

    def query(self, context: RequestContext) -> None:
        """Handle QUERY_ASSIGNMENT: respond with the queues of a topic that are assigned to the client."""
        request = QueryAssignment.decode(context.command.body)

        def respond(share: Iterable[MessageQueue]) -> None:
            context.reply(RemotingCommand.response(body=encode_assignment(share)))

        def assign(queues: list[MessageQueue] | None) -> None:
            if queues is None:
                remark = (
                    f"no nameserver of {', '.join(self._nameservers)} returned the route of topic "
                    f"{request.topic!r}: check that the nameservers are running"
                )
                context.reply(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
            elif request.message_model == BROADCASTING:
                respond(queues)
            else:
                self._find_members(
                    request.group, lambda known: respond(_share(request, queues, known.members))
                )

        self._find_queues(request.topic, list(self._nameservers), assign)

    def _find_queues(self, topic: str, nameservers: list[str], on_queues: OnQueues) -> None:
        """Request the topic's route from one nameserver after the other, until one responds.

        `on_queues` receives an empty list if the topic does not exist.
        """
        if not nameservers:
            on_queues(None)
            return
        address, *others = nameservers

        def on_response(response: RemotingCommand | RemotingError) -> None:
            if isinstance(response, RemotingError):
                self._find_queues(topic, others, on_queues)
            elif response.code == ResponseCode.TOPIC_NOT_EXIST:
                on_queues([])
            elif response.code != ResponseCode.SUCCESS:
                self._find_queues(topic, others, on_queues)
            else:
                on_queues(_readable(topic, TopicRouteData.decode(response.body)))

        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic).to_ext())
        self._client.invoke_callback(address, command, ROUTE_TIMEOUT_MS, on_response)


def _readable(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.is_readable
        for queue_id in range(data.read_queue_nums)
    ]


def _share(
    request: QueryAssignment, queues: list[MessageQueue], members: Sequence[str]
) -> Sequence[MessageQueue]:
    strategy = STRATEGIES.get(request.strategy)
    return strategy.allocate(request.client_id, queues, members) if strategy else ()


def _targets(context: DecodedRequest) -> Iterable[Target]:
    query = QueryAssignment.decode(context.command.body)
    return (
        Target(Resource.GROUP, query.group, Action.SUB),
        Target(Resource.TOPIC, query.topic, Action.SUB),
    )
