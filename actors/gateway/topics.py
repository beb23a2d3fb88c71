"""Topics: the routes and message types of topics, kept for a while, and the rpc QueryRoute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import orjson

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.gateway.callers import Caller
from actors.gateway.grpc.calls import Call
from actors.gateway.proto.definition_pb2 import (
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    Resource,
)
from actors.gateway.proto.service_pb2 import QueryRouteRequest, QueryRouteResponse
from actors.gateway.statuses import RpcFailed, check_count, check_length, ok
from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers
from actors.wire.bodies.routes import MASTER_ID, PERM_READ, PERM_WRITE, QueueData, TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicHeader
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.clock import NS_PER_MS, Clock
from store.message.validate import check_topic
from store.store_errors import MessageInvalid

ROUTES: Final = Bound(
    "gateway_routes", 10_000, AtLimit.EVICT, "Topics whose routes a gateway keeps for `route_cache_ms`."
)
ADDRESSES_MAX: Final = 32
"""Addresses of one client's endpoints: they are in each queue of a response."""
HOST_CHARS_MAX: Final = 255
ABSENT_MS: Final = 30_000
"""For so long after a broker has left a route, consumers keep receiving from it: it may restart."""
SEEN_MS: Final = 300_000
ABSENT_REFRESH_MS: Final = 1_000
"""How long a route is used while a broker is absent that it had in the last `SEEN_MS`."""
_TYPE_ATTRIBUTE: Final = "message.type"
_MOVED: Final = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.TOPIC_NOT_EXIST)
_ALL_TYPES: Final = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_TYPES: Final = {
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "PRIORITY": (MessageType.PRIORITY,),
    "LITE": (MessageType.LITE,),
    "MIXED": _ALL_TYPES,
}


@dataclass(frozen=True, slots=True)
class WriteQueue:
    """A queue that messages can be sent to."""

    broker_name: str
    address: str
    queue_id: int


class Topic:
    """The route of a topic at one time."""

    def __init__(self, name: str, route: TopicRouteData, types: Sequence[MessageType], now_ns: int) -> None:
        self.name = name
        self.since_ns = now_ns
        self.types = types
        """The message types that the topic accepts; empty if it accepts all."""
        self.absent: Sequence[str] = ()
        """Names of brokers that do not run, and did a short time ago."""
        self.is_complete = True
        """False if a broker does not run that did in the last minutes: it may be back soon."""
        self.masters = {
            each.broker_name: each.broker_addrs[MASTER_ID]
            for each in route.broker_datas
            if MASTER_ID in each.broker_addrs
        }
        self.queue_datas = sorted(route.queue_datas, key=lambda each: each.broker_name)
        self.write_queues = [
            WriteQueue(each.broker_name, self.masters[each.broker_name], queue_id)
            for each in self.queue_datas
            if each.perm & PERM_WRITE and each.broker_name in self.masters
            for queue_id in range(each.write_queue_nums)
        ]

    def master(self, broker_name: str, code: Code) -> str:
        """Return the address of a broker's master. Raises RpcFailed with `code` if it does not run."""
        address = self.masters.get(broker_name)
        if address is None:
            raise RpcFailed(code, f"broker {broker_name[:100]} of topic {self.name} does not run")
        return address


class GatewayTopics:
    """The topics that clients of one gateway use."""

    def __init__(
        self, nameservers: Nameservers, client: RemotingClient, clock: Clock, refresh_ms: int, timeout_ms: int
    ) -> None:
        """Create the object; a route is used for `refresh_ms`, and requests take up to `timeout_ms`."""
        self._nameservers = nameservers
        self._client = client
        self._clock = clock
        self._refresh_ns = refresh_ms * NS_PER_MS
        self._timeout_ms = timeout_ms
        self._topics = Newest[str, Topic](ROUTES)
        self._seen = Newest[str, dict[str, int]](ROUTES)  # when the masters of each topic were there last
        self._fetches: dict[str, asyncio.Task[Topic]] = {}
        self._turn = count()

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._topics.use(),)

    async def get(self, name: str) -> Topic:
        """Return a topic. Raises RpcFailed if it does not exist.

        Raises RemotingError or Refused if no nameserver responds with a route.
        """
        known = self._topics.get(name)
        if known is not None:
            absent_ns = ABSENT_REFRESH_MS * NS_PER_MS
            limit_ns = self._refresh_ns if known.is_complete else min(self._refresh_ns, absent_ns)
            if self._clock.monotonic_ns() - known.since_ns < limit_ns:
                return known
        fetch = self._fetches.get(name)
        if fetch is None:
            fetch = self._fetches[name] = asyncio.create_task(self._fetch(name))
            fetch.add_done_callback(lambda _: self._fetches.pop(name, None))
        try:
            return await asyncio.shield(fetch)  # the end of one call must not cancel the fetch of others
        except (Refused, RemotingError):
            if known is None:
                raise
            return known  # the brokers may still be reachable

    def forget(self, name: str) -> None:
        """Fetch the route again at its next use, because a broker could not be reached."""
        self._topics.pop(name, None)

    def failed(self, name: str, error: Refused | RemotingError) -> None:
        """Fetch the route again after a failed request if another replica may lead now."""
        if isinstance(error, RemotingError) or error.code in _MOVED:
            self.forget(name)

    def queue_for(self, topic: Topic, number: int | None) -> WriteQueue:
        """Return the queue for a message: the next one in turn, or that of a number, such as a hash.

        Raises RpcFailed if no queue can be written.
        """
        queues = topic.write_queues
        if not queues:
            raise RpcFailed(Code.FORBIDDEN, f"no queue of topic {topic.name} can be written now")
        return queues[(next(self._turn) if number is None else number) % len(queues)]

    async def query_route(self, call: Call, caller: Caller, request: QueryRouteRequest) -> QueryRouteResponse:
        """Handle QueryRoute: the queues of a topic; clients reach every broker at their own endpoints."""
        topic = await self.get(topic_name(request.topic))
        if not request.endpoints.addresses:
            raise RpcFailed(Code.ILLEGAL_ACCESS_POINT, "the endpoints of the request have no address")
        check_endpoints(request.endpoints)
        response = QueryRouteResponse(status=ok())
        for data in topic.queue_datas:
            if data.broker_name not in topic.masters:
                continue
            broker = Broker(name=data.broker_name, id=MASTER_ID, endpoints=request.endpoints)
            for queue_id, permission in enumerate(permissions(data)):
                response.message_queues.append(
                    MessageQueue(
                        topic=request.topic, id=queue_id, permission=permission, broker=broker,
                        accept_message_types=topic.types or _ALL_TYPES,
                    )
                )  # fmt: skip
        return response

    async def _fetch(self, name: str) -> Topic:
        route = await self._nameservers.route(name)
        topic = Topic(name, route, (), self._clock.monotonic_ns())
        if not topic.masters:
            raise RpcFailed(Code.TOPIC_NOT_FOUND, f"no running broker has registered topic {name}")
        topic.types = await self._types(topic)
        self._note_absent(topic)
        self._topics[name] = topic
        return topic

    def _note_absent(self, topic: Topic) -> None:
        now_ns, before = topic.since_ns, self._seen.get(topic.name, {})
        seen = {each: ns for each, ns in before.items() if now_ns - ns < SEEN_MS * NS_PER_MS}
        seen |= dict.fromkeys(topic.masters, now_ns)
        topic.absent = [each for each, ns in seen.items() if 0 < now_ns - ns < ABSENT_MS * NS_PER_MS]
        topic.is_complete = len(seen) == len(topic.masters)
        self._seen[topic.name] = seen

    async def _types(self, topic: Topic) -> Sequence[MessageType]:
        address = next(iter(topic.masters.values()))
        command = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic.name).to_ext())
        try:
            response = await self._client.ask(address, command, self._timeout_ms)
            attributes = orjson.loads(response.body).get("attributes") or {}
        except (Refused, RemotingError, orjson.JSONDecodeError):
            return ()  # sends to the broker will show the error
        return _TYPES.get(str(attributes.get(_TYPE_ATTRIBUTE, "")), ())


def permissions(data: QueueData) -> Sequence[Permission]:
    """Return the permission of each queue, by queue id, as RocketMQ's proxy orders them."""
    can_read, can_write = data.perm & PERM_READ, data.perm & PERM_WRITE
    reads = data.read_queue_nums if can_read else 0
    writes = data.write_queue_nums if can_write else 0
    both = min(reads, writes)
    return (
        *[Permission.READ] * (reads - both),
        *[Permission.WRITE] * (writes - both),
        *[Permission.READ_WRITE] * both,
    )


def check_endpoints(endpoints: Endpoints) -> None:
    """Raise RpcFailed if the endpoints of a client have too many or too long addresses."""
    code = Code.ILLEGAL_ACCESS_POINT
    check_count(endpoints.addresses, ADDRESSES_MAX, code, "addresses in its endpoints")
    for each in endpoints.addresses:
        check_length(each.host, HOST_CHARS_MAX, code, "host")


def topic_name(resource: Resource) -> str:
    """Return the name of a topic on the brokers. Raises RpcFailed if it is not valid."""
    namespace = resource.resource_namespace
    name = f"{namespace}%{resource.name}" if namespace else resource.name
    try:
        check_topic(name)
    except MessageInvalid as error:
        raise RpcFailed(Code.ILLEGAL_TOPIC, error.remark) from None
    return name
