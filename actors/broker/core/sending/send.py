"""Sender: handles the sends of RocketMQ's clients. A message or a batch is one append to the store.

All checks precede the append. The response is sent when the append is confirmed (`responses`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import partial

from actors.broker.core.sending.interceptors import SendDraft, SendInterceptor
from actors.broker.core.sending.plain_sends import PlainSends
from actors.broker.core.sending.responses import SendResponses, not_stored
from actors.broker.core.sending.send_checks import SendChecks
from actors.broker.core.sending.stored_properties import PropertyWriter, batch_properties, uniq_key_of
from actors.broker.core.stats import BrokerStats
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES
from actors.wire.hot_headers import SendMessageHeader, SendMessageHeaderV1
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_topic
from store.kernels.batch_properties import with_properties
from store.message.properties import MessageConst
from store.message.record import RecordDraft
from store.message.sys_flag import TRANSACTION_MASK
from store.message.topic_config import TopicConfig
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore
from store.store_errors import StoreError

_ORDERED = f"{MessageConst.SHARDING_KEY}\x01"
"""In the properties of a message of an ordered queue (RocketMQ BrokerMetricsManager.getMessageType)."""


class Sender:
    """Handles SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        store: MessageStore,
        checks: SendChecks,
        interceptors: Sequence[SendInterceptor],
        properties: PropertyWriter,
        responses: SendResponses,
        stats: BrokerStats,
        plain: PlainSends | None = None,
    ) -> None:
        """Create the handler.

        Args:
            store: appends the messages.
            checks: checks topics, queues and sizes.
            interceptors: called in this order for each message; not for batches.
            properties: writes the stored properties.
            responses: sends the responses after confirmation.
            stats: counts the messages.
            plain: handles the plain frames of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE (setting
                `compiled_turn`).
        """
        self._store = store
        self._plain = plain
        self._checks = checks
        self._before_append = tuple(each.before_append for each in interceptors)
        self._properties = properties
        self._responses = responses
        self._put = stats.put

    def rows(self) -> Iterable[RequestRow]:
        """Return the rows of the request table that this object handles."""
        row = partial(RequestRow, on_slave=OnSlave.BUSY)
        short, long, pub = SendMessageHeader, SendMessageHeaderV1, on_topic(Action.PUB)
        frame = MAX_FRAME_BYTES  # `check_size` applies max_message_bytes
        take = None if self._plain is None else self._plain.take
        return (
            row(RequestCode.SEND_MESSAGE, self.send, long, pub, Cost.SEND, frame),
            row(RequestCode.SEND_MESSAGE_V2, self.send, short, pub, Cost.SEND, frame, take),
            row(RequestCode.SEND_BATCH_MESSAGE, self.send_batch, short, pub, Cost.SEND, frame, take),
        )

    def send(self, context: RequestContext) -> None:
        """Handle SEND_MESSAGE and SEND_MESSAGE_V2: append one message, or a batch if the header says so."""
        header: SendMessageHeader = context.header
        if header.batch:
            self.send_batch(context)
            return
        checks = self._checks
        topic = checks.topic(header.topic, header.default_topic, header.default_topic_queue_nums)
        body = context.command.body
        checks.check_size(body)
        queue_id = checks.queue(topic, header.queue_id)
        # RocketMQ's broker fails on an empty body; the Go client sends one for messages marked as compressed.
        if not body:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the body is empty: send at least one byte")
        record = RecordDraft(
            topic.topic_name,
            queue_id,
            body,
            b"",
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            context.connection.peer_bytes,
            header.reconsume_times,
        )
        draft = SendDraft(header, record, header.properties)
        for before_append in self._before_append:
            before_append(draft)
        record.properties, uniq_key = self._properties.write(draft.properties)
        try:
            result = self._store.append(record)
        except (StoreError, struct.error) as error:
            raise not_stored(error) from error
        if draft.appended is not None:
            draft.appended()
        self._put(record.topic, 1, result.size_bytes, 1, _ORDERED in draft.properties)
        responses = self._responses
        ext = responses.fields(
            responses.message_id(result), str(queue_id), str(result.queue_offset), uniq_key
        )
        ext.update(draft.response_fields)
        responses.when_confirmed(context, result, ext)
        if (record.topic, record.queue_id) == (header.topic, header.queue_id):
            self._learn(topic, queue_id)

    def send_batch(self, context: RequestContext) -> None:
        """Handle SEND_BATCH_MESSAGE: append a batch to one queue, all or nothing.

        As in RocketMQ, the properties of the request's header are on every message, such as the ids that
        tracing agents add; a message that has such a property keeps its own value.
        """
        header: SendMessageHeader = context.header
        checks = self._checks
        topic = checks.batch_topic(header.topic, header.default_topic, header.default_topic_queue_nums)
        queue_id = checks.queue(topic, header.queue_id)
        body = context.command.body
        if (
            topic.topic_name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
            or header.sys_flag & TRANSACTION_MASK
        ):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "a batch cannot be sent to a retry topic or in a transaction: send its messages one by one",
            )
        draft = RecordDraft(
            topic.topic_name,
            queue_id,
            b"",
            self._properties.added,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            context.connection.peer_bytes,
            header.reconsume_times,
        )
        checks.check_size(body)
        properties = batch_properties(header.properties) if header.properties else None
        try:
            if properties:
                body = with_properties(body, properties, checks.max_message_bytes)
            result = self._store.append_batch(draft, body)
        except (StoreError, struct.error) as error:
            raise not_stored(error) from error
        self._put(draft.topic, result.count, result.size_bytes)
        ids = self._responses.message_ids(result)
        ext = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(result.queue_offset)}
        uniq_key = uniq_key_of(header.properties)
        if uniq_key:
            # Not `batchUniqId`, which is for batches stored as one queue entry: RocketMQ's clients would use
            # the batch's key as the id of each of its messages, so all results would have the same id.
            ext["transactionId"] = uniq_key
        self._responses.when_confirmed(context, result, ext)
        if queue_id == header.queue_id:
            self._learn(topic, queue_id)

    def _learn(self, topic: TopicConfig, queue_id: int) -> None:
        """Let `PlainSends` handle later sends to the queue."""
        plain, name = self._plain, topic.topic_name
        if plain is not None and not plain.knows(name, queue_id) and not self._responses.is_new(name):
            plain.learn(topic, queue_id)
