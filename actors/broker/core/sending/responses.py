"""SendResponses: responds to a send when the appended messages are confirmed."""

from __future__ import annotations

import struct
from functools import partial

from actors.broker.core.compat.new_topics import NewTopics
from actors.broker.core.registration import WhenRegistered
from actors.broker.core.sending.acks import Acks, PendingAck
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.message.message_id import offset_message_ids
from store.message_store import AppendResult
from store.store_errors import SendsRefused, StoreError


class SendResponses:
    """Builds and sends the responses to the sends of one broker."""

    def __init__(
        self, acks: Acks, new_topics: NewTopics, added_fields: dict[str, str], store_host: bytes
    ) -> None:
        """Create the responder.

        Args:
            acks: delays responses until the append is confirmed.
            new_topics: topics that are being registered; responses to their sends wait for that too.
            added_fields: header fields added to every response: region and trace.
            store_host: the broker's address, packed; the first part of message ids.
        """
        self._acks = acks
        self._new_topics = new_topics
        self.added_fields = added_fields
        self._store_host = store_host
        self.id_prefix = store_host.hex().upper()
        """The first half of the offset message ids."""

    def message_id(self, result: AppendResult) -> str:
        """Return the offset message id of one appended message."""
        return f"{self.id_prefix}{result.physical_offset:016X}"

    def fields(self, message_id: str, queue_id: str, queue_offset: str, uniq_key: str) -> dict[str, str]:
        """Return the header fields of the response to one message, without those that every response gets."""
        return {
            "msgId": message_id,
            "queueId": queue_id,
            "queueOffset": queue_offset,
            "transactionId": uniq_key,
        }

    def is_new(self, topic: str) -> bool:
        """Return True if responses to sends to the topic wait for its registration."""
        return topic in self._new_topics.names

    def message_ids(self, result: AppendResult) -> str:
        """Return the offset message ids of an appended batch, separated by commas."""
        return offset_message_ids(self._store_host, result.physical_offsets)

    def when_confirmed(
        self, context: RequestContext, result: AppendResult, ext: dict[str, str], body: bytes = b""
    ) -> None:
        """Respond with `ext` and `body` when the append `result` is confirmed."""
        ext.update(self.added_fields)
        ack = SendAck(context, ext, body)
        new_topics = self._new_topics
        if new_topics.names and context.header.topic in new_topics.names:
            ack = NewTopicAck(context, ext, body, new_topics.when_registered)
        context.release_request()  # the message is in the log, and the response may wait for long
        self._acks.when_confirmed(result.physical_offset + result.size_bytes, ack)


class SendAck(PendingAck):
    """The response to one send; it has the message's position also if the flush failed or timed out."""

    __slots__ = ("_body", "_context", "_ext")

    def __init__(self, context: RequestContext, ext: dict[str, str], body: bytes = b"") -> None:
        self.is_done = False
        self._context: RequestContext | None = context
        self._ext: dict[str, str] | None = ext
        self._body = body

    def respond(self, code: ResponseCode, remark: str | None) -> None:
        """Send the response with the code, the remark and the message's position."""
        context, self._context = self._context, None
        ext, self._ext = self._ext, None
        assert context is not None
        context.reply(RemotingCommand.response(code, remark, ext, self._body))


class NewTopicAck(SendAck):
    """The response to a send to a topic that is being registered with the nameservers."""

    __slots__ = ("_when_registered",)

    def __init__(
        self, context: RequestContext, ext: dict[str, str], body: bytes, when_registered: WhenRegistered
    ) -> None:
        super().__init__(context, ext, body)
        self._when_registered = when_registered

    def respond(self, code: ResponseCode, remark: str | None) -> None:
        """Send the response when the nameservers have registered the topic."""
        self._when_registered(partial(super().respond, code, remark))


def not_stored(error: StoreError | struct.error) -> Refused:
    """Return the refusal of a send that the store has rejected with `error`."""
    if isinstance(error, SendsRefused):
        return Refused(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreError):  # after this code producers try another broker
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        f"sysFlag, flag and reconsumeTimes must be 32-bit integers, bornTimestamp a 64-bit one: {error}",
    )
