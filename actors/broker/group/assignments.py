"""QUERY_ASSIGNMENT: a RocketMQ client with `clientRebalance` false requests its queues from a broker.

The broker computes what such a client's own rebalancing would: all readable queues in the routes, which are
allocated by the named strategy among the group's members. So members of both kinds agree. Queues are pulled;
POP is not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import orjson

from actors.broker.metadata.request_modes import PULL
from actors.remoting.bodies.body import queue_json
from actors.remoting.bodies.groups import BROADCASTING, GroupMembers
from actors.remoting.bodies.routes import TopicRouteData
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.headers import GetRouteInfoHeader
from actors.remoting.json_fields import get_str, load_object
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

# The strategies of RocketMQ's brokers; a client that names another one gets no queues, as in RocketMQ.
STRATEGIES: dict[str, AllocateMessageQueueStrategy] = {
    strategy.name: strategy
    for strategy in (AllocateMessageQueueAveragely(), AllocateMessageQueueAveragelyByCircle())
}

OnQueues = Callable[[list[MessageQueue] | None], None]
SendMembers = Callable[[str, Callable[[GroupMembers], None]], None]


@dataclass(frozen=True, slots=True)
class QueryAssignment:
    """A client that requests its queues of a topic."""

    topic: str
    group: str
    client_id: str
    strategy: str
    message_model: str

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Decode RocketMQ's QueryAssignmentRequestBody. Raises Refused."""
        fields = load_object(body, "query of an assignment")
        names = ("topic", "consumerGroup", "clientId", "strategyName", "messageModel")
        return cls(*(get_str(fields, name) for name in names))


def encode_assignment(queues: Iterable[MessageQueue]) -> bytes:
    """Encode RocketMQ's QueryAssignmentResponseBody."""
    assigned = [{"messageQueue": queue_json(queue), "mode": PULL} for queue in queues]
    return orjson.dumps({"messageQueueAssignments": assigned})


class Assignments:
    """Handles QUERY_ASSIGNMENT."""

    def __init__(self, client: RemotingClient, nameservers: Sequence[str], send_members: SendMembers) -> None:
        """`send_members` calls its second argument, now or later, with the members of the group."""
        self._client = client
        self._nameservers = nameservers
        self._tell_members = send_members

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        return (RequestRow(RequestCode.QUERY_ASSIGNMENT, self.query, None, _targets, Cost.CLIENT),)

    def query(self, context: RequestContext) -> None:
        """QUERY_ASSIGNMENT: respond with the queues of one client and topic."""
        request = QueryAssignment.decode(context.command.body)

        def answer(share: Iterable[MessageQueue]) -> None:
            context.reply(RemotingCommand.response(body=encode_assignment(share)))

        def share_out(queues: list[MessageQueue] | None) -> None:
            if queues is None:
                remark = f"no nameserver of {self._nameservers} tells the route of {request.topic!r}"
                context.reply(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
            elif request.message_model == BROADCASTING:
                answer(queues)
            else:
                self._tell_members(
                    request.group, lambda known: answer(_share(request, queues, known.members))
                )

        self._find_queues(request.topic, list(self._nameservers), share_out)

    def _find_queues(self, topic: str, nameservers: list[str], on_queues: OnQueues) -> None:
        """Try the nameservers in turn; a topic that does not exist has no queues."""
        if not nameservers:
            on_queues(None)
            return
        address, *others = nameservers

        def answered(answer: RemotingCommand | RemotingError) -> None:
            if isinstance(answer, RemotingError):
                self._find_queues(topic, others, on_queues)
            elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
                on_queues([])
            elif answer.code != ResponseCode.SUCCESS:
                self._find_queues(topic, others, on_queues)
            else:
                on_queues(_readable(topic, TopicRouteData.decode(answer.body)))

        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic).to_ext())
        self._client.invoke_callback(address, command, ROUTE_TIMEOUT_MS, answered)


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
