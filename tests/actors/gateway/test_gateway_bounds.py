"""What clients can make a gateway keep: the limits, and what is dropped first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from actors.gateway import access, groups, receipts, topics
from actors.gateway.callers import Caller
from actors.gateway.proto.definition_pb2 import Code, Resource
from actors.gateway.proto.service_pb2 import QueryAssignmentRequest, SendMessageRequest
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from tests.actors.gateway.gateways import message
from tests.actors.gateway.test_claimed_messages import ReceiveCall
from tests.actors.gateway.two_brokers import REFRESH_MS, Gateway
from tests.conftest import ClockAtRest

USES = ("access", "topics", "groups", "renewals")


def uses(gateway: Gateway) -> dict[str, int]:
    parts = (getattr(gateway, each) for each in USES)
    return {use.bound.name: use.read() for part in parts for use in part.bounds()}


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_route_fetched_first_is_dropped_and_a_fetched_again_one_kept(
    clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "ROUTES", replace(topics.ROUTES, limit=2))

    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = b"{}"
        await gateway.topics.get("A")
        clock.advance(REFRESH_MS // 2)
        await gateway.topics.get("B")
        clock.advance(REFRESH_MS // 2)
        again = await gateway.topics.get("A")
        await gateway.topics.get("C")
        assert uses(gateway)["gateway_routes"] == 2
        assert await gateway.topics.get("A") is again  # B was fetched before it
        fetched = gateway.brokers.asked(RequestCode.GET_TOPIC_CONFIG)
        await gateway.topics.get("B")
        assert gateway.brokers.asked(RequestCode.GET_TOPIC_CONFIG) == fetched + 1

    run(story())


def test_route_of_a_broker_that_cannot_be_reached_is_fetched_again(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = b"{}"
        call: Any = SimpleNamespace(remaining_s=None)
        sent = SendMessageRequest(messages=[message("T")])
        await gateway.topics.get("T")
        gateway.brokers.down.add("a")
        gateway.brokers.addresses = "cb"  # it has restarted elsewhere
        failed = await gateway.sends.send(call, Caller("c"), sent)
        assert failed.entries[0].status.code != Code.OK
        stored = await gateway.sends.send(call, Caller("c"), sent)
        assert stored.entries[0].status.code == Code.OK
        gateway.brokers.code = ResponseCode.SERVICE_NOT_AVAILABLE
        await gateway.sends.send(call, Caller("c"), sent)  # another replica leads now
        gateway.brokers.code, gateway.brokers.addresses = 0, "db"
        for _ in range(2):  # to each broker in turn
            await gateway.sends.send(call, Caller("c"), sent)
        assert {address for address, _ in gateway.brokers.requests[-2:]} == {"d", "b"}
        gateway.brokers.down.add("d")
        gateway.brokers.addresses = "ab"
        gateway.brokers.down.discard("a")
        for _ in range(2):
            receive: Any = ReceiveCall()
            await gateway.consumers.receive(receive)
        assert gateway.brokers.requests[-1][0] == "a"

    run(story())


def test_broker_that_is_absent_is_looked_for_and_keeps_its_consumers(clock: ClockAtRest) -> None:
    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = b"{}"
        call: Any = None
        request = QueryAssignmentRequest(topic=Resource(name="T"), group=Resource(name="g"))

        async def assigned() -> set[str]:
            found = await gateway.consumers.query_assignment(call, Caller("c"), request)
            return {each.message_queue.broker.name for each in found.assignments}

        assert await assigned() == {"broker-a", "broker-b"}
        gateway.brokers.stopped.add("broker-b")
        clock.advance(REFRESH_MS)
        assert await assigned() == {"broker-a", "broker-b"}
        gateway.brokers.stopped.clear()
        clock.advance(topics.ABSENT_REFRESH_MS)
        assert (await gateway.topics.get("T")).masters.keys() == {"broker-a", "broker-b"}
        gateway.brokers.stopped.add("broker-b")
        clock.advance(REFRESH_MS + topics.ABSENT_MS)
        assert await assigned() == {"broker-a"}
        clock.advance(topics.SEEN_MS)
        assert (await gateway.topics.get("T")).is_complete

    run(story())


def test_settings_of_the_group_fetched_first_are_dropped(
    clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUPS", replace(groups.GROUPS, limit=2))

    async def story() -> None:
        gateway = Gateway(clock)
        gateway.brokers.body = orjson.dumps({"retryMaxTimes": 3})
        for name in "AB":
            await gateway.groups.get(name, "T")
            clock.advance(REFRESH_MS // 2)
        again = await gateway.groups.get("A", "T")
        await gateway.groups.get("C", "T")
        assert uses(gateway)["gateway_groups"] == 2
        assert await gateway.groups.get("A", "T") is again
        fetched = gateway.brokers.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
        await gateway.groups.get("B", "T")
        assert gateway.brokers.asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == fetched + 1

    run(story())


def test_oldest_renewal_ends_over_the_limit(clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "RENEWED", replace(receipts.RENEWED, limit=2))

    async def story() -> None:
        gateway = Gateway(clock)
        made = [gateway.renew(f"g{number}") for number in range(3)]
        assert uses(gateway)["gateway_renewals"] == 2
        assert gateway.renewals.due() == made[1:]

    run(story())


def signed(number: int) -> Any:
    """Return a call with a signature of its own."""
    metadata = {
        "x-mq-client-id": "c",
        "authorization": "MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, Signature=00",
        "x-mq-date-time": f"20261128T00000{number}Z",
    }
    return SimpleNamespace(metadata=metadata, peer="192.0.2.7:40000")


def test_signature_checked_first_is_forgotten_over_the_limit(
    clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "CHECKED", replace(access.CHECKED, limit=2))

    async def story() -> None:
        gateway = Gateway(clock, has_users=True)

        async def checks(number: int) -> int:
            before = gateway.brokers.asked(RayMQRequestCode.CHECK_USER)
            assert (await gateway.access.caller(signed(number))).user == "alice"
            return gateway.brokers.asked(RayMQRequestCode.CHECK_USER) - before

        assert [await checks(number) for number in (0, 1, 1, 2)] == [1, 1, 0, 1]
        assert uses(gateway)["gateway_signatures"] == 2
        assert [await checks(number) for number in (2, 1, 0)] == [0, 0, 1]

    run(story())
