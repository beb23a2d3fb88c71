"""Each field of each response of the gateway, compared with those of RocketMQ's proxy 5.3.3."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from actors.gateway.proto import definition_pb2 as v2
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.service import SERVICE
from actors.transport.client import RemotingClient
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from benchmarks.proxy import RayMQWithGateway, RocketMQWithProxy
from store.common.clock import SystemClock
from tests.compat.build import JavaKit
from tests.compat.peers import Deployment
from tests.eventually import LIMIT_S, eventually_async

HEADERS = (("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.8"), ("x-mq-protocol", "v2"))
BROKER = {"transactionCheckInterval": "3000", "transactionTimeOut": "1000"}
RPCS = {
    "QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "ReceiveMessage", "AckMessage",
    "ForwardMessageToDeadLetterQueue", "EndTransaction", "Telemetry", "NotifyClientTermination",
    "ChangeInvisibleDuration", "RecallMessage",
}  # fmt: skip
"""All that the gateway serves."""
ENDPOINTS = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)])
COMMON = {
    "access_point": ENDPOINTS, "request_timeout": Duration(seconds=3),
    "user_agent": v2.UA(language=v2.JAVA, version="5.0.8", platform="p", hostname="h"),
}  # fmt: skip
GROUP = v2.Resource(name="workers")
TYPES = {"Plain": "NORMAL", "Fifo": "FIFO", "Delay": "DELAY", "Transaction": "TRANSACTION"}
SECOND = Duration(seconds=1)
EXPIRED = "0 1600000000000 60000 0 0 broker-a 0 0 0"

VOLATILE = (
    "timestamp", "receipt_handle", "transaction_id", "recall_handle", "store_host", "born_host",
)  # fmt: skip
"""Fields whose values are those of one run; their presence is compared."""

EXCEPTION = "org.apache.rocketmq.proxy.common.ProxyException: "

ON_PURPOSE = {
    "endpoints.addresses.port": "the proxy names its own port, the gateway the one that the client uses",
    "user_properties[TRACE_CONTEXT]": "a system property has it",
    "user_properties[__SHARDINGKEY]": "a system property has it",
    "user_properties[__transactionId__]": "a property of the broker",
    "user_properties[TRANSACTION_CHECK_TIMES]": "a property of the broker",
    "check: recover_orphaned_transaction_command.message.system_properties.queue_offset": (
        "RocketMQ copies an open message at each check"
    ),
    "system_properties.invisible_duration.seconds": "the proxy sets none",
    "send Plain: entries.transaction_id": "the message is in no transaction",
    "send Fifo: entries.transaction_id": "the message is in no transaction",
    "send Delay: entries.transaction_id": "the message is in no transaction",
    "send later: entries.transaction_id": "the message is in no transaction",
    "send later: entries.offset": "that of the timer's queue, which other records use in RocketMQ",
    "send dead: entries.transaction_id": "the message is in no transaction",
    "dead: status.message": "the proxy gives RocketMQ's number of success",
    "late change: receipt_handle": "the handle that the client has",
    "missing: status.message": "RocketMQ's text is that of its remoting client",
    "no entries: status.code": "BAD_REQUEST: it is the client's error",
    "no entries: status.message": "the same",
}
"""The ends of the fields that differ on purpose, with the reason."""


def resource(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def message(topic: str, number: int, **system: Any) -> v2.Message:
    given = v2.SystemProperties(
        tag="t", keys=["k", "l"], message_id=f"01ABC{number}", born_host="host", trace_context="c",
        born_timestamp=Timestamp(seconds=7), **system,
    )  # fmt: skip
    return v2.Message(
        topic=resource(topic), body=b"body", user_properties={"a": "b"}, system_properties=given
    )


class Client:
    """Calls the rpcs, and notes the responses as texts by field."""

    def __init__(self, channel: grpc.aio.Channel, name: str = "client") -> None:
        self._channel = channel
        self._metadata = (("x-mq-client-id", f"{name}@test"), *HEADERS)
        self.fields: dict[str, str] = {}
        self.called: set[str] = set()

    async def call(self, step: str, request: Message) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.called.add(name)
        call = self._channel.unary_unary(
            SERVICE + name, request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )  # fmt: skip
        found = await call(request, metadata=self._metadata)
        self._note(step, found)
        return found

    async def telemetry(self, step: str, settings: v2.Settings) -> None:
        """Send settings; the stream stays open."""
        stream = self._channel.stream_stream(
            f"{SERVICE}Telemetry", rpc.TelemetryCommand.SerializeToString, rpc.TelemetryCommand.FromString
        )(metadata=self._metadata)
        await stream.write(rpc.TelemetryCommand(settings=settings))
        self.called.add("Telemetry")
        self._note(step, await stream.read())
        self._stream = stream

    async def command(self, step: str) -> rpc.TelemetryCommand:
        """Return the next command on the stream of `telemetry`."""
        found: rpc.TelemetryCommand = await asyncio.wait_for(self._stream.read(), LIMIT_S)
        self._note(step, found)
        return found

    async def receive(self, step: str, topic: str, *, wait_s: int = 5, **fields: Any) -> list[v2.Message]:
        given = {"invisible_duration": Duration(seconds=30), **fields}
        queue = v2.MessageQueue(topic=resource(topic), id=-1, broker=v2.Broker(name="broker-a"))
        request = rpc.ReceiveMessageRequest(
            group=GROUP, message_queue=queue, batch_size=1, long_polling_timeout=Duration(seconds=wait_s),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"), **given,
        )  # fmt: skip
        call = self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage", rpc.ReceiveMessageRequest.SerializeToString,
            rpc.ReceiveMessageResponse.FromString,
        )  # fmt: skip
        self.called.add("ReceiveMessage")
        found = [each async for each in call(request, metadata=self._metadata, timeout=30)]
        messages = [each.message for each in found if each.HasField("message")]
        if messages or step:
            for each in found:
                self._note(f"{step}.{each.WhichOneof('content')}", each)
        return messages

    async def received(self, step: str, topic: str) -> v2.Message:
        """Return the next message; its broker may need a while."""
        found: list[v2.Message] = []

        async def is_found() -> bool:
            found.extend(await self.receive("", topic))
            return bool(found)

        await eventually_async(is_found)
        self._note(step, found[0])
        return found[0]

    def _note(self, step: str, response: Message) -> None:
        self.fields.update((f"{step}: {path}", text) for path, text in flat(response))


def flat(message: Message, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields that are set, with their values."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from ((f"{name}[{key}]", str(value[key])) for key in value)
        elif name.endswith(VOLATILE):
            yield name, ""
        elif field.message_type is None:
            yield name, str(list(value) if field.is_repeated else value)
        else:
            for each in value if field.is_repeated else (value,):
                yield from flat(each, f"{name}.") if each.ListFields() else [(name, "{}")]


async def create_topics(address: str) -> None:
    """Create the topics at a broker."""
    remoting = RemotingClient(SystemClock())
    for name, kind in TYPES.items():
        ext = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "attributes": f"+message.type={kind}",
        }  # fmt: skip
        command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        created = await remoting.invoke(address, command, 5_000)
        assert created.code == 0, created.remark
    await remoting.close()


async def responses(deployment: Deployment) -> dict[str, str]:
    """Return the fields of the responses to one client that uses everything."""
    await create_topics(deployment.broker_address)
    async with grpc.aio.insecure_channel(deployment.gateway_address) as channel:
        client = Client(channel)

        async def has_routes() -> bool:
            found = [
                await client.call("route", rpc.QueryRouteRequest(topic=resource(name), endpoints=ENDPOINTS))
                for name in TYPES
            ]
            return all(each.status.code == v2.OK for each in found)

        await eventually_async(has_routes)
        subscription = v2.Subscription(group=GROUP)
        for name in TYPES:
            subscription.subscriptions.add(topic=resource(name)).expression.expression = "*"
        publishing = v2.Publishing(topics=[resource(name) for name in TYPES])
        await client.telemetry(
            "producer", v2.Settings(client_type=v2.PRODUCER, publishing=publishing, **COMMON)
        )
        push = v2.Settings(client_type=v2.PUSH_CONSUMER, subscription=subscription, **COMMON)
        await client.telemetry("push consumer", push)
        simple = v2.Settings(client_type=v2.SIMPLE_CONSUMER, subscription=subscription, **COMMON)
        await client.telemetry("consumer", simple)
        heartbeat = rpc.HeartbeatRequest(group=GROUP, client_type=v2.SIMPLE_CONSUMER)
        await client.call("heartbeat", heartbeat)
        for name in TYPES:
            await client.receive("nothing", name)
        assignment = rpc.QueryAssignmentRequest(topic=resource("Plain"), group=GROUP, endpoints=ENDPOINTS)
        await client.call("assignment", assignment)
        await send_and_receive(client)
        now_s = int(time.time())
        later = {"delivery_timestamp": Timestamp(seconds=now_s + 3600), "message_type": v2.DELAY}
        waits = await client.call(
            "send later", rpc.SendMessageRequest(messages=[message("Delay", 8, **later)])
        )
        recalled = waits.entries[0].recall_handle
        await client.call("recall", rpc.RecallMessageRequest(topic=resource("Delay"), recall_handle=recalled))
        await _dead_letter(client)
        await _refusals(client)
        await client.call("end", rpc.NotifyClientTerminationRequest(group=GROUP))
        checked = Client(channel, "checked")
        await _check(checked)
        assert client.called | checked.called == RPCS
        return client.fields | checked.fields


async def send_and_receive(client: Client) -> None:
    """Send, receive and ack a message of each type."""
    now_s = int(time.time())
    kinds: dict[str, dict[str, Any]] = {
        "Plain": {"message_type": v2.NORMAL},
        "Fifo": {"message_type": v2.FIFO, "message_group": "g"},
        "Delay": {"message_type": v2.DELAY, "delivery_timestamp": Timestamp(seconds=now_s + 3)},
        "Transaction": {"message_type": v2.TRANSACTION},
    }
    sent = {}
    for number, (name, system) in enumerate(kinds.items()):
        request = rpc.SendMessageRequest(messages=[message(name, number, **system)])
        sent[name] = await client.call(f"send {name}", request)
    transaction = rpc.EndTransactionRequest(
        topic=resource("Transaction"), message_id="01ABC3", resolution=v2.COMMIT,
        transaction_id=sent["Transaction"].entries[0].transaction_id, source=v2.SOURCE_CLIENT,
    )  # fmt: skip
    await client.call("commit", transaction)
    for name in TYPES:
        found = await client.received(f"received {name}", name)
        handle = found.system_properties.receipt_handle
        if name == "Plain":
            changed = await client.call(
                "change",
                rpc.ChangeInvisibleDurationRequest(
                    group=GROUP, topic=resource(name), receipt_handle=handle, message_id="01ABC0",
                    invisible_duration=Duration(seconds=30),
                ),
            )  # fmt: skip
            handle = changed.receipt_handle
        acked = rpc.AckMessageEntry(message_id="m", receipt_handle=handle)
        await client.call("ack", rpc.AckMessageRequest(group=GROUP, topic=resource(name), entries=[acked]))


async def _dead_letter(client: Client) -> None:
    """Send a message, receive it, and forward it to the dead letters of its group."""
    await client.call(
        "send dead", rpc.SendMessageRequest(messages=[message("Plain", 5, message_type=v2.NORMAL)])
    )
    found = await client.received("received dead", "Plain")
    for step, handle in (("dead", found.system_properties.receipt_handle), ("late dead", EXPIRED)):
        await client.call(
            step,
            rpc.ForwardMessageToDeadLetterQueueRequest(
                group=GROUP, topic=resource("Plain"), receipt_handle=handle, message_id="01ABC5",
                delivery_attempt=1, max_delivery_attempts=1,
            ),
        )  # fmt: skip


async def _check(client: Client) -> None:
    """Leave a transaction open until it is checked, and roll it back then."""
    publishing = v2.Publishing(topics=[resource("Transaction")])
    await client.telemetry("checked", v2.Settings(client_type=v2.PRODUCER, publishing=publishing, **COMMON))
    await client.call("producer's heartbeat", rpc.HeartbeatRequest(client_type=v2.PRODUCER))
    sent = message("Transaction", 7, message_type=v2.TRANSACTION)
    sent.system_properties.born_timestamp.seconds = int(time.time())  # RocketMQ checks no old ones
    await client.call("send open", rpc.SendMessageRequest(messages=[sent]))
    check = (await client.command("check")).recover_orphaned_transaction_command
    rollback = rpc.EndTransactionRequest(
        topic=resource("Transaction"), message_id="01ABC7", resolution=v2.ROLLBACK,
        transaction_id=check.transaction_id, source=v2.SOURCE_SERVER_CHECK,
    )  # fmt: skip
    await client.call("rollback", rollback)


async def _refusals(client: Client) -> None:
    plain = resource("Plain")
    late = rpc.AckMessageEntry(message_id="m", receipt_handle=EXPIRED)
    await client.call("late ack", rpc.AckMessageRequest(group=GROUP, topic=plain, entries=[late]))
    await client.call(
        "late change",
        rpc.ChangeInvisibleDurationRequest(
            group=GROUP, topic=plain, receipt_handle=EXPIRED, invisible_duration=SECOND
        ),
    )
    await client.receive("short", "Plain", invisible_duration=SECOND)
    await client.receive("long", "Plain", invisible_duration=Duration(seconds=50_000))
    for step, sent in {
        "tag": message("Plain", 9, message_type=v2.NORMAL),
        "empty": message("Plain", 9, message_type=v2.NORMAL),
        "type": message("Plain", 9, message_type=v2.FIFO, message_group="g"),
        "large": message("Plain", 9, message_type=v2.NORMAL),
    }.items():
        if step == "tag":
            sent.system_properties.tag = "a|b"
        elif step == "empty":
            sent.body = b""
        elif step == "large":
            sent.user_properties["x"] = "y" * 20_000
        await client.call(f"refused {step}", rpc.SendMessageRequest(messages=[sent]))
    missing = resource("Missing")
    await client.call("missing", rpc.QueryRouteRequest(topic=missing))
    await client.call("no entries", rpc.AckMessageRequest(group=GROUP, topic=plain))


@pytest.mark.extended
def test_fields_of_responses_are_those_of_the_proxy(tmp_path: Path, kit: JavaKit) -> None:
    found = []
    for name, deployment in (
        ("rocketmq", RocketMQWithProxy(kit, tmp_path / "rocketmq", BROKER | {"recallMessageEnable": "true"})),
        ("raymq", RayMQWithGateway(tmp_path / "raymq", BROKER)),
    ):
        (tmp_path / name).mkdir()
        try:
            found.append(asyncio.run(responses(deployment.start())))
        finally:
            deployment.stop()
    theirs, ours = found
    different = {
        key: (theirs.get(key), ours.get(key)) for key in theirs | ours if not is_same(key, theirs, ours)
    }
    unlisted = {key: values for key, values in different.items() if not any(map(key.endswith, ON_PURPOSE))}
    assert unlisted == {}
    assert [end for end in ON_PURPOSE if not any(key.endswith(end) for key in different)] == []


def is_same(key: str, theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Return True if both have the value; a text of the proxy may be followed by details of the gateway."""
    if key.endswith("status.message") and key in theirs:
        return ours.get(key, "").startswith(theirs[key].removeprefix(EXCEPTION))
    return theirs.get(key) == ours.get(key)
