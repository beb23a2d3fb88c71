"""Sends: the rpcs SendMessage, RecallMessage and EndTransaction.

A transaction id names broker, offsets and message, so any gateway can end the transaction:

    <broker name> <CommitLog offset> <queue offset> <message id>
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Final, NamedTuple

from actors.gateway.callers import Caller
from actors.gateway.grpc.calls import Call
from actors.gateway.messages import check_message, inflate_bodies, stored_properties, type_of
from actors.gateway.proto.definition_pb2 import (
    LITE,
    MESSAGE_TYPE_UNSPECIFIED,
    TRANSACTION,
    Code,
    Message,
    MessageType,
    Status,
    TransactionResolution,
    TransactionSource,
)
from actors.gateway.proto.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from actors.gateway.statuses import RpcFailed, broker_status, ok, status_of, status_of_all, status_of_handle
from actors.gateway.topics import GatewayTopics, Topic, WriteQueue, topic_name
from actors.transport.client import RemotingClient
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import EndTransactionHeader, RecallMessageHeader
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.clock import Clock
from store.message.lite_topics import lite_topic_queue
from store.message.message_id import decode_message_id
from store.message.properties import properties_text
from store.message.recall_handle import RecallHandle
from store.message.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from store.message.validate import check_properties
from store.store_errors import MessageInvalid

MESSAGES_MAX: Final = 128
_STORED: Final = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
}
_SYS_FLAGS: Final = {
    TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class TransactionId(NamedTuple):
    """The parts of a transaction id."""

    broker_name: str
    commit_log_offset: int
    queue_offset: int
    message_id: str

    def encode(self) -> str:
        """Return the text of the id."""
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> TransactionId:
        """Return the parts of an id. Raises RpcFailed if it is not one of this gateway's."""
        parts = text.split(" ", 3)
        if len(parts) != 4 or not (parts[1].isdecimal() and parts[2].isdecimal() and len(text) <= 1024):
            raise RpcFailed(
                Code.INVALID_TRANSACTION_ID,
                f"transaction id {text[:100]!r} is not valid: give the id of the send's result",
            )
        return cls(parts[0], int(parts[1]), int(parts[2]), parts[3])


class Sends:
    """Sends messages of gRPC producers to the brokers."""

    def __init__(self, topics: GatewayTopics, client: RemotingClient, clock: Clock, timeout_ms: int) -> None:
        """Create the object; `timeout_ms` limits each request to a broker."""
        self._topics = topics
        self._client = client
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def send(self, call: Call, caller: Caller, request: SendMessageRequest) -> SendMessageResponse:
        """Handle SendMessage: check all messages, then send each; the response has their results in order."""
        messages = request.messages
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise RpcFailed(
                Code.MESSAGE_CORRUPTED, f"the request has {len(messages)} messages, not 1 to {MESSAGES_MAX}"
            )
        name = topic_name(messages[0].topic)
        now_ms = self._clock.wall_ms()
        for number, message in enumerate(messages):
            if number and topic_name(message.topic) != name:
                raise RpcFailed(Code.MESSAGE_CORRUPTED, "topic in message is not same")
            check_message(message, now_ms)
        topic = await self._topics.get(name)
        for message in messages:
            _check_type(topic, message)
        await inflate_bodies(call, messages)
        if len(messages) == 1:
            entries = [await self._send_one(call, caller, topic, messages[0])]
        else:
            # To one queue, and over one connection, so in their order.
            queue = self._topics.queue_for(topic, None)
            sends = (self._send_one(call, caller, topic, each, queue) for each in messages)
            entries = await asyncio.gather(*sends)
        status = entries[0].status if len(entries) == 1 else status_of_all(entries)
        return SendMessageResponse(status=status, entries=entries)

    async def recall(
        self, call: Call, caller: Caller, request: RecallMessageRequest
    ) -> RecallMessageResponse:
        """Handle RecallMessage: remove a message whose delivery time has not come."""
        name = topic_name(request.topic)
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except MessageInvalid as error:
            raise RpcFailed(Code.BAD_REQUEST, error.remark) from None
        if handle.topic != name:
            raise RpcFailed(Code.BAD_REQUEST, f"the handle is one of topic {handle.topic[:127]}, not {name}")
        address = (await self._topics.get(name)).master(handle.broker_name, Code.BAD_REQUEST)
        header = RecallMessageHeader(name, request.recall_handle, name)
        command = caller.request(RequestCode.RECALL_MESSAGE, header)
        response = await self._client.ask(address, command, self._limit_ms(call))
        return RecallMessageResponse(status=ok(), message_id=response.ext.get("msgId", handle.uniq_key))

    async def end_transaction(
        self, call: Call, caller: Caller, request: EndTransactionRequest
    ) -> EndTransactionResponse:
        """Handle EndTransaction: commit the half message, or roll it back."""
        name = topic_name(request.topic)
        transaction = TransactionId.decode(request.transaction_id)
        sys_flag = _SYS_FLAGS.get(request.resolution)
        if sys_flag is None:
            raise RpcFailed(Code.BAD_REQUEST, f"resolution {request.resolution} is not COMMIT or ROLLBACK")
        header = EndTransactionHeader(
            name,
            transaction.queue_offset,
            transaction.commit_log_offset,
            sys_flag,
            request.source == TransactionSource.SOURCE_SERVER_CHECK,
            transaction.message_id,
            transaction.message_id,
            name,
        )
        address = (await self._topics.get(name)).master(transaction.broker_name, Code.BAD_REQUEST)
        command = caller.request(RequestCode.END_TRANSACTION, header)
        try:
            await self._client.ask(address, command, self._limit_ms(call))
            status = ok()
        except Refused as error:
            status = status_of_handle(error, Code.INVALID_TRANSACTION_ID)
        return EndTransactionResponse(status=status)

    async def _send_one(
        self, call: Call, caller: Caller, topic: Topic, message: Message, target: WriteQueue | None = None
    ) -> SendResultEntry:
        system, kind = message.system_properties, type_of(message)
        if system.HasField("message_group"):
            target = self._topics.queue_for(topic, zlib.crc32(system.message_group.encode()))
        elif kind == LITE:
            number = lite_topic_queue(system.lite_topic, max(len(topic.write_queues), 1))
            target = self._topics.queue_for(topic, number)
        elif target is None:
            target = self._topics.queue_for(topic, None)
        properties = properties_text(stored_properties(message, topic.name))
        try:
            check_properties(properties.encode())
        except MessageInvalid as error:
            too_large = Status(code=Code.MESSAGE_PROPERTIES_TOO_LARGE, message=error.remark)
            return SendResultEntry(status=too_large, message_id=system.message_id)
        sys_flag = TRANSACTION_PREPARED if kind == TRANSACTION else 0
        header = SendMessageHeader(
            topic.name, topic.name, target.queue_id, properties, sys_flag,
            system.born_timestamp.ToMilliseconds() or self._clock.wall_ms(),
        )  # fmt: skip
        command = caller.request(RequestCode.SEND_MESSAGE_V2, header, message.body)
        try:
            response = await self._client.invoke(target.address, command, self._limit_ms(call))
        except RemotingError as error:
            self._topics.forget(topic.name)
            return SendResultEntry(status=status_of(error), message_id=system.message_id)
        entry = SendResultEntry(
            status=broker_status(response.code, response.remark), message_id=system.message_id
        )
        if response.code in _STORED:
            ext = response.ext
            entry.offset = int(ext.get("queueOffset", 0))
            entry.recall_handle = ext.get("recallHandle", "")
            if kind == TRANSACTION:
                position = decode_message_id(ext["msgId"])[1]
                entry.transaction_id = TransactionId(
                    target.broker_name, position, entry.offset, system.message_id
                ).encode()
        else:
            self._topics.failed(topic.name, Refused(response.code, ""))
        return entry

    def _limit_ms(self, call: Call) -> int:
        remaining_s = call.remaining_s
        if remaining_s is None:
            return self._timeout_ms
        return max(1, min(self._timeout_ms, int(remaining_s * 1000)))


def _check_type(topic: Topic, message: Message) -> None:
    kind = type_of(message)
    declared = message.system_properties.message_type
    if declared not in (MESSAGE_TYPE_UNSPECIFIED, kind) or (topic.types and kind not in topic.types):
        accepted = ", ".join(map(MessageType.Name, topic.types)) or "all types"
        raise RpcFailed(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"TopicMessageType validate failed, the expected type is {accepted}, but actual type is "
            f"{MessageType.Name(kind)}: the message to topic {topic.name} is declared as "
            f"{_type_name(declared)}",
        )


def _type_name(declared: MessageType) -> str:
    return MessageType.Name(declared) if declared in MessageType.values() else str(declared)
