"""Responses to sends: sent when the store's durability promise covers what was appended."""

from __future__ import annotations

import struct
from functools import partial

from actors.broker.compat.new_topics import NewTopics
from actors.broker.registration import WhenRegistered
from actors.broker.sending.acks import Acks, PendingAck
from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.message.message_id import offset_message_ids
from store.message_store import AppendResult
from store.store_errors import StoreError


class SendResponses:
    """Responds to the sends of one broker."""

    def __init__(
        self, acks: Acks, new_topics: NewTopics, added_fields: dict[str, str], store_host: bytes
    ) -> None:
        """Create the responder.

        Args:
            acks: holds responses back until their bytes are confirmed.
            new_topics: topics whose registration a response waits for too.
            added_fields: header fields of every response, such as the region.
            store_host: the broker's address, packed: the first part of message ids.
        """
        self._acks = acks
        self._new_topics = new_topics
        self._added_fields = added_fields
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()

    def message_id(self, result: AppendResult) -> str:
        """Return the offset message id of one appended message."""
        return f"{self._id_prefix}{result.physical_offset:016X}"

    def message_ids(self, result: AppendResult) -> str:
        """Return the offset message ids of an appended batch, separated by commas."""
        return offset_message_ids(self._store_host, result.physical_offsets)

    def when_confirmed(
        self, context: RequestContext, result: AppendResult, ext: dict[str, str], body: bytes = b""
    ) -> None:
        """Respond with `ext` and `body` when what was appended is confirmed."""
        ext.update(self._added_fields)
        context.command.body = b""  # it is in the log now, and the response may have to wait for the disk
        ack = SendAck(context, ext, body)
        new_topics = self._new_topics
        if new_topics.names and context.header.topic in new_topics.names:
            ack = NewTopicAck(context, ext, body, new_topics.when_registered)
        self._acks.when_confirmed(result.physical_offset + result.size_bytes, ack)


class SendAck(PendingAck):
    """The response to one send: its position, or what went wrong (a stored message keeps its position)."""

    __slots__ = ("_body", "_context", "_ext")

    def __init__(self, context: RequestContext, ext: dict[str, str], body: bytes = b"") -> None:
        self.is_answered = False
        self._context: RequestContext | None = context
        self._ext: dict[str, str] | None = ext
        self._body = body

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        """Reply with the code and the message's position."""
        context, self._context = self._context, None
        ext, self._ext = self._ext, None
        assert context is not None
        context.reply(RemotingCommand.response(code, remark, ext, self._body))


class NewTopicAck(SendAck):
    """The response to a send that created its topic."""

    __slots__ = ("_when_registered",)

    def __init__(
        self, context: RequestContext, ext: dict[str, str], body: bytes, when_registered: WhenRegistered
    ) -> None:
        super().__init__(context, ext, body)
        self._when_registered = when_registered

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        """Reply as soon as the nameservers know the topic."""
        self._when_registered(partial(super().answer, code, remark))


def not_stored(error: StoreError | struct.error) -> Refused:
    """Return the response to a send that the store did not accept."""
    if isinstance(error, StoreError):  # producers try another broker
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        f"sysFlag, flag and reconsumeTimes are numbers of 32 bits, bornTimestamp is one of 64: {error}",
    )
