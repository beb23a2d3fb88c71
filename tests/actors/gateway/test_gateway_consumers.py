"""The rpcs of consumers through a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from actors.gateway.callers import Caller
from actors.gateway.clients import GatewayClients
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import (
    ClientType,
    Code,
    FilterExpression,
    FilterType,
    Message,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from actors.gateway.receipts import CLIENT_TIMEOUT_MS, STREAM_TIMEOUT_MS, Handle, ReceiptRenewals, Renewal
from actors.gateway.statuses import RpcFailed
from actors.wire.bodies.connected import ConsumerConnection
from actors.wire.codes import RequestCode
from actors.wire.headers import ConsumerGroupHeader
from store.message.pop_records import NORMAL, Receipt
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

CLIENT = "client@test"
GROUP, TOPIC = Resource(name="workers"), Resource(name="Plain")


async def receive(client: GrpcClient, **fields: Any) -> tuple[Any, list[Message]]:
    """Return the status and the messages of one ReceiveMessage."""
    given = {
        "group": GROUP, "batch_size": 32, "invisible_duration": Duration(seconds=30),
        "long_polling_timeout": Duration(seconds=0), **fields,
    }  # fmt: skip
    request = rpc.ReceiveMessageRequest(**given)
    if not request.HasField("message_queue"):
        request.message_queue.topic.CopyFrom(TOPIC)
        request.message_queue.id = -1
        request.message_queue.broker.name = "broker-a"
    found = [each async for each in client.receive(request)]
    assert found[-1].HasField("delivery_timestamp")
    return found[0].status, [each.message for each in found[1:-1]]


def entry(received: Message) -> rpc.AckMessageEntry:
    system = received.system_properties
    return rpc.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)


async def ack(client: GrpcClient, *received: Message) -> rpc.AckMessageResponse:
    entries = [entry(each) for each in received]
    found: rpc.AckMessageResponse = await client.call(
        rpc.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
    )
    return found


async def begin(client: GrpcClient) -> None:
    """Let the group exist: a new one begins at the end of the queues."""
    status, messages = await receive(client)
    assert (status.code, messages) == (Code.MESSAGE_NOT_FOUND, [])


def test_received_messages_are_acked_one_by_one(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        await client.send(*(message(body=b"%d" % n, message_id=f"id{n}", tag="t") for n in range(5)))
        status, messages = await receive(client)
        assert status.code == Code.OK
        assert sorted(each.body for each in messages) == [b"%d" % n for n in range(5)]
        assert {each.system_properties.tag for each in messages} == {"t"}
        assert (await receive(client))[1] == []  # they are invisible
        acked = await ack(client, *messages)
        assert acked.status.code == Code.OK
        assert [each.message_id for each in acked.entries] == [
            each.system_properties.message_id for each in messages
        ]

    with_gateway(tmp_path, story)


def test_changed_message_returns_with_a_new_receipt(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        await client.send(message())
        _, [first] = await receive(client)
        changed = await client.call(
            rpc.ChangeInvisibleDurationRequest(
                group=GROUP, topic=TOPIC, receipt_handle=first.system_properties.receipt_handle,
                invisible_duration=Duration(nanos=1_000_000), message_id="01ABC",
            )
        )  # fmt: skip
        assert changed.status.code == Code.OK
        assert changed.receipt_handle not in ("", first.system_properties.receipt_handle)
        status, again = await receive(client, long_polling_timeout=Duration(seconds=20))
        assert (status.code, [each.body for each in again]) == (Code.OK, [b"body"])
        assert again[0].system_properties.delivery_attempt == 2
        assert (await ack(client, *again)).status.code == Code.OK

    with_gateway(tmp_path, story)


def test_dead_letter_is_copied_and_acked(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        await client.send(message(body=b"poison"))
        _, [received] = await receive(client)
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=received.system_properties.receipt_handle,
            message_id="01ABC", delivery_attempt=1, max_delivery_attempts=1,
        )  # fmt: skip
        assert (await client.call(request)).status.code == Code.OK
        assert [each.body for each in await client.stored("%DLQ%workers", 1)] == [b"poison"]

    with_gateway(tmp_path, story)


async def connections(client: GrpcClient) -> tuple[set[str], dict[str, str]]:
    """Return client ids and subscriptions of the group, as GET_CONSUMER_CONNECTION_LIST shows them."""
    ext = ConsumerGroupHeader(GROUP.name).to_ext()
    response = await client.peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext)
    if response.code != 0:
        return set(), {}
    found = ConsumerConnection.decode(response.body)
    assert found.consume_type == "CONSUME_POP"
    return (
        {each.client_id for each in found.connections},
        {topic: each.sub_string for topic, each in found.subscriptions.items()},
    )


def test_consumer_is_a_member_of_its_group_until_its_stream_ends(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        entry = SubscriptionEntry(topic=TOPIC, expression=FilterExpression(expression="red"))
        subscription = Subscription(group=GROUP, subscriptions=[entry])
        settings = Settings(client_type=ClientType.SIMPLE_CONSUMER, subscription=subscription)
        streams = [client.telemetry(), client.telemetry()]  # the client has opened another one
        for stream in streams:
            await stream.write(rpc.TelemetryCommand(settings=settings))
            assert (await stream.read()).status.code == Code.OK
        await eventually_async(lambda: is_shown({CLIENT}, {"Plain": "red"}))
        members = await client.peer.ask(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(GROUP.name).to_ext()
        )
        assert members.code != 0  # it does not divide the queues with members that pull
        streams[0].cancel()
        await begin(client)
        assert await is_shown({CLIENT}, {"Plain": "red"})
        streams[1].cancel()
        await eventually_async(lambda: is_shown(set(), {}))

    async def is_shown(ids: set[str], subscriptions: dict[str, str]) -> bool:
        return await connections(known[0]) == (ids, subscriptions)

    known: list[GrpcClient] = []

    async def with_known(client: GrpcClient) -> None:
        known.append(client)
        await story(client)

    with_gateway(tmp_path, with_known)


def test_messages_are_filtered_by_tag_and_sql(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        await client.send(message(body=b"a", tag="a"), message(body=b"b", tag="b"))
        expression = FilterExpression(type=FilterType.TAG, expression="a")
        _, messages = await receive(client, filter_expression=expression)
        assert [each.body for each in messages] == [b"a"]
        bad = FilterExpression(type=FilterType.SQL, expression="((")
        status, _ = await receive(client, filter_expression=bad)
        assert status.code == Code.ILLEGAL_FILTER_EXPRESSION

    with_gateway(tmp_path, story)


def test_assignment_names_the_brokers(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        found = await client.call(rpc.QueryAssignmentRequest(topic=TOPIC, group=GROUP))
        assert [each.message_queue.id for each in found.assignments] == [-1]
        assert found.assignments[0].message_queue.broker.name == "broker-a"

    with_gateway(tmp_path, story)


@pytest.mark.parametrize("kind", [ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER])
def test_settings_of_a_consumer_are_completed(tmp_path: Path, kind: ClientType) -> None:
    async def story(client: GrpcClient) -> None:
        stream = client.telemetry()
        subscription = Subscription(group=GROUP, subscriptions=[SubscriptionEntry(topic=TOPIC)])
        await stream.write(
            rpc.TelemetryCommand(settings=Settings(client_type=kind, subscription=subscription))
        )
        answer = await stream.read()
        assert answer.status.code == Code.OK
        settings = answer.settings
        assert settings.subscription.receive_batch_size == 32
        assert settings.subscription.long_polling_timeout.seconds == 20
        assert settings.backoff_policy.max_attempts == 17
        assert settings.backoff_policy.customized_backoff.next[0].seconds == 1
        assert (await client.call(rpc.HeartbeatRequest(client_type=kind, group=GROUP))).status.code == Code.OK
        pull = rpc.HeartbeatRequest(client_type=ClientType.PULL_CONSUMER)
        assert (await client.call(pull)).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        await stream.done_writing()

    with_gateway(tmp_path, story)


def test_invalid_requests_of_consumers_are_refused(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        cases = {
            Code.ILLEGAL_INVISIBLE_TIME: {"invisible_duration": Duration(seconds=9)},
            Code.ILLEGAL_POLLING_TIME: {"long_polling_timeout": Duration(seconds=-1)},
            Code.ILLEGAL_CONSUMER_GROUP: {"group": Resource(name="a b")},
        }
        for code, fields in cases.items():
            status, messages = await receive(client, **fields)
            assert (Code.Name(status.code), messages) == (Code.Name(code), [])
            assert status.message
        for handle in ("", "x", "1 2 3", " ".join(["1"] * 9), "9" * 2000):
            request = rpc.AckMessageRequest(
                group=GROUP, topic=TOPIC, entries=[rpc.AckMessageEntry(message_id="m", receipt_handle=handle)]
            )
            assert (await client.call(request)).status.code == Code.INVALID_RECEIPT_HANDLE
            change = rpc.ChangeInvisibleDurationRequest(
                group=GROUP, topic=TOPIC, receipt_handle=handle, invisible_duration=Duration(seconds=1)
            )
            changed = await client.call(change)
            assert (changed.status.code, changed.receipt_handle) == (Code.INVALID_RECEIPT_HANDLE, handle)
        none = await client.call(rpc.AckMessageRequest(group=GROUP, topic=TOPIC))
        assert none.status.code == Code.BAD_REQUEST

    with_gateway(tmp_path, story)


def handle(pop_ms: int) -> Handle:
    return Handle(Receipt(5, pop_ms, 60_000, 0, NORMAL, "broker-a", 1, 7), 4096)


def test_renewals_are_due_before_the_message_is_visible() -> None:
    clock = ClockAtRest(0)
    renewals = ReceiptRenewals(clock)

    def due(now_ms: int) -> list[Renewal]:
        clock.set_wall_ms(now_ms)
        renewals.seen(Caller("c1"))
        return list(renewals.due())

    renewals.add(Renewal(Caller("c1"), "g", "T", handle(0), until_ms=100_000))
    assert due(39_999) == []
    [renewal] = due(40_000)
    renewal.handle = handle(40_000)
    assert due(79_999) == []
    assert len(due(80_000)) == 1
    assert due(100_000) == []  # renewed for long enough
    assert len(renewals) == 0
    renewals.add(Renewal(Caller("c2", "alice"), "g", "T", handle(0), until_ms=100_000))
    clock.set_wall_ms(0)
    renewals.forget_client(Caller("c2", "alice", "192.0.2.9"))  # it has reconnected
    assert [each.is_released for each in renewals.due()] == [True]
    assert len(renewals) == 0


def test_messages_of_a_client_without_heartbeats_are_not_renewed(clock: ClockAtRest) -> None:
    renewals, now_ms = ReceiptRenewals(clock), clock.wall_ms()
    callers = [Caller("killed", "alice"), Caller("alive", "alice")]
    for caller in callers:
        for user in ("alice", "bob"):
            each = caller._replace(user=user)
            renewals.add(Renewal(each, f"g{each}", "T", handle(now_ms + 10_000), until_ms=now_ms * 2))
    clock.advance(CLIENT_TIMEOUT_MS - 1)
    assert len(list(renewals.due())) == 4
    unused: Any = None
    clients = GatewayClients(unused, unused, unused, "gateway", unused, unused, renewals)
    beat = rpc.HeartbeatRequest(group=GROUP, client_type=ClientType.PUSH_CONSUMER)
    asyncio.run(clients.heartbeat(unused, Caller("alive", "alice", "192.0.2.9"), beat))
    clock.advance(1)
    due = renewals.due()
    assert [each.caller for each in due if not each.is_released] == [Caller("alive", "alice")]
    assert len(due) == 4
    assert len(renewals) == 1
    for each in due:
        each.handle = handle(clock.wall_ms())
    renewals.left(Caller("alive", "alice"))
    clock.advance(STREAM_TIMEOUT_MS - 1)
    assert renewals.due() == []
    clock.advance(1)
    assert [each.is_released for each in renewals.due()] == [True]


def test_another_user_cannot_end_a_renewal() -> None:
    async def story() -> None:
        clock = ClockAtRest(0)
        renewals, text = ReceiptRenewals(clock), handle(0).encode()
        renewals.add(Renewal(Caller("c1", "alice"), "g", "T", handle(0), until_ms=100_000))
        clock.set_wall_ms(40_000)
        [renewal] = renewals.due()
        renewal.handle = handle(40_000)
        renewals.forget_client(Caller("c1", "bob"))
        assert await renewals.take(Caller("c1", "bob"), "g", text) == handle(0)
        assert len(renewals) == 1
        assert await renewals.take(Caller("c9", "alice"), "g", text) == handle(40_000)
        assert len(renewals) == 0

    asyncio.run(story())


def test_handle_is_decoded_or_refused() -> None:
    assert Handle.decode(handle(3).encode()) == handle(3)
    with pytest.raises(RpcFailed, match="not that of a received message"):
        Handle.decode("5 0 60000 0 0 broker-a 1 7")
