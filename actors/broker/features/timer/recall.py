"""Recall: cancels a pending timer message by the handle in the response to its send (RECALL_MESSAGE)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.topics import TIMER_TOPIC, Topics, refuse_broker_only
from actors.broker.core.sending.acks import Acks
from actors.broker.core.sending.responses import SendAck, not_stored
from actors.broker.features.timer.timer_messages import TIMER_QUEUE_ID, second_of, timer_properties
from actors.broker.features.timer.timer_service import TimerService
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RecallMessageHeader
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_topic
from store.common.clock import Clock
from store.message.properties import MessageConst, encode_properties
from store.message.recall_handle import RecallHandle
from store.message.record import MAX_PROPERTIES_BYTES, RecordDraft
from store.message_store import MessageStore
from store.store_errors import MessageInvalid, StoreError
from store.timer.timer_unit import MS_PER_SECOND

RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"


class Recall:
    """Request handler for RECALL_MESSAGE."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        timer: TimerService,
        topics: Topics,
        acks: Acks,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._timer = timer
        self._topics = topics
        self._acks = acks
        self._clock = clock

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, pub = RequestCode.RECALL_MESSAGE, on_topic(Action.PUB)
        row = partial(RequestRow, on_slave=OnSlave.UNAVAILABLE, needs_services=True)
        return (row(code, self.recall, RecallMessageHeader, pub, Cost.SEND),)

    def recall(self, context: RequestContext) -> RemotingCommand | None:
        """Handle RECALL_MESSAGE: append the message that cancels the other one; respond when confirmed."""
        header: RecallMessageHeader = context.header
        handle = self._checked(header)
        properties = {
            MessageConst.TAGS: RECALL_TAG,
            MessageConst.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.uniq_key}",
            MessageConst.UNIQ_KEY: handle.uniq_key,
            **timer_properties(handle.topic, 0, handle.deliver_ms),
        }
        if header.producer_group:
            properties[MessageConst.PRODUCER_GROUP] = header.producer_group
        encoded = encode_properties(properties)
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall handle is invalid: properties of {len(encoded):,} bytes exceed the limit of "
                f"{MAX_PROPERTIES_BYTES:,}",
            )
        draft = RecordDraft(
            TIMER_TOPIC,
            TIMER_QUEUE_ID,
            RECALL_BODY,
            encoded,
            born_timestamp=self._clock.wall_ms(),
            born_host=context.connection.peer_bytes,
        )
        try:
            result = self._store.append(draft)
        except StoreError as error:
            raise not_stored(error) from error
        self._timer.cancel(second_of(handle.deliver_ms), f"{handle.topic}+{handle.uniq_key}")
        ack = SendAck(context, {"msgId": handle.uniq_key})
        self._acks.when_confirmed(result.physical_offset + result.size_bytes, ack)
        return None

    def _checked(self, header: RecallMessageHeader) -> RecallHandle:
        """Return the decoded handle. Raises Refused if it cannot be one of this broker, or is too late."""
        refuse_broker_only(header.topic)
        if self._topics.find(header.topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic[:200]}] not exist"
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except MessageInvalid as error:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, error.remark) from error
        name = self._settings.broker_name
        left_ms = handle.deliver_ms - self._clock.wall_ms()
        cause = ""
        if handle.topic != header.topic:
            cause = f"topic not match: the handle is for {handle.topic[:200]!r}"
        elif handle.broker_name != name:
            cause = (
                f"broker service not available: the handle is for {handle.broker_name[:200]!r}, not {name!r}"
            )
        elif not 0 < left_ms <= self._settings.timer_max_delay_s * MS_PER_SECOND:
            cause = f"timestamp invalid: {handle.deliver_ms} is {left_ms:,} ms from now"
        elif handle.deliver_ms <= self._store.last_timestamp:  # perhaps delivered already, by another replica
            cause = (
                f"timestamp invalid: the wall clock was set back: the last message is of "
                f"{self._store.last_timestamp}, after {handle.deliver_ms}"
            )
        if cause:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {cause}")
        return handle
