"""Nameservers: requests to the nameservers of a cluster, with failover, and the routes of topics.

Nameservers do not exchange data and may disagree: a restarted nameserver knows only the brokers that have
registered since. A route is therefore missing only if no nameserver has it, and a broker that the caller
knows is missing only if no nameserver has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from actors.transport.client import RemotingClient
from actors.transport.clients.peer_kind import peer_kind
from actors.wire.bodies.routes import MASTER_ID, TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import GetRouteInfoHeader
from actors.wire.remoting_errors import Closed, Refused, RemotingError, TimedOut

Command = Callable[[], RemotingCommand]
"""Builds a new request for each attempt."""
_OF_NAMESERVERS = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
"""Requests that every nameserver handles, and no other process."""


class NoNameserver(RemotingError):
    """None of the nameservers responded."""

    def __init__(self, failures: Sequence[RemotingError]) -> None:
        reasons = "; ".join(map(str, failures))
        super().__init__(
            ", ".join(each.address for each in failures),
            f"no nameserver responded ({reasons}): is the cluster running, and is the address correct?",
        )

    def __str__(self) -> str:
        return self.reason


class NotANameserver(RemotingError):
    """Another process listens at the address of a nameserver."""

    def __init__(self, address: str, kind: str) -> None:
        super().__init__(address, f"this is {kind}: -n takes nameservers")


class Nameservers:
    """The nameservers of one cluster. `addresses` is called for each request, as the list may change."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Callable[[], Sequence[str]],
        timeout_ms: int,
        *,
        explains: bool = False,
    ) -> None:
        """Create the object.

        `timeout_ms` limits each request to one nameserver. With `explains`, the error says which other
        process listens at an address: a person has given it.
        """
        self._explains = explains
        self._client = client
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._last = ""

    async def route(self, topic: str, known: Collection[str] = ()) -> TopicRouteData:
        """Return the route of a topic. It is empty if no nameserver has one.

        The nameservers are tried in turn, the last successful one first, until one responds. If it has no
        route, or none for the master of one of the `known` brokers, the routes of the others are added.

        Raises:
            NoNameserver: no nameserver responded.
            Refused: the nameservers that responded refused the request, or sent an invalid route.
        """
        failures: list[RemotingError | Refused] = []
        addresses = sorted(self._addresses(), key=lambda address: address != self._last)
        for tried, address in enumerate(addresses, 1):
            route = await self._route_from(address, topic)
            if isinstance(route, TopicRouteData):
                self._last = address
                if route.queue_datas and _with_master(route).issuperset(known):
                    return route
                others = await self._routes_from(addresses[tried:], topic)
                return _union([route, *(each for each in others if isinstance(each, TopicRouteData))])
            failures.append(route)
        raise await self._failure(failures)

    async def routes(self, topic: str) -> list[TopicRouteData]:
        """Return the route of a topic in each nameserver that responds; empty if it has none.

        Raises NoNameserver if no nameserver responds.
        """
        given = await self._routes_from(self._addresses(), topic)
        responded = [each for each in given if not isinstance(each, RemotingError)]
        if not responded:
            raise await self._failure([each for each in given if isinstance(each, RemotingError)])
        return [TopicRouteData() if isinstance(each, Refused) else each for each in responded]

    async def request_all(self, command: Command) -> list[RemotingCommand]:
        """Send a request to all nameservers and return the responses.

        Raises NoNameserver if no nameserver responds.
        """
        responses = await asyncio.gather(*(self._try(address, command) for address in self._addresses()))
        given = [response for response in responses if not isinstance(response, RemotingError)]
        if not given:
            raise await self._failure([each for each in responses if isinstance(each, RemotingError)])
        return given

    async def _routes_from(
        self, addresses: Sequence[str], topic: str
    ) -> list[TopicRouteData | RemotingError | Refused]:
        return await asyncio.gather(*(self._route_from(address, topic) for address in addresses))

    async def _route_from(self, address: str, topic: str) -> TopicRouteData | RemotingError | Refused:
        ext = GetRouteInfoHeader(topic, accept_standard_json_only=True).to_ext()
        response = await self._try(
            address, lambda: RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, dict(ext))
        )
        if isinstance(response, RemotingError):
            return response
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return TopicRouteData()
        if response.code != ResponseCode.SUCCESS:
            return Refused(response.code, response.remark or "error response without a remark")
        try:
            return TopicRouteData.decode(response.body)
        except Refused as error:
            return error

    async def _try(self, address: str, command: Command) -> RemotingCommand | RemotingError:
        request = command()
        try:
            response = await self._client.invoke(address, request, self._timeout_ms)
            if request.code in _OF_NAMESERVERS and response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                probe = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
                of_broker = await self._client.invoke(address, probe, self._timeout_ms)
                is_broker = of_broker.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                return NotANameserver(address, "a broker" if is_broker else "no nameserver")
        except RemotingError as error:
            return error
        return response

    async def _failure(self, failures: Sequence[RemotingError | Refused]) -> NoNameserver | Refused:
        """Return the error to raise: the first refusal, or else that no nameserver responded."""
        unreachable = []
        for each in failures:
            if isinstance(each, Refused):
                return each
            kind = await peer_kind(each.address) if self._explains and _may_be_another(each) else None
            unreachable.append(each if kind is None else NotANameserver(each.address, kind))
        return NoNameserver(unreachable)


def _may_be_another(failure: RemotingError) -> bool:
    return isinstance(failure, Closed | TimedOut)


def _with_master(route: TopicRouteData) -> set[str]:
    masters = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    return masters.intersection(queues.broker_name for queues in route.queue_datas)


def _union(routes: Sequence[TopicRouteData]) -> TopicRouteData:
    """Merge routes. For each broker the first route that contains it is used."""
    queues = {each.broker_name: each for route in reversed(routes) for each in route.queue_datas}
    brokers = {each.broker_name: each for route in reversed(routes) for each in route.broker_datas}
    order_conf = next((route.order_topic_conf for route in routes if route.order_topic_conf), None)
    return TopicRouteData(list(queues.values()), list(brokers.values()), order_conf)
