"""OpenTelemetry traces of producers and consumers: an optional hook, `raymq[otel]`.

    hook = OtelHook()
    ProducerConfig(send_hooks=[hook])
    PushConfig(consume_hooks=[hook], call_hooks=[hook])

Spans follow the semantic conventions for messaging (status: development), with the attributes of RocketMQ:

    send TOPIC      PRODUCER; of a batch or table CLIENT
    create TOPIC    PRODUCER; one for each message of a batch
    receive TOPIC   CLIENT; a pull or pop that returned messages
    process TOPIC   CONSUMER; one call of the listener, linked to the spans that sent its messages

The context travels in the properties that OpenTelemetry's Java agent writes (`traceparent`, `tracestate`,
`baggage`; see OTEL_PROPAGATORS). The property TRACE_CONTEXT of RocketMQ's gRPC clients is read too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import TYPE_CHECKING, Final

from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.client.hooks import ConsumeContext, SendContext
from cluster.client.results import SendResult
from cluster.client.transport.plain_requests import count_records
from store.message.message import Message, MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("OtelHook needs OpenTelemetry's API: pip install opentelemetry-api") from error

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

TRACE_CONTEXT: Final = "TRACE_CONTEXT"
"""The property in which RocketMQ's gRPC clients store the value of `traceparent`."""
_SPAN: Final = "otel-span"
_TOKEN: Final = "otel-token"  # noqa: S105 -- of a context
_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RayMQRequestCode.PULL_RECORDS})
_DELAYS: Final = frozenset(
    {
        MessageConst.DELAY,
        MessageConst.TIMER_DELAY_SEC,
        MessageConst.TIMER_DELAY_MS,
        MessageConst.TIMER_DELIVER_MS,
    }
)
_W3C: Final = TraceContextTextMapPropagator()


class OtelHook:
    """SendHook, ConsumeHook and CallHook that records spans. One may serve several clients, in any thread."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, is_sender_parent: bool = True
    ) -> None:
        """Create the hook.

        Args:
            tracer_provider: Where the spans go; None: OpenTelemetry's global provider.
            is_sender_parent: The parent of the span of one processed message is the span that sent it. If
                False, it is only linked to it, as is always the span of several messages.
        """
        self._tracer = trace.get_tracer("raymq", tracer_provider=tracer_provider)
        self._is_sender_parent = is_sender_parent
        self._began_ns: dict[int, int] = {}

    # ---- send

    def before_send(self, context: SendContext) -> None:
        """Start the span of a send and add its context to the message; of a batch, one for each message."""
        messages, links = context.messages, []
        attributes = _attributes("send", context.topic)
        if len(messages) == 1:
            attributes |= _of_message(messages[0])
        else:
            attributes["messaging.batch.message_count"] = len(messages) or context.rows
            for message in messages:
                create = self._tracer.start_span(
                    f"create {context.topic}",
                    kind=SpanKind.PRODUCER,
                    attributes=_attributes("create", context.topic) | _of_message(message),
                )
                _inject(create, message)
                create.end()
                links.append(Link(create.get_span_context()))
        kind = SpanKind.PRODUCER if len(messages) == 1 else SpanKind.CLIENT
        span = self._tracer.start_span(f"send {context.topic}", kind=kind, attributes=attributes, links=links)
        context.notes[_SPAN] = span
        if len(messages) == 1:
            _inject(span, messages[0])

    def after_send(self, context: SendContext) -> None:
        """End the span of a send."""
        span: Span = context.notes[_SPAN]
        if isinstance(context.result, SendResult):
            span.set_attribute("messaging.destination.partition.id", _partition(context.result.queue))
            if len(context.messages) == 1:
                span.set_attribute("messaging.message.id", context.result.msg_id)
        _end(span, context.error)

    # ---- receive

    def before_call(self, address: str, command: RemotingCommand) -> None:
        """Note when a pull or pop began."""
        if command.code in _PULLS or command.code == RequestCode.POP_MESSAGE:
            self._began_ns[id(command)] = time.time_ns()

    def after_call(
        self, address: str, command: RemotingCommand, response: RemotingCommand | RemotingError | None
    ) -> None:
        """Record the span of a pull or pop that returned messages."""
        began_ns = self._began_ns.pop(id(command), None)
        if began_ns is None or not isinstance(response, RemotingCommand):
            return  # pulls also fail whenever a consumer is closed
        if response.code != ResponseCode.SUCCESS or not response.body:
            return
        topic = command.ext.get("topic", "")
        host, _, port = address.rpartition(":")
        attributes = _attributes("receive", topic, command.ext.get("consumerGroup", "")) | {
            "server.address": host,
            "server.port": int(port),
            "messaging.batch.message_count": count_records(response.body),
        }
        span = self._tracer.start_span(
            f"receive {topic}", kind=SpanKind.CLIENT, attributes=attributes, start_time=began_ns
        )
        span.end()

    # ---- process

    def before_consume(self, context: ConsumeContext) -> None:
        """Start the span of a listener call. It is the current span of the listener."""
        span = self._start_process(context.group, context.messages, context.queue)
        context.notes[_SPAN] = span
        context.notes[_TOKEN] = contexts.attach(trace.set_span_in_context(span))

    def after_consume(self, context: ConsumeContext) -> None:
        """End the span of a listener call."""
        token: Token[Context] = context.notes[_TOKEN]
        contexts.detach(token)
        _end(context.notes[_SPAN], context.error, is_success=context.is_success is True)

    @contextmanager
    def process(self, group: str, *messages: MessageExt) -> Iterator[Span]:
        """Record the processing of messages from a PullConsumer or PopConsumer as a span.

            for message in consumer.poll():
                with hook.process("billing", message):
                    bill(message)

        Args:
            group: The consumer group.
            messages: The received messages, at least one.

        Raises:
            ValueError: There is no message.
        """
        if not messages:
            raise ValueError("process() has no message: pass those that are processed")
        span = self._start_process(group, messages, None)
        token = contexts.attach(trace.set_span_in_context(span))
        error: BaseException | None = None
        try:
            yield span
        except BaseException as raised:
            error = raised
            raise
        finally:
            contexts.detach(token)
            _end(span, error)

    def _start_process(self, group: str, messages: Sequence[MessageExt], queue: MessageQueue | None) -> Span:
        topic = messages[0].topic if queue is None else queue.topic
        attributes = _attributes("process", topic, group)
        if queue is not None:
            attributes["messaging.destination.partition.id"] = _partition(queue)
        if len(messages) == 1:
            attributes |= _of_message(messages[0]) | {"messaging.message.id": messages[0].msg_id}
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        senders = [_extract(message.properties) for message in messages]
        found = (trace.get_current_span(each).get_span_context() for each in senders)
        parent = senders[0] if len(messages) == 1 and self._is_sender_parent else None
        return self._tracer.start_span(
            f"process {topic}",
            parent,
            SpanKind.CONSUMER,
            attributes,
            [Link(each) for each in found if each.is_valid],
        )


def _attributes(operation: str, topic: str, group: str = "") -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    return attributes | {"messaging.consumer.group.name": group} if group else attributes


def _of_message(message: Message) -> dict[str, AttributeValue]:
    properties = message.properties
    attributes: dict[str, AttributeValue] = {"messaging.message.body.size": len(message.body)}
    kind = "normal"
    if properties.get(MessageConst.TRANSACTION_PREPARED) == "true":
        kind = "transaction"
    elif not _DELAYS.isdisjoint(properties):
        kind = "delay"
    elif MessageConst.SHARDING_KEY in properties:
        kind = "fifo"
        attributes["messaging.rocketmq.message.group"] = properties[MessageConst.SHARDING_KEY]
    attributes["messaging.rocketmq.message.type"] = kind
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys.split()
    return attributes


def _partition(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _inject(span: Span, message: Message) -> None:
    propagate.inject(message.properties, trace.set_span_in_context(span))


def _extract(properties: Mapping[str, str]) -> Context:
    """Return the context of the sender; without one, an empty context."""
    if TRACE_CONTEXT in properties and "traceparent" not in properties:
        return _W3C.extract({"traceparent": properties[TRACE_CONTEXT]}, Context())
    return propagate.extract(properties, Context())


def _end(span: Span, error: BaseException | None, *, is_success: bool = True) -> None:
    if error is not None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(StatusCode.ERROR, str(error))
    elif not is_success:
        span.set_attribute("error.type", "RECONSUME_LATER")
        span.set_status(StatusCode.ERROR, "the listener asked for a retry")
    span.end()
