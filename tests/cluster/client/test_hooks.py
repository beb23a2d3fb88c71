"""Hooks see every send and every request; an exception in a hook does not fail a send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.client import Admin, Message, Producer, ProducerConfig, aio
from cluster.client.errors import MessageRejected, SendFailed
from cluster.client.hooks import SendContext
from tests.eventually import LIMIT_S, NEVER_S

from .conftest import Cluster


class TraceHook:
    """Send hook that adds a property and records the outcome of each send."""

    def __init__(self) -> None:
        self.ended: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        for message in context.messages:
            message.properties["trace"] = "t-1"
        context.notes["seen"] = True

    def after_send(self, context: SendContext) -> None:
        assert context.notes["seen"]
        self.ended.append(context)


class FailingHook:
    """Send hook that raises in every call."""

    def before_send(self, context: SendContext) -> None:
        raise ZeroDivisionError

    def after_send(self, context: SendContext) -> None:
        raise ZeroDivisionError


class SigningHook:
    """Call hook that adds a signature to requests and records their codes."""

    def __init__(self) -> None:
        self.request_codes: list[int] = []
        self.response_codes: list[int | None] = []

    def before_call(self, address: str, command: RemotingCommand) -> None:
        command.ext["Signature"] = "mine"
        self.request_codes.append(command.code)

    def after_call(
        self, address: str, command: RemotingCommand, response: RemotingCommand | RemotingError | None
    ) -> None:
        self.response_codes.append(response.code if isinstance(response, RemotingCommand) else None)


def test_send_hooks_see_every_kind_of_send_and_may_add_properties(cluster: Cluster) -> None:
    topic, traces = cluster.topic(queues=1), TraceHook()
    config = ProducerConfig(send_hooks=[FailingHook(), traces, FailingHook()])
    message = Message(topic, b"1", "tag")
    with Producer(cluster.address, "hooked", config=config) as producer:
        sent = producer.send(message)
        later = producer.send_async(topic, b"2").result()
        batch = producer.send_batch([message, message])
        producer.send_oneway(message)
        receipt = producer.send_many(topic, [b"5", b"6"])
        with pytest.raises(MessageRejected):
            producer.send(topic, b"")
    assert message.properties == {"TAGS": "tag"}, "the caller's message is not modified"
    assert [context.result for context in traces.ended[:3]] == [sent, later, batch]
    oneway, table, failed = traces.ended[3:]
    assert (oneway.is_oneway, oneway.result, oneway.error) == (True, None, None)
    assert (table.rows, table.result) == (2, receipt)
    assert isinstance(failed.error, MessageRejected)
    with Admin(cluster.address) as admin:
        assert admin.message_by_id(sent.offset_msg_id).properties["trace"] == "t-1"


def test_asyncio_producer_calls_the_send_hooks(cluster: Cluster) -> None:
    topic, traces = cluster.topic(queues=1), TraceHook()

    async def send() -> None:
        config = ProducerConfig(send_hooks=[traces])
        async with aio.Producer(cluster.address, "hooked", config=config) as producer:
            results = [await producer.send(topic, b"1"), await producer.send_batch([Message(topic, b"2")])]
            results.append(await producer.send(topic, b"long " * 100_000))
            assert [context.result for context in traces.ended] == results

    asyncio.run(send())


def test_call_hooks_see_every_request_and_may_sign_it(cluster: Cluster) -> None:
    topic, calls = cluster.topic(queues=1), SigningHook()
    never_ms = int(NEVER_S * 1000)  # no heartbeat and no route refresh among the requests
    config = ProducerConfig(call_hooks=[calls], heartbeat_ms=never_ms, route_refresh_ms=never_ms)
    with Producer(cluster.address, "hooked", config=config) as producer:
        producer.send(topic, b"sent by the event loop")
        producer.send(topic, b"sent by the caller's thread")
        producer.send_oneway(topic, b"one-way")
        producer.flush()
    wanted = [RequestCode.GET_ROUTEINFO_BY_TOPIC, *[RequestCode.SEND_MESSAGE_V2] * 3]
    assert calls.request_codes == wanted
    assert calls.response_codes == [0, 0, 0, None]


def test_exception_in_before_call_fails_the_request(cluster: Cluster) -> None:
    class NoKey:
        def before_call(self, address: str, command: RemotingCommand) -> None:
            raise PermissionError("no key to sign with")

        def after_call(self, address: str, command: RemotingCommand, response: object) -> None:
            raise AssertionError("nothing was sent")

    config = ProducerConfig(call_hooks=[NoKey()])
    with Producer(cluster.address, "hooked", config=config) as producer:
        with pytest.raises(PermissionError, match="no key"):
            producer.send(cluster.topic(), b"x")
        producer.flush()


def test_exception_in_a_selector_is_raised_to_the_sender(cluster: Cluster) -> None:
    topic = cluster.topic(queues=1)
    selectors: list[tuple[Callable[..., object], str]] = [
        (lambda queues, message, argument: queues[99], "out of range"),
        (lambda queues, message, argument: "queue 1", "must return one of the queues"),
    ]
    with Producer(cluster.address, "hooked") as producer:
        for selector, words in selectors * 2:  # with and without a cached route
            for attempt in (producer.send, lambda *a, **k: producer.send_async(*a, **k).result(LIMIT_S)):
                with pytest.raises(Exception, match=words) as failed:
                    attempt(topic, b"x", selector=selector)
                assert not isinstance(failed.value, SendFailed)
            producer.send(topic, b"the producer still works")
        producer.flush()
