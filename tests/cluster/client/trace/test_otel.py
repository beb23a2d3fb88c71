"""OpenTelemetry spans of sends, pulls and listener calls, recorded by the SDK's in-memory exporter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cluster.client import (
    Message,
    MessageExt,
    PopConfig,
    PopConsumer,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
)
from cluster.client.errors import MessageRejected
from cluster.client.hooks import ConsumeContext
from cluster.client.otel import OtelHook
from store.message.message_queue import MessageQueue
from tests.cluster.client.conftest import Cluster
from tests.eventually import eventually

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Recorder:
    """A tracer provider whose spans the test reads."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def consumed(messages: Sequence[MessageExt]) -> ConsumeContext:
    return ConsumeContext("billing", MessageQueue("orders", "broker-a", 3), messages)


def received(**properties: str) -> MessageExt:
    message = Message("orders", b"4 apples", properties=properties)
    return MessageExt("orders", message.body, message.properties)


def test_a_message_is_traced_from_its_sender_to_its_listener(
    cluster: Cluster, group: str, recorder: Recorder
) -> None:
    topic, hook = cluster.topic(queues=1), OtelHook(recorder.provider)
    tracer, seen = trace.get_tracer("shop", tracer_provider=recorder.provider), []

    def listen(messages: list[MessageExt]) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        if len(seen) == 1:
            raise ValueError("the till is closed")

    with (
        tracer.start_as_current_span("checkout") as checkout,
        Producer(cluster.address, "traced", config=ProducerConfig(send_hooks=[hook])) as producer,
    ):
        sent = producer.send(topic, b"4 apples", tags="fruit", keys=["order-1", "order-2"])
        with pytest.raises(MessageRejected):
            producer.send(topic, b"")
    config = PushConfig(consume_hooks=[hook], call_hooks=[hook], retry_backoff_ms=[1])
    with PushConsumer(cluster.address, group, listen, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(recorder.named(f"process {topic}")) == 2)

    send, rejected = recorder.named(f"send {topic}")
    assert send.kind is SpanKind.PRODUCER
    assert send.parent.span_id == checkout.get_span_context().span_id
    assert dict(send.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"{sent.queue.broker_name}:0",
        "messaging.message.id": sent.msg_id,
        "messaging.message.body.size": 8,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "fruit",
        "messaging.rocketmq.message.keys": ("order-1", "order-2"),
    }
    assert rejected.status.status_code is StatusCode.ERROR
    assert rejected.attributes["error.type"] == "MessageRejected"

    (receive,) = recorder.named(f"receive {topic}")
    assert (receive.kind, receive.attributes["messaging.batch.message_count"]) == (SpanKind.CLIENT, 1)
    assert receive.attributes["messaging.consumer.group.name"] == group
    assert receive.attributes["server.port"] == cluster.ports[sent.queue.broker_name]

    failed, done = recorder.named(f"process {topic}")
    assert [failed.context.span_id, done.context.span_id] == seen, "it is the listener's current span"
    assert failed.attributes["error.type"] == "ValueError"
    assert failed.status.description == "the till is closed"
    assert done.status.status_code is StatusCode.UNSET
    assert (done.kind, done.attributes["messaging.message.id"]) == (SpanKind.CONSUMER, sent.msg_id)
    assert done.parent.span_id == send.context.span_id
    assert linked(done) == [send.context.span_id]


def test_each_message_of_a_batch_has_its_own_context(
    cluster: Cluster, group: str, recorder: Recorder
) -> None:
    topic, other, hook = cluster.topic(), cluster.topic(), OtelHook(recorder.provider)
    with Producer(cluster.address, "traced", config=ProducerConfig(send_hooks=[hook])) as producer:
        producer.send_batch([Message(topic, b"1"), Message(topic, b"2")])
        producer.send_many(other, [b"3", b"4", b"5"])
    with PopConsumer(cluster.address, group, config=PopConfig(call_hooks=[hook])) as worker:
        first, second = worker.receive(topic, max_messages=2)
        with pytest.raises(KeyError), hook.process(group, first, second):
            raise KeyError
    (batch,), (table,) = recorder.named(f"send {topic}"), recorder.named(f"send {other}")
    created = [span.context.span_id for span in recorder.named(f"create {topic}")]
    assert (linked(batch), batch.kind) == (created, SpanKind.CLIENT)
    assert batch.attributes["messaging.batch.message_count"] == len(created) == 2
    assert table.attributes["messaging.batch.message_count"] == 3
    (receive,) = recorder.named(f"receive {topic}")
    assert receive.attributes["messaging.batch.message_count"] == 2
    (process,) = recorder.named(f"process {topic}")
    assert (linked(process), process.parent) == (created, None)
    assert process.attributes["error.type"] == "KeyError"


@pytest.mark.parametrize("name", ["traceparent", "TRACE_CONTEXT"])
def test_context_of_other_clients_is_read(name: str, recorder: Recorder) -> None:
    context = consumed([received(**{name: TRACEPARENT})])
    hook = OtelHook(recorder.provider, is_sender_parent=False)
    hook.before_consume(context)
    context.is_success = False
    hook.after_consume(context)
    (span,) = recorder.named("process orders")
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACEPARENT.split("-")[1]]
    assert span.parent is None
    assert span.attributes["error.type"] == "RECONSUME_LATER"


@pytest.mark.parametrize("value", ["", "00-zz", "x" * 100_000], ids=["empty", "no-hex", "long"])
def test_invalid_context_is_ignored(value: str, recorder: Recorder) -> None:
    for name in ("traceparent", "TRACE_CONTEXT"):
        with OtelHook(recorder.provider).process("billing", received(**{name: value})):
            pass
    spans = recorder.named("process orders")
    assert [(span.parent, span.links) for span in spans] == [(None, ())] * 2


def test_process_without_a_message_is_refused(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="no message"), OtelHook(recorder.provider).process("billing"):
        pass


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "cluster.client.otel")
    with pytest.raises(ImportError, match="pip install opentelemetry-api"):
        importlib.import_module("cluster.client.otel")
