"""What clients get as from RocketMQ's proxy: fields of messages, times of polls, sums of sizes, texts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from actors.gateway.callers import Caller
from actors.gateway.grpc.calls import Call
from actors.gateway.messages import check_message, message_of
from actors.gateway.proto import definition_pb2 as v2
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.statuses import RpcFailed
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.header import EXPRESSION_CHARS_MAX
from store.message.hosts import Host
from store.message.message import MessageExt
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway
from tests.actors.gateway.test_claimed_messages import ClaimingBroker, ReceiveCall, consumers_of, members_of
from tests.actors.gateway.test_gateway_consumers import GROUP, TOPIC, begin, receive


def stored(**properties: str) -> MessageExt:
    """Return a record with these properties."""
    return MessageExt(
        topic="T", body=b"x", properties=properties, born_timestamp=1_000, store_timestamp=2_000,
        born_host=Host("10.0.0.1", 4711), store_host=Host("10.0.0.2", 10911), queue_id=3, queue_offset=4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, {"born_host": "10.0.0.1", "store_host": "10.0.0.2:10911", "message_type": v2.NORMAL}),
        ({"__BORNHOST": "client"}, {"born_host": "client"}),
        ({"__SHARDINGKEY": "g"}, {"message_type": v2.FIFO, "message_group": "g"}),
        (
            {"__SHARDINGKEY": "g", "TRAN_MSG": "true"},
            {"message_type": v2.TRANSACTION, "message_group": "g"},
        ),
        (
            {"__SHARDINGKEY": "g", "TIMER_DELIVER_MS": "5000"},
            {"message_type": v2.DELAY, "message_group": "g", "delivery_timestamp": Timestamp(seconds=5)},
        ),
        ({"TIMER_DELAY_SEC": "9"}, {"message_type": v2.DELAY, "delivery_timestamp": Timestamp(seconds=10)}),
        ({"TIMER_DELIVER_MS": "9" * 30}, {"message_type": v2.DELAY, "delivery_timestamp": Timestamp()}),
        ({"TIMER_DELAY_SEC": "9" * 15}, {"delivery_timestamp": Timestamp()}),
        ({"DELAY": "3"}, {"message_type": v2.DELAY}),
        (
            {"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "m"},
            {"dead_letter_queue": v2.DeadLetterQueue(topic="T", message_id="m")},
        ),
    ],
)
def test_received_message_has_the_fields_of_its_record(
    properties: dict[str, str], expected: dict[str, Any]
) -> None:
    found = message_of(stored(**properties), TOPIC)
    system = found.system_properties
    assert {name: getattr(system, name) for name in expected} == expected
    assert not found.user_properties
    assert system.message_id == stored().msg_id


def test_received_message_has_what_its_producer_gave(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        given = {
            "tag": "t", "keys": ["k", "l"], "message_group": "g", "trace_context": "c", "born_host": "host",
            "born_timestamp": Timestamp(seconds=7),
        }  # fmt: skip
        await client.create_topic("Fifo", "FIFO")
        await receive(client, message_queue=v2.MessageQueue(topic=v2.Resource(name="Fifo")))
        sent = message("Fifo", **given)
        sent.user_properties["a"] = "b"
        assert (await client.send(sent)).status.code == Code.OK
        queue = v2.MessageQueue(topic=v2.Resource(name="Fifo"))
        _, [found] = await receive(client, message_queue=queue, long_polling_timeout=Duration(seconds=20))
        assert {name: getattr(found.system_properties, name) for name in given} == given
        assert dict(found.user_properties) == {"a": "b"}

    with_gateway(tmp_path, story)


@pytest.mark.parametrize(
    ("system", "properties", "is_accepted"),
    [
        ({"tag": "x" * 16_384}, {}, True),
        ({"tag": "x" * 16_385}, {}, False),
        ({"keys": ["x" * 8_000, "y" * 8_385]}, {}, False),
        ({"tag": "x" * 6_000, "keys": ["y" * 6_000]}, {"a": "z" * 6_000}, False),
        ({"tag": "x" * 6_000, "keys": ["y" * 6_000]}, {"a": "z" * 4_383}, True),
        ({"tag": "é" * 8_192, "delivery_timestamp": Timestamp(seconds=1)}, {"": ""}, False),
    ],
)
def test_size_of_properties_tag_and_keys_counts_together(
    tmp_path: Path, system: dict[str, Any], properties: dict[str, str], is_accepted: bool
) -> None:
    sent = message(**system)
    sent.user_properties.update({name: value for name, value in properties.items() if name})
    if "" in properties:
        sent.user_properties["a"] = ""
    if is_accepted:
        check_message(sent, 0)
        return
    with pytest.raises(
        RpcFailed, match="the total size of user property is too large, max is 16384"
    ) as error:
        check_message(sent, 0)
    assert error.value.code == Code.MESSAGE_PROPERTIES_TOO_LARGE


class PolledBroker(ClaimingBroker):
    """Notes how long it may hold a pop, and has no message."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        self.poll_ms = int(command.ext["pollTime"])
        return RemotingCommand(ResponseCode.POLLING_TIMEOUT)


@pytest.mark.parametrize(
    ("remaining_s", "request_timeout_s", "expected_ms"),
    [
        (23.0, 3, 20_000),  # Java's SDK 5.0.0 to 5.0.3: 20 s, and its request time-out
        (13.0, 4, 11_000),
        (13.0, None, 11_500),
        (6.0, 4, 5_000),
        (5.2, 3, 4_700),
        (None, 3, 18_500),
    ],
)
def test_receive_without_a_polling_time_ends_before_its_deadline(
    remaining_s: float | None, request_timeout_s: int | None, expected_ms: int
) -> None:
    async def story() -> None:
        broker, call = PolledBroker(), ReceiveCall()
        call.remaining_s = remaining_s  # type: ignore[assignment]
        settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
        settings.subscription.group.name = "G"
        if request_timeout_s is not None:
            settings.request_timeout.seconds = request_timeout_s
        members = members_of(broker)
        stream = cast("Call", object())
        members.join(stream, Caller("client@test"), settings)
        await consumers_of(broker, members=members).receive(cast("Call", call))
        assert broker.poll_ms == expected_ms
        assert call.sent[0].status.message == "no new message"
        members.leave(stream)
        assert members.request_timeout_ms("client@test") == 3000
        for each in broker.spawned:
            each.close()

    asyncio.run(story())


def test_long_filter_expressions_are_accepted(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        long = " || ".join(f"tag-{number:05}" for number in range(800))
        assert len(long) > 10_240
        expression = v2.FilterExpression(type=v2.TAG, expression=long)
        await receive(client, filter_expression=expression)
        await client.send(message(tag="tag-00799"), message(tag="other"))
        _, [found] = await receive(
            client, filter_expression=expression, long_polling_timeout=Duration(seconds=20)
        )
        assert found.system_properties.tag == "tag-00799"
        settings = consumer_settings(long)
        assert (await telemetry(client, settings)).status.code == Code.OK

    with_gateway(tmp_path, story)


def consumer_settings(expression: str, client_type: v2.ClientType = v2.PUSH_CONSUMER) -> v2.Settings:
    entry = v2.SubscriptionEntry(topic=TOPIC, expression=v2.FilterExpression(expression=expression))
    subscription = v2.Subscription(group=GROUP, subscriptions=[entry])
    return v2.Settings(client_type=client_type, subscription=subscription)


async def telemetry(client: GrpcClient, settings: v2.Settings) -> rpc.TelemetryCommand:
    stream = client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=settings))
    found: rpc.TelemetryCommand = await stream.read()
    await stream.done_writing()
    return found


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (consumer_settings("x" * (EXPRESSION_CHARS_MAX + 1)), Code.ILLEGAL_FILTER_EXPRESSION),
        (consumer_settings("*", v2.LITE_PUSH_CONSUMER), Code.ILLEGAL_CONSUMER_GROUP),
        (v2.Settings(client_type=v2.PRODUCER), Code.UNRECOGNIZED_CLIENT_TYPE),
    ],
)
def test_refused_client_gets_a_status_with_complete_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: v2.Settings, code: Code
) -> None:
    """Java's SDK cannot apply settings without a back-off, and waits for others until its start fails."""

    async def story(client: GrpcClient) -> None:
        answer = await telemetry(client, settings)
        assert (answer.status.code, bool(answer.status.message)) == (code, True)
        assert answer.settings.backoff_policy.WhichOneof("strategy") is not None
        if settings.HasField("subscription"):
            assert answer.settings.subscription.lite_subscription_quota > 0
            assert answer.settings.subscription.max_lite_topic_size > 0
        assert "client_refused" in caplog.text
        assert Code.Name(code) in caplog.text

    with_gateway(tmp_path, story)


def test_texts_of_refusals_begin_as_those_of_the_proxy(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await begin(client)
        for seconds, text in (
            (9, "the invisibleTime is too small. min is 10000"),
            (43_201, "the invisibleTime is too large. max is 43200000"),
        ):
            status, _ = await receive(client, invisible_duration=Duration(seconds=seconds))
            assert status.message.startswith(text)
        sends = {
            "message body cannot be empty": message(body=b""),
            "tag cannot contain '|'": message(tag="a|b"),
            "tag cannot contain control character": message(tag="a\x01"),
            "tag cannot be the char sequence of whitespace": message(tag=" "),
            "key cannot be the char sequence of whitespace": message(keys=[" "]),
            "key cannot contain control character": message(keys=["\x02"]),
            "message group cannot be the char sequence of whitespace": message(message_group=" "),
            "message group exceed the max size 64": message(message_group="g" * 65),
            "message id cannot be empty": message(message_id=" "),
            "the max delay time of message is too large, max is 86400000": message(
                delivery_timestamp=Timestamp(seconds=4_102_444_800)
            ),
        }
        for text, sent in sends.items():
            assert (await client.send(sent)).status.message.startswith(text)
        for name, value, text in (
            ("KEYS", "x", "property is used by system: KEYS"),
            ("a\x01", "x", "the key of property cannot contain control character"),
            ("a", "\x01", "the value of property cannot contain control character"),
        ):
            sent = message()
            sent.user_properties[name] = value
            assert (await client.send(sent)).status.message.startswith(text)
        sent = message()
        sent.user_properties.update({str(number): "x" for number in range(129)})
        assert (await client.send(sent)).status.message.startswith("too many user properties, max is 128")

    with_gateway(tmp_path, story)
