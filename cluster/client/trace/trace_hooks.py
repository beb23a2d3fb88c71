"""Hooks that trace the sends of a producer and the listener calls of a push consumer.

As in RocketMQ, sends that failed, one-way sends and tables are not traced, nor are messages whose broker asks
for no traces (property TRACE_ON, broker setting `trace_on`).
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from cluster.client.hooks import ConsumeContext, SendContext
from cluster.client.results import SendResult, SendStatus
from cluster.client.trace.trace_dispatcher import TraceDispatcher
from cluster.client.trace.trace_records import ConsumeCode, MessageType, Pub, SubAfter, SubBefore
from store.common.clock import Clock
from store.message.message import Message, MessageExt
from store.message.message_id import decode_message_id
from store.message.properties import MessageConst
from store.store_errors import MessageInvalid

_BEGAN = "trace-began-ms"
_CALL_ID = "trace-call-id"


class TraceSendHook:
    """SendHook that writes a Pub record for each message that a broker has stored."""

    def __init__(self, dispatcher: TraceDispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock

    def before_send(self, context: SendContext) -> None:
        """Record the start of the send."""
        context.notes[_BEGAN] = self._clock.wall_ms()

    def after_send(self, context: SendContext) -> None:
        """Write the records of a successful send."""
        result, messages = context.result, context.messages
        if not isinstance(result, SendResult) or not result.is_trace_on or not messages:
            return
        began_ms: int = context.notes[_BEGAN]
        took_ms = (self._clock.wall_ms() - began_ms) // len(messages)
        offset_ids = result.offset_msg_id.split(",")
        offset_ids += [""] * (len(messages) - len(offset_ids))
        for message, msg_id, offset_id in zip(messages, result.msg_id.split(","), offset_ids, strict=False):
            self._dispatcher.add(
                Pub(
                    began_ms, result.region_id, context.group, context.topic, msg_id, message.tags,
                    message.keys, _address(offset_id), len(message.body), took_ms, _type_of(message),
                    offset_id, result.status is SendStatus.SEND_OK,
                )
            )  # fmt: skip


class TraceConsumeHook:
    """ConsumeHook that writes SubBefore and SubAfter records for each message of a listener call."""

    def __init__(self, dispatcher: TraceDispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock

    def before_consume(self, context: ConsumeContext) -> None:
        """Write a SubBefore record for each message."""
        context.notes[_BEGAN] = now_ms = self._clock.wall_ms()
        context.notes[_CALL_ID] = call_id = uuid.uuid4().hex.upper()
        for message in context.messages:
            if (region_id := _region_of(message)) is not None:
                self._dispatcher.add(
                    SubBefore(
                        now_ms, region_id, context.group, call_id, message.msg_id, message.reconsume_times,
                        message.keys,
                    )
                )  # fmt: skip

    def after_consume(self, context: ConsumeContext) -> None:
        """Write a SubAfter record for each message."""
        now_ms = self._clock.wall_ms()
        began_ms: int = context.notes[_BEGAN]
        took_ms = (now_ms - began_ms) // max(len(context.messages), 1)
        code = ConsumeCode.EXCEPTION if context.error is not None else ConsumeCode.FAILED
        if context.is_success:
            code = ConsumeCode.SUCCESS
        for message in context.messages:
            if _region_of(message) is not None:
                self._dispatcher.add(
                    SubAfter(
                        context.notes[_CALL_ID], message.msg_id, took_ms, context.is_success is True,
                        message.keys, code, now_ms, context.group,
                    )
                )  # fmt: skip


def _type_of(message: Message) -> MessageType:
    properties = message.properties
    if properties.get(MessageConst.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION_HALF
    delays = (MessageConst.DELAY, MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS)
    is_delayed = any(name in properties for name in (*delays, MessageConst.TIMER_DELIVER_MS))
    return MessageType.DELAY if is_delayed else MessageType.NORMAL


def _region_of(message: MessageExt) -> str | None:
    """Return the region of the broker that stored `message`; None if it must not be traced."""
    if message.properties.get(MessageConst.TRACE_ON) == "false":
        return None
    return message.properties.get(MessageConst.MSG_REGION)


def _address(offset_msg_id: str) -> str:
    """Return the broker's address in an offsetMsgId; an empty string if the id is invalid."""
    with suppress(MessageInvalid):
        return str(decode_message_id(offset_msg_id)[0])
    return ""
