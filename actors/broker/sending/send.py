"""Sending: one message, a batch, or a run of finished records; one way or another, one append to the store.

A message is checked before a byte of the log is touched; its answer waits for the store's promise (`acks`).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial

from actors.broker.metadata.topics import DEFAULT_TOPIC
from actors.broker.parts import BrokerParts
from actors.broker.sending.acks import PendingAck
from actors.broker.sending.stored_properties import PropertyWriter, is_prepared, of_dead_letter, uniq_key_of
from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.headers import (
    AppendBatchHeader,
    AppendBatchResponse,
    SendRecordsHeader,
    SendRecordsResponse,
    SendRunsHeader,
    SendRunsResponse,
)
from actors.remoting.hot_headers import SendMessageHeader
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.message.message_id import offset_message_ids
from store.message.record import RecordDraft
from store.message.runs import decode_runs, encode_offsets
from store.message.sys_flag import TRANSACTION_MASK
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import AppendResult
from store.metadata import TopicConfig
from store.store_errors import StoreError


class Sender:
    """Takes messages in, for all the ways in which they come."""

    def __init__(
        self, parts: BrokerParts, properties: PropertyWriter, rng: random.Random, store_host: bytes
    ) -> None:
        """`store_host` is the broker's address, packed."""
        self._settings = parts.settings
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._acks = parts.acks
        self._delays = parts.delays
        self._locks = parts.locks
        self._clock = parts.clock
        self._properties = properties
        self._rng = rng
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._put = parts.stats.put
        self.answer_fields = properties.answer_fields

    def send(self, context: RequestContext) -> None:
        """SEND_MESSAGE and SEND_MESSAGE_V2."""
        header: SendMessageHeader = context.header
        if header.batch:
            self.send_batch(context)
            return
        topic = self._target(header)
        body = context.command.body
        if len(body) > self._settings.store.max_message_bytes:
            raise self._too_large(body)
        queue_id = self._queue(topic, header.queue_id)
        if not body:  # RocketMQ's broker fails on it; Go's client loses the body of what is marked compressed
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the body is empty: send at least one byte")
        is_dead = header.topic.startswith(RETRY_TOPIC_PREFIX) and topic.topic_name.startswith(
            DLQ_TOPIC_PREFIX
        )
        properties = self._properties.write(
            of_dead_letter(header.properties) if is_dead else header.properties
        )
        is_again = header.reconsume_times > 0 and properties.delay_level > 0  # what old consumers send back
        if header.sys_flag & TRANSACTION_MASK or (is_prepared(header.properties) and not is_again):
            raise Refused(ResponseCode.NO_PERMISSION, "this broker takes no transactional messages")
        draft = RecordDraft(
            topic.topic_name,
            queue_id,
            body,
            properties.encoded,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            context.connection.peer_bytes,
            header.reconsume_times,
        )
        if properties.delay_level and not draft.topic.startswith(DLQ_TOPIC_PREFIX):
            draft = self._delays.put_off(draft, properties.delay_level)
        try:
            result = self._store.append(draft)
        except StoreError as error:
            raise _unavailable(error) from error
        except struct.error as error:
            raise _out_of_range(error) from error
        self._put(draft.topic, 1, result.size_bytes)
        ext = {
            "msgId": f"{self._id_prefix}{result.physical_offset:016X}",
            "queueId": str(queue_id),
            "queueOffset": str(result.queue_offset),
            "transactionId": properties.uniq_key,
        }
        self._answer_when_confirmed(context, result, ext)

    def send_batch(self, context: RequestContext) -> None:
        """SEND_BATCH_MESSAGE: all of the batch is stored, in one queue, or nothing."""
        header: SendMessageHeader = context.header
        topic = self._target(header)
        queue_id = self._queue(topic, header.queue_id)
        body = context.command.body
        if (
            topic.topic_name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
            or header.sys_flag & TRANSACTION_MASK
        ):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "a batch goes neither to a retry topic nor into a transaction: send its messages one by one",
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
        result = self._append_batch(draft, body)
        ids = self._ids(result)
        ext = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(result.queue_offset)}
        uniq_key = uniq_key_of(header.properties)
        if uniq_key:
            # Not `batchUniqId`, which is for batches that stay one entry: RocketMQ's clients would take the
            # batch's key for the id of all its messages, and could not tell one's result from another's.
            ext["transactionId"] = uniq_key
        self._answer_when_confirmed(context, result, ext)

    def send_records(self, context: RequestContext) -> None:
        """SEND_RECORDS: a run of V1 records that the client has built (`actors.remoting.raymq_requests`)."""
        header: SendRecordsHeader = context.header
        topic = self._topics.for_sending(header.topic, header.default_topic, header.default_topic_queue_nums)
        queue_id = self._queue(topic, header.queue_id)
        body = context.command.body
        if not body:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "SEND_RECORDS without a record: send at least one")
        assert not isinstance(body, bytes)  # received bodies are memory of ours, and writable
        try:
            result = self._store.append_records(
                topic.topic_name, queue_id, body, context.connection.peer_bytes
            )
        except StoreError as error:
            raise _unavailable(error) from error
        self._put(topic.topic_name, result.count, result.size_bytes)
        answer = SendRecordsResponse(
            queue_id, result.queue_offset, result.physical_offset, result.count, result.store_timestamp
        )
        self._answer_when_confirmed(context, result, answer.to_ext())

    def send_runs(self, context: RequestContext) -> None:
        """SEND_RUNS: the same for runs of several queues; all are stored, or none."""
        header: SendRunsHeader = context.header
        topic = self._topics.for_sending(header.topic, header.default_topic, header.default_topic_queue_nums)
        runs = decode_runs(context.command.body)
        self._queue(topic, runs.queue_ids[-1])  # ids rise: where the last one exists, all do
        try:
            result = self._store.append_runs(topic.topic_name, runs, context.connection.peer_bytes)
        except StoreError as error:
            raise _unavailable(error) from error
        self._put(topic.topic_name, result.count, result.size_bytes)
        answer = SendRunsResponse(result.physical_offset, result.count, result.store_timestamp)
        offsets = encode_offsets(result.queue_offsets)
        self._answer_when_confirmed(context, result, answer.to_ext(), offsets)

    def append_batch(self, context: RequestContext) -> None:
        """APPEND_BATCH: a batch whose sender names no more than its topic and queue."""
        header: AppendBatchHeader = context.header
        queues = self._settings.default_topic_queues
        topic = self._topics.for_sending(header.topic, DEFAULT_TOPIC, queues)
        queue_id = self._queue(topic, header.queue_id)
        draft = RecordDraft(
            topic.topic_name,
            queue_id,
            b"",
            self._properties.added,
            born_timestamp=self._clock.wall_ms(),
            born_host=context.connection.peer_bytes,
        )
        result = self._append_batch(draft, context.command.body)
        answer = AppendBatchResponse(queue_id, result.queue_offset, result.count, result.store_timestamp)
        self._answer_when_confirmed(context, result, answer.to_ext(), self._ids(result).encode())

    def _append_batch(self, draft: RecordDraft, body: Buffer) -> AppendResult:
        if len(body) > self._settings.store.max_message_bytes:
            raise self._too_large(body)
        try:
            result = self._store.append_batch(draft, body)
        except StoreError as error:
            raise _unavailable(error) from error
        except struct.error as error:
            raise _out_of_range(error) from error
        self._put(draft.topic, result.count, result.size_bytes)
        return result

    def _ids(self, result: AppendResult) -> str:
        return offset_message_ids(self._store_host, result.physical_offsets)

    def _target(self, header: SendMessageHeader) -> TopicConfig:
        name = header.topic
        if name.startswith(RETRY_TOPIC_PREFIX):
            name = self._retry_or_dead_letter(name, header)
        return self._topics.for_sending(name, header.default_topic, header.default_topic_queue_nums)

    def _retry_or_dead_letter(self, name: str, header: SendMessageHeader) -> str:
        group = self._groups.get(name.removeprefix(RETRY_TOPIC_PREFIX))
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # The send back of a message (36) counts with >=; a producer's own retry with >, as in RocketMQ. What
        # a consumer in order sends so it has given up already: retried later it would be out of order.
        if header.reconsume_times <= limit and not self._locks.is_orderly(group.group_name):
            return name
        return self._topics.ensure(f"{DLQ_TOPIC_PREFIX}{group.group_name}", 1).topic_name

    def _queue(self, topic: TopicConfig, queue_id: int) -> int:
        if queue_id < 0:
            return self._rng.randrange(max(topic.write_queue_nums, 1))
        count = max(topic.write_queue_nums, topic.read_queue_nums)
        if queue_id >= count:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic.topic_name!r} does not exist: "
                f"it has queues 0 to {count - 1}",
            )
        return queue_id

    def _too_large(self, body: Buffer) -> Refused:
        limit_bytes = self._settings.store.max_message_bytes
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"body of {len(body):,} bytes is over max_message_bytes {limit_bytes:,} "
            "(set it on the broker, or compress)",
        )

    def _answer_when_confirmed(
        self, context: RequestContext, result: AppendResult, ext: dict[str, str], body: bytes = b""
    ) -> None:
        ext.update(self.answer_fields)
        context.command.body = b""  # it is in the log now, and the answer may have to wait for the disk
        ack = SendAck(context, ext, body)
        if self._topics.unannounced and context.header.topic in self._topics.unannounced:
            ack = NewTopicAck(context, ext, body, self._topics.when_announced)
        self._acks.when_confirmed(result.physical_offset + result.size_bytes, ack)


class SendAck(PendingAck):
    """The answer to one send: where it stands, or what went wrong (what is stored still has its place)."""

    __slots__ = ("_body", "_context", "_ext")

    def __init__(self, context: RequestContext, ext: dict[str, str], body: bytes = b"") -> None:
        self.is_answered = False
        self._context: RequestContext | None = context
        self._ext: dict[str, str] | None = ext
        self._body = body

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        """Reply with the code, and where the message stands."""
        context, self._context = self._context, None
        ext, self._ext = self._ext, None
        assert context is not None
        context.reply(RemotingCommand.response(code, remark, ext, self._body))


class NewTopicAck(SendAck):
    """The answer to a send that has made its topic: who reads it may ask for the route at once."""

    __slots__ = ("_when_announced",)

    def __init__(
        self,
        context: RequestContext,
        ext: dict[str, str],
        body: bytes,
        when_announced: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(context, ext, body)
        self._when_announced = when_announced

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        """Reply as soon as the nameservers know the topic."""
        self._when_announced(partial(super().answer, code, remark))


def _unavailable(error: StoreError) -> Refused:
    """RocketMQ's answer to a store that takes nothing now; producers try another broker."""
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))


def _out_of_range(error: struct.error) -> Refused:
    """A record's fields are Java's: int and long."""
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        "sysFlag, flag and reconsumeTimes are numbers of 32 bits, bornTimestamp is one of 64: " + str(error),
    )
