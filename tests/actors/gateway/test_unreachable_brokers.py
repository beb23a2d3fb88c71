"""Brokers and nameservers that do not respond, or refuse: what a gateway does for the other ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from actors.gateway.access import Access
from actors.gateway.callers import Caller
from actors.gateway.clients import Clients
from actors.gateway.consumers import Consumers
from actors.gateway.groups import Groups
from actors.gateway.members import Members
from actors.gateway.proto import definition_pb2 as v2
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.receipts import Handle, Renewal, Renewals
from actors.gateway.topics import Topics
from actors.remoting.bodies.groups import HeartbeatData
from actors.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import ConnectFailed, Refused
from store.message.pop_records import NORMAL, Receipt
from tests.conftest import ClockAtRest

REFRESH_MS = TIMEOUT_MS = 1000


class TwoBrokers:
    """The brokers at the addresses a and b, their nameserver and the connections to them."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        """Addresses that cannot be reached."""
        self.hanging: set[str] = set()
        """Addresses that do not respond."""
        self.refused: set[str] = set()
        """Topics whose routes the nameserver refuses to give."""
        self.body = b""
        self.requests: list[tuple[str, RemotingCommand]] = []
        self.has_responded = asyncio.Event()
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self.hub = SimpleNamespace(spawn=self.spawned.append)

    async def route(self, topic: str) -> TopicRouteData:
        if topic in self.refused:
            raise Refused(ResponseCode.SYSTEM_BUSY, "too many requests")
        brokers = [BrokerData("c", f"broker-{address}", {0: address}) for address in "ab"]
        return TopicRouteData(queue_datas=[QueueData("broker-a", 1, 1, 6)], broker_datas=brokers)

    async def ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if address in self.down:
            raise ConnectFailed(address, "the connection was refused")
        if address in self.hanging:
            await asyncio.Event().wait()
        self.requests.append((address, command))
        self.has_responded.set()
        return RemotingCommand(0, {}, self.body)


class Gateway:
    """The parts of a gateway that use the brokers."""

    def __init__(self, clock: ClockAtRest) -> None:
        self.brokers = TwoBrokers()
        client: Any = self.brokers
        self.topics = Topics(client, client, clock, REFRESH_MS, TIMEOUT_MS)
        self.groups = Groups(self.topics, client, clock, REFRESH_MS, TIMEOUT_MS)
        self.renewals = Renewals(clock)
        access = Access(None, client, clock, REFRESH_MS, TIMEOUT_MS)
        self.consumers = Consumers(access, self.topics, self.groups, self.renewals, client, clock, TIMEOUT_MS)
        members = Members(self.topics, client, clock)
        self.clients = Clients(access, self.topics, client, "gw", self.groups, members, self.renewals)


def test_hanging_broker_delays_no_renewals_at_other_brokers(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway, now_ms = Gateway(clock), clock.wall_ms()
        gateway.brokers.body = b"{}"
        for name in "ab":
            receipt = Receipt(0, now_ms - 50_000, 60_000, 0, NORMAL, f"broker-{name}", 0, 0)
            renewal = Renewal(Caller("c"), f"g{name}", "T", Handle(receipt, 0), now_ms + 3_600_000)
            gateway.renewals.add(renewal)
        await gateway.topics.get("T")
        gateway.brokers.requests.clear()
        gateway.brokers.has_responded.clear()
        gateway.brokers.hanging.add("a")
        renewing = asyncio.ensure_future(gateway.consumers.renew())
        await gateway.brokers.has_responded.wait()
        assert [address for address, _ in gateway.brokers.requests] == ["b"]
        renewing.cancel()

    asyncio.run(story())


def test_fifo_group_is_not_taken_for_another_one_while_brokers_are_down(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = orjson.dumps({"consumeMessageOrderly": True, "retryMaxTimes": 3})
        gateway.brokers.down.add("a")
        assert (await gateway.groups.get("g", "T")).is_fifo  # as b says
        gateway.brokers.down.add("b")
        clock.advance(REFRESH_MS)
        assert (await gateway.groups.get("g", "T")).is_fifo  # as known
        with pytest.raises(ConnectFailed):
            await gateway.groups.get("other", "T")

    asyncio.run(story())


def test_known_route_is_used_while_the_nameserver_refuses(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = b"{}"
        known = await gateway.topics.get("T")
        gateway.brokers.refused.add("T")
        clock.advance(REFRESH_MS)
        assert await gateway.topics.get("T") is known

    asyncio.run(story())


class ProducerStream:
    """An open Telemetry stream of a producer."""

    metadata = {"x-mq-client-id": "client@test"}  # noqa: RUF012

    def __init__(self, *topics: str) -> None:
        publishing = v2.Publishing(topics=[v2.Resource(name=each) for each in topics])
        settings = v2.Settings(client_type=v2.PRODUCER, publishing=publishing)
        self._command: rpc.TelemetryCommand | None = rpc.TelemetryCommand(settings=settings)
        self.has_settings = asyncio.Event()

    async def receive(self) -> rpc.TelemetryCommand:
        command, self._command = self._command, None
        if command is None:
            await asyncio.Event().wait()
        assert command is not None
        return command

    async def send(self, command: rpc.TelemetryCommand) -> None:
        assert command.status.code == v2.OK
        self.has_settings.set()


def test_producers_are_announced_although_the_route_of_a_topic_is_refused(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = b"{}"
        gateway.brokers.refused.add("Bad")
        stream: Any = ProducerStream("Bad", "Good")
        serving = asyncio.ensure_future(gateway.clients.telemetry(stream))
        await stream.has_settings.wait()
        gateway.brokers.requests.clear()
        [announced] = gateway.brokers.spawned
        await announced
        beats = {address: command.body for address, command in gateway.brokers.requests if command.body}
        assert {HeartbeatData.decode(body).producer_groups[0] for body in beats.values()} == {"Good"}
        assert beats.keys() == {"a", "b"}
        serving.cancel()

    asyncio.run(story())
