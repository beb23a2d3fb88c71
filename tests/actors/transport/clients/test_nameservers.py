"""Nameservers: the route of a topic is the union of what the nameservers of a cluster know."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from actors.transport.client import RemotingClient
from actors.transport.clients.nameservers import Nameservers, NoNameserver
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import GetRouteInfoHeader
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_topic
from store.common.clock import SystemClock
from tests.ports import free_port
from tests.sources import parsed

REPOSITORY = Path(__file__).parents[4]
TIMEOUT_MS = 10_000


def broker(name: str, broker_id: int = 0) -> tuple[QueueData, BrokerData]:
    return QueueData(name, 4, 4, 6), BrokerData("C", name, {broker_id: f"{name}:1"})


class FakeNameserver:
    """A nameserver that knows these brokers, or refuses all requests; `topic` is its only one, or all are."""

    def __init__(
        self, *brokers: tuple[QueueData, BrokerData], refuses: bool = False, topic: str | None = None
    ) -> None:
        self.brokers = list(brokers)
        self.topic = topic
        self.refuses = refuses
        self.requests = 0
        row = RequestRow(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            self.route,
            GetRouteInfoHeader,
            on_topic(Action.GET),
            Cost.QUERY,
        )
        self.server = RemotingServer(RequestTable([row]), SystemClock())

    def route(self, context: RequestContext) -> RemotingCommand:
        self.requests += 1
        if self.refuses:
            raise Refused(ResponseCode.NO_PERMISSION, "routes are secret")
        if not self.brokers or self.topic not in (None, context.header.topic):
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, "no route")
        queues, addresses = zip(*self.brokers, strict=True)
        return RemotingCommand.response(body=TopicRouteData(list(queues), list(addresses)).encode())


Story = Callable[[Nameservers], Awaitable[None]]


def with_nameservers(story: Story, *nameservers: FakeNameserver, down: Sequence[str] = ()) -> None:
    """Run `story` with the unreachable addresses `down` first, followed by the addresses of `nameservers`."""

    async def run() -> None:
        client = RemotingClient(SystemClock())
        for each in nameservers:
            await each.server.start("127.0.0.1", 0)
        addresses = [*down, *(f"127.0.0.1:{each.server.port}" for each in nameservers)]
        try:
            await story(Nameservers(client, lambda: addresses, TIMEOUT_MS))
        finally:
            await client.close()
            for each in nameservers:
                await each.server.stop()

    asyncio.run(run())


def names(route: TopicRouteData) -> set[str]:
    return {queues.broker_name for queues in route.queue_datas}


def test_one_complete_route_is_enough() -> None:
    first, second = FakeNameserver(broker("a"), broker("b")), FakeNameserver(broker("a"))

    async def story(nameservers: Nameservers) -> None:
        assert names(await nameservers.route("T", {"a", "b"})) == {"a", "b"}
        assert second.requests == 0

    with_nameservers(story, first, second)


@pytest.mark.parametrize("first", [[], [broker("a")], [broker("a"), broker("b", broker_id=1)]])
def test_route_without_a_known_master_is_completed(first: list[tuple[QueueData, BrokerData]]) -> None:
    async def story(nameservers: Nameservers) -> None:
        assert names(await nameservers.route("T", {"a", "b"})) == {"a", "b"}

    with_nameservers(story, FakeNameserver(*first), FakeNameserver(broker("a"), broker("b")))


def test_nameserver_that_responded_is_requested_first_next_time() -> None:
    refusing, serving = FakeNameserver(refuses=True), FakeNameserver(broker("a"))

    async def story(nameservers: Nameservers) -> None:
        for _ in range(3):
            assert names(await nameservers.route("T")) == {"a"}
        assert (refusing.requests, serving.requests) == (1, 3)

    with_nameservers(story, refusing, serving, down=[f"127.0.0.1:{free_port()}"])


def test_unknown_topic_has_an_empty_route() -> None:
    async def story(nameservers: Nameservers) -> None:
        assert await nameservers.route("T") == TopicRouteData()
        assert await nameservers.routes("T") == [TopicRouteData(), TopicRouteData()]

    with_nameservers(story, FakeNameserver(), FakeNameserver(), down=[f"127.0.0.1:{free_port()}"])


def test_refusal_is_raised_if_no_nameserver_has_a_route() -> None:
    async def story(nameservers: Nameservers) -> None:
        with pytest.raises(Refused, match="routes are secret"):
            await nameservers.route("T")

    with_nameservers(story, FakeNameserver(refuses=True), down=[f"127.0.0.1:{free_port()}"])


def test_error_names_all_unreachable_nameservers() -> None:
    down = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]

    async def story(nameservers: Nameservers) -> None:
        for request in (nameservers.route("T"), nameservers.routes("T")):
            with pytest.raises(NoNameserver, match=rf"{down[0]}.*{down[1]}"):
                await request

    with_nameservers(story, down=down)


def test_one_place_requests_routes() -> None:
    """Only the nameserver's handler names the request code besides."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("actors", "cluster", "jobs", "store")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "GET_ROUTEINFO_BY_TOPIC"
    }
    assert found == {
        "actors/transport/clients/nameservers.py",
        "actors/nameserver/access.py",  # names the requests that need no right
        "actors/nameserver/nameserver_requests.py",
    }
