"""Every field of every rpc, absent, too long or of the wrong kind, gets a status of a client's error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from actors.gateway.proto import definition_pb2 as v2
from actors.gateway.proto import service_pb2 as rpc
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway

TOPIC = v2.Resource(name="Plain")
GROUP = v2.Resource(name="CG")
ENDPOINTS = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)])
HANDLE = "0 4102444800000 60000 0 0 broker-a 0 0 0"  # of the year 2100: not late
EXPRESSION = v2.FilterExpression(type=v2.TAG, expression="*")
SECOND = Duration(seconds=1, nanos=1)
STAMP = Timestamp(seconds=1, nanos=1)


def send(kind: v2.MessageType, **system: Any) -> Message:
    """Return a send of a message of this type."""
    sent = v2.SystemProperties(
        tag="t", keys=["k"], message_id="01ABC", body_digest=v2.Digest(type=v2.CRC32, checksum="1"),
        body_encoding=v2.IDENTITY, message_type=kind, born_timestamp=STAMP, born_host="h", trace_context="c",
        store_host="h", receipt_handle="r", dead_letter_queue=v2.DeadLetterQueue(topic="d", message_id="m"),
        **system,
    )  # fmt: skip
    one = v2.Message(topic=TOPIC, body=b"x", user_properties={"a": "b"}, system_properties=sent)
    return rpc.SendMessageRequest(messages=[one])


VALID: tuple[Message, ...] = (
    rpc.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS),
    send(v2.NORMAL),
    send(v2.FIFO, message_group="g"),
    send(v2.DELAY, delivery_timestamp=STAMP),
    send(v2.TRANSACTION, orphaned_transaction_recovery_duration=SECOND),
    rpc.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=ENDPOINTS),
    rpc.ReceiveMessageRequest(
        group=GROUP,
        message_queue=v2.MessageQueue(
            topic=TOPIC, id=0, broker=v2.Broker(name="broker-a", endpoints=ENDPOINTS),
            accept_message_types=[v2.NORMAL],
        ),
        filter_expression=EXPRESSION, batch_size=1,
        invisible_duration=Duration(seconds=60), long_polling_timeout=Duration(), attempt_id="1",
    ),
    rpc.AckMessageRequest(
        group=GROUP, topic=TOPIC, entries=[rpc.AckMessageEntry(message_id="m", receipt_handle=HANDLE)]
    ),
    rpc.HeartbeatRequest(group=GROUP, client_type=v2.SIMPLE_CONSUMER),
    rpc.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=HANDLE, message_id="m", delivery_attempt=1,
        max_delivery_attempts=1,
    ),
    rpc.EndTransactionRequest(
        topic=TOPIC, message_id="m", transaction_id="broker-a 0 0 m", resolution=v2.COMMIT,
        source=v2.SOURCE_CLIENT, trace_context="c",
    ),
    rpc.NotifyClientTerminationRequest(group=GROUP),
    rpc.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=HANDLE, invisible_duration=SECOND, message_id="m"
    ),
    rpc.RecallMessageRequest(topic=TOPIC, recall_handle="x"),
    rpc.TelemetryCommand(
        settings=v2.Settings(
            client_type=v2.PUSH_CONSUMER, access_point=ENDPOINTS, request_timeout=SECOND,
            backoff_policy=v2.RetryPolicy(
                max_attempts=3,
                exponential_backoff=v2.ExponentialBackoff(initial=SECOND, max=SECOND, multiplier=2),
            ),
            user_agent=v2.UA(language=v2.PYTHON, version="5", platform="p", hostname="h"),
            subscription=v2.Subscription(
                group=GROUP, subscriptions=[v2.SubscriptionEntry(topic=TOPIC, expression=EXPRESSION)],
                fifo=False, receive_batch_size=1, long_polling_timeout=SECOND,
            ),
        )
    ),
    rpc.TelemetryCommand(
        settings=v2.Settings(
            client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[TOPIC]),
            backoff_policy=v2.RetryPolicy(customized_backoff=v2.CustomizedBackoff(next=[SECOND])),
            metric=v2.Metric(on=True, endpoints=ENDPOINTS),
        )
    ),
    rpc.TelemetryCommand(thread_stack_trace=rpc.ThreadStackTrace(nonce="n", thread_stack_trace="t")),
    rpc.TelemetryCommand(verify_message_result=rpc.VerifyMessageResult(nonce="n")),
)  # fmt: skip
INTEGERS = (-(2**31), -1, 2**31 - 1)
LONGS = (-(2**63), -1, 2**63 - 1)
KINDS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: ("x" * 70_000, "\x00\x01\x02", "\U0001f600"),
    FieldDescriptor.TYPE_BYTES: (b"x" * (4 * 1024 * 1024 + 1),),
    FieldDescriptor.TYPE_ENUM: (0, -1, 99),
    FieldDescriptor.TYPE_BOOL: (True, False),
    FieldDescriptor.TYPE_INT32: INTEGERS,
    FieldDescriptor.TYPE_INT64: LONGS,
    FieldDescriptor.TYPE_FLOAT: (float("nan"), float("inf"), -1.0),
}


def variants(request: Message) -> Iterator[tuple[str, Message]]:
    """Return copies of a request in which one field, at any depth, is absent or has another value."""
    for path, field in _fields(request, ()):
        names = ".".join(path)
        copy, owner = _copy(request, path)
        owner.ClearField(path[-1])
        if names != "long_polling_timeout":  # without it a receive waits for 20 s
            yield f"{names} absent", copy
        for number, value in enumerate(KINDS.get(field.type, ())):
            copy, owner = _copy(request, path)
            if field.is_repeated:
                getattr(owner, path[-1])[:] = [value]
            else:
                setattr(owner, path[-1], value)
            yield f"{names} {number}", copy


LONG_TEXT = "x" * 40_000  # longer than the properties of a message can be
MANY = 2_000


def too_long(request: Message) -> Iterator[tuple[str, Message]]:
    """Return copies of a request in which one text is too long, or one list has too many items."""
    for path, field in _fields(request, ()):
        names = ".".join((type(request).__name__, *path))
        copy, owner = _copy(request, path)
        value = getattr(owner, path[-1])
        if field.name == "user_properties":
            value.update({str(n): "" for n in range(MANY)})
        elif field.is_repeated:
            value.extend([value[0]] * MANY)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(owner, path[-1], LONG_TEXT)
        else:
            continue
        yield names, copy


TOO_LONG: dict[str, v2.Code] = {
    "QueryRouteRequest.topic.name": v2.ILLEGAL_TOPIC,
    "QueryRouteRequest.endpoints.addresses": v2.ILLEGAL_ACCESS_POINT,
    "QueryRouteRequest.endpoints.addresses.host": v2.ILLEGAL_ACCESS_POINT,
    "SendMessageRequest.messages": v2.MESSAGE_CORRUPTED,
    "SendMessageRequest.messages.topic.name": v2.ILLEGAL_TOPIC,
    "SendMessageRequest.messages.user_properties": v2.MESSAGE_PROPERTIES_TOO_LARGE,
    "SendMessageRequest.messages.system_properties.tag": v2.MESSAGE_PROPERTIES_TOO_LARGE,
    "SendMessageRequest.messages.system_properties.keys": v2.ILLEGAL_MESSAGE_KEY,
    "SendMessageRequest.messages.system_properties.message_id": v2.ILLEGAL_MESSAGE_ID,
    "SendMessageRequest.messages.system_properties.message_group": v2.ILLEGAL_MESSAGE_GROUP,
    "SendMessageRequest.messages.system_properties.trace_context": v2.MESSAGE_PROPERTIES_TOO_LARGE,
    "QueryAssignmentRequest.topic.name": v2.ILLEGAL_TOPIC,
    "QueryAssignmentRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "QueryAssignmentRequest.endpoints.addresses": v2.ILLEGAL_ACCESS_POINT,
    "QueryAssignmentRequest.endpoints.addresses.host": v2.ILLEGAL_ACCESS_POINT,
    "ReceiveMessageRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "ReceiveMessageRequest.message_queue.topic.name": v2.ILLEGAL_TOPIC,
    "ReceiveMessageRequest.message_queue.broker.name": v2.BAD_REQUEST,
    "ReceiveMessageRequest.filter_expression.expression": v2.ILLEGAL_FILTER_EXPRESSION,
    "ReceiveMessageRequest.attempt_id": v2.BAD_REQUEST,
    "AckMessageRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "AckMessageRequest.topic.name": v2.ILLEGAL_TOPIC,
    "AckMessageRequest.entries": v2.BAD_REQUEST,
    "AckMessageRequest.entries.message_id": v2.ILLEGAL_MESSAGE_ID,
    "AckMessageRequest.entries.receipt_handle": v2.INVALID_RECEIPT_HANDLE,
    "HeartbeatRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "ForwardMessageToDeadLetterQueueRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "ForwardMessageToDeadLetterQueueRequest.topic.name": v2.ILLEGAL_TOPIC,
    "ForwardMessageToDeadLetterQueueRequest.receipt_handle": v2.INVALID_RECEIPT_HANDLE,
    "ForwardMessageToDeadLetterQueueRequest.message_id": v2.ILLEGAL_MESSAGE_ID,
    "EndTransactionRequest.topic.name": v2.ILLEGAL_TOPIC,
    "EndTransactionRequest.transaction_id": v2.INVALID_TRANSACTION_ID,
    "NotifyClientTerminationRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "ChangeInvisibleDurationRequest.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "ChangeInvisibleDurationRequest.topic.name": v2.ILLEGAL_TOPIC,
    "ChangeInvisibleDurationRequest.receipt_handle": v2.INVALID_RECEIPT_HANDLE,
    "RecallMessageRequest.topic.name": v2.ILLEGAL_TOPIC,
    "RecallMessageRequest.recall_handle": v2.BAD_REQUEST,
    "TelemetryCommand.settings.access_point.addresses": v2.ILLEGAL_ACCESS_POINT,
    "TelemetryCommand.settings.access_point.addresses.host": v2.ILLEGAL_ACCESS_POINT,
    "TelemetryCommand.settings.subscription.group.name": v2.ILLEGAL_CONSUMER_GROUP,
    "TelemetryCommand.settings.subscription.subscriptions": v2.BAD_REQUEST,
    "TelemetryCommand.settings.subscription.subscriptions.topic.name": v2.ILLEGAL_TOPIC,
    "TelemetryCommand.settings.subscription.subscriptions.expression.expression": (
        v2.ILLEGAL_FILTER_EXPRESSION
    ),
    "TelemetryCommand.settings.publishing.topics": v2.BAD_REQUEST,
    "TelemetryCommand.settings.publishing.topics.name": v2.ILLEGAL_TOPIC,
}
"""The code for each text and list. The other ones are not read, and the whole request has a limit."""


def _fields(message: Message, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    for field, value in message.ListFields():
        at = (*path, field.name)
        yield at, field
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.name != "user_properties":
            yield from _fields(value[0] if field.is_repeated else value, at)


def _copy(request: Message, path: Sequence[str]) -> tuple[Message, Any]:
    """Return a copy of a request, and the message in it that has the last field of the path."""
    copy = type(request).FromString(request.SerializeToString())
    owner: Any = copy
    for name in path[:-1]:
        owner = getattr(owner, name)
        owner = owner if isinstance(owner, Message) else owner[0]
    return copy, owner


async def response_to(client: GrpcClient, request: Any) -> Any:
    if isinstance(request, rpc.ReceiveMessageRequest):
        first, *_ = [each async for each in client.receive(request)]
        return first
    if not isinstance(request, rpc.TelemetryCommand):
        return await client.call(request)
    stream = client.telemetry()
    await stream.write(request)
    await stream.done_writing()
    return await stream.read()


def statuses(response: Any) -> list[v2.Status]:
    """Return the status of a response, and those of its entries."""
    if response is grpc.aio.EOF:
        return []
    return [response.status, *(each.status for each in getattr(response, "entries", ()))]


def test_bad_fields_of_every_rpc_get_a_status(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        failed = []
        for request in VALID:
            for name, variant in variants(request):
                where = f"{type(request).__name__}.{name}"
                try:
                    response = await response_to(client, variant)
                except grpc.aio.AioRpcError as error:
                    failed.append((where, error.code(), error.details()))
                else:
                    assert response is grpc.aio.EOF or response.HasField("status"), where
                    failed += [
                        (where, each.code, each.message)
                        for each in statuses(response)
                        if each.code == v2.INTERNAL_SERVER_ERROR
                    ]
        assert failed == []
        assert (await client.send(message())).status.code == v2.OK

    with_gateway(tmp_path, story)


def test_long_texts_and_lists_of_every_rpc_get_the_status_of_their_field(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        seen = set()
        for request in VALID:
            as_given = [each.code for each in statuses(await response_to(client, request))][:1]
            for name, variant in too_long(request):
                found = statuses(await response_to(client, variant))
                expected = [TOO_LONG[name]] if name in TOO_LONG else as_given
                assert (name, [each.code for each in found][:1]) == (name, expected)
                seen.add(name)
        assert seen >= TOO_LONG.keys()
        long_id = await client.call(rpc.HeartbeatRequest(), (("x-mq-client-id", "x" * 1025),))
        assert long_id.status.code == v2.REQUEST_HEADER_FIELDS_TOO_LARGE

    with_gateway(tmp_path, story)
