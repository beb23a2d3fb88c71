"""Brokers and nameservers that do not respond, or refuse: what a gateway does for the other ones."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from actors.gateway.proto import definition_pb2 as v2
from actors.gateway.proto import service_pb2 as rpc
from actors.wire.bodies.groups import HeartbeatData
from actors.wire.remoting_errors import ConnectFailed
from tests.actors.gateway.two_brokers import REFRESH_MS, Gateway
from tests.conftest import ClockAtRest


def test_hanging_broker_delays_no_renewals_at_other_brokers(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = b"{}"
        for name in "ab":
            gateway.renew(f"g{name}", f"broker-{name}")
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
