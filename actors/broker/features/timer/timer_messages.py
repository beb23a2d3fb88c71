"""Timer messages: how they are stored until they are due, and after.

    SEND_MESSAGE with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS
        →  rmq_sys_wheel_timer, queue 0, with REAL_TOPIC, REAL_QID and TIMER_OUT_MS
    when it is due
        →  its own topic and queue, with TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS

See docs/store-format.md#timer-messages. TIMER_OUT_MS is the second of the wheel. This broker also stores the
exact time, as TIMER_DELIVER_MS; a message that RocketMQ has stored without it is due when RocketMQ would
deliver it, at the end of its second. A message with TIMER_DEL_UNIQKEY is not delivered, but cancels another
one of the same second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.topics import TIMER_TOPIC
from actors.broker.core.sending.interceptors import SendDraft
from actors.broker.core.sending.moved import moved
from actors.broker.core.sending.stored_properties import (
    TIMERS,
    PropertyWriter,
    delay_level,
    is_timed,
    uniq_key_of,
)
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.message.message import MessageExt
from store.message.properties import MessageConst, decode_properties, properties_text
from store.message.recall_handle import RecallHandle
from store.message.record import RecordDraft
from store.message.tags import java_hash
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.store_errors import MessageInvalid
from store.timer.timer_schedule import TimerArrival
from store.timer.timer_unit import MS_PER_SECOND

TIMER_QUEUE_ID: Final = 0
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_QUEUE_ID = re.compile(r"[0-9]{1,9}")
_LATEST_MS: Final = 253_402_300_799_999  # end of the year 9999: later messages would be rolled endlessly
# Written by brokers only.
_OF_BROKER = (
    MessageConst.REAL_TOPIC,
    MessageConst.REAL_QUEUE_ID,
    MessageConst.TIMER_ENQUEUE_MS,
    MessageConst.TIMER_DEQUEUE_MS,
    MessageConst.TIMER_ROLL_TIMES,
)


class TimerMessages:
    """Send interceptor that stores timer messages in the timer topic."""

    property_names = TIMERS

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        properties: PropertyWriter,
        announce: Callable[[], None],
    ) -> None:
        """Create the interceptor.

        Args:
            settings: whether there is a timer, and the latest time.
            clock: decides which times have passed.
            properties: generates a UNIQ_KEY for a message without one.
            announce: called before a timer message is appended.
        """
        self._settings = settings
        self._clock = clock
        self._properties = properties
        self._announce = announce

    def before_append(self, draft: SendDraft) -> None:
        """Redirect a message with a time to the timer topic; one whose time has passed is sent as it is.

        As in RocketMQ, a delay level has precedence over a time. The response gets the handle by which the
        message can be recalled.

        Raises:
            Refused: the time is invalid or too late, or the timer is disabled.
        """
        if not is_timed(draft.properties):
            return
        record, properties = draft.record, decode_properties(draft.properties.encode("utf-8", "replace"))
        if (
            delay_level(draft.properties) > 0
            or MessageConst.TIMER_OUT_MS in properties
            or record.topic.startswith(DLQ_TOPIC_PREFIX)
        ):
            return
        if not self._settings.timer_wheel_enable:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false: enable it, or use a "
                f"delay level ({MessageConst.DELAY})",
            )
        now_ms = self._clock.wall_ms()
        deliver_ms = self._deliver_ms(properties, now_ms)
        delete_key = properties.get(MessageConst.TIMER_DEL_UNIQKEY)
        if deliver_ms <= now_ms and delete_key is None:
            return
        if not 0 < deliver_ms - now_ms <= self._max_delay_ms:
            raise self._illegal(f"delivery in {deliver_ms - now_ms:,} ms")
        if delete_key is not None and not delete_key.startswith(f"{record.topic}+"):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{MessageConst.TIMER_DEL_UNIQKEY} is {delete_key[:100]!r}: it must be the topic of this "
                f"message, {record.topic!r}, + and the UNIQ_KEY of the message to cancel",
            )
        uniq_key = uniq_key_of(draft.properties) or self._properties.next_uniq_key()
        for name in _OF_BROKER:
            properties.pop(name, None)
        properties[MessageConst.UNIQ_KEY] = uniq_key
        draft.properties = properties_text(
            properties | timer_properties(record.topic, record.queue_id, deliver_ms)
        )
        if not record.topic.startswith(RETRY_TOPIC_PREFIX):
            handle = RecallHandle(record.topic, self._settings.broker_name, deliver_ms, uniq_key)
            draft.response_fields = (("recallHandle", handle.encode()),)
        record.topic, record.queue_id = TIMER_TOPIC, TIMER_QUEUE_ID
        self._announce()

    @property
    def _max_delay_ms(self) -> int:
        return self._settings.timer_max_delay_s * MS_PER_SECOND

    def _deliver_ms(self, properties: Mapping[str, str], now_ms: int) -> int:
        """Return the time of a message that `is_timed`."""
        for name, begin_ms, unit_ms in (
            (MessageConst.TIMER_DELAY_SEC, now_ms, MS_PER_SECOND),
            (MessageConst.TIMER_DELAY_MS, now_ms, 1),
            (MessageConst.TIMER_DELIVER_MS, 0, 1),
        ):
            text = properties.get(name)
            if text is not None:
                if not _NUMBER.fullmatch(text):
                    raise self._illegal(f"{name} is {text[:100]!r}, not a number")
                return begin_ms + int(text) * unit_ms
        raise AssertionError(properties)

    def _illegal(self, cause: str) -> Refused:
        return Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._max_delay_ms}ms; or if set del msg, the delay time should be bigger than the current "
            f"time ({cause})",
        )


def second_of(deliver_ms: int) -> int:
    """Return the second of the wheel in which a message is due; its first millisecond is not part of it."""
    return (deliver_ms - 1) // MS_PER_SECOND


def timer_properties(topic: str, queue_id: int, deliver_ms: int) -> dict[str, str]:
    """Return the properties that a pending timer message gets."""
    return {
        MessageConst.TIMER_DELIVER_MS: str(deliver_ms),
        MessageConst.TIMER_OUT_MS: str(second_of(deliver_ms) * MS_PER_SECOND),
        MessageConst.REAL_TOPIC: topic,
        MessageConst.REAL_QUEUE_ID: str(queue_id),
    }


class TimerMessage(NamedTuple):
    """What the timer has to know about a message of the timer topic.

    `key` names this message, `delete_key` the one that it cancels: topic, "+" and UNIQ_KEY. `rolled` is the
    number of times that the message was appended to the timer topic again.
    """

    real_topic: str
    real_queue_id: int
    due_ms: int
    key: str
    delete_key: str | None
    rolled: int

    @classmethod
    def of(cls, message: MessageExt) -> TimerMessage:
        """Return the facts about a stored message. Raises MessageInvalid if it is not a timer message."""
        properties = message.properties
        out = properties.get(MessageConst.TIMER_OUT_MS, "")
        topic = properties.get(MessageConst.REAL_TOPIC, "")
        queue_id = properties.get(MessageConst.REAL_QUEUE_ID, "0")
        if message.topic != TIMER_TOPIC or not _NUMBER.fullmatch(out) or not _QUEUE_ID.fullmatch(queue_id):
            raise MessageInvalid(
                f"not a timer message: topic {message.topic!r}, {MessageConst.TIMER_OUT_MS} {out[:40]!r}, "
                f"{MessageConst.REAL_QUEUE_ID} {queue_id[:40]!r}"
            )
        if not 0 <= int(out) <= _LATEST_MS:
            raise MessageInvalid(f"{MessageConst.TIMER_OUT_MS} is {out}: it must be 0 to {_LATEST_MS}")
        delete_key = properties.get(MessageConst.TIMER_DEL_UNIQKEY)
        if delete_key is not None and not delete_key.startswith(f"{topic}+"):
            raise MessageInvalid(
                f"{MessageConst.TIMER_DEL_UNIQKEY} is {delete_key[:100]!r}: a message of topic "
                f"{topic[:100]!r} cannot cancel one of another topic"
            )
        second = int(out) // MS_PER_SECOND
        deliver = properties.get(MessageConst.TIMER_DELIVER_MS, "")
        due_ms = int(deliver) if _NUMBER.fullmatch(deliver) else 0
        if second_of(due_ms) != second:  # not the time of this delivery
            due_ms = (second + 1) * MS_PER_SECOND
        key = f"{topic}+{properties.get(MessageConst.UNIQ_KEY, '')}"
        rolled = properties.get(MessageConst.TIMER_ROLL_TIMES, "")
        return cls(
            topic,
            int(queue_id),
            due_ms,
            key,
            delete_key,
            int(rolled) if _NUMBER.fullmatch(rolled) else 0,
        )

    def arrival(self, message: MessageExt) -> TimerArrival:
        """Return the message as the schedule needs it."""
        return TimerArrival(
            self.due_ms,
            message.store_timestamp,
            message.commit_log_offset,
            message.store_size,
            java_hash(self.real_topic),
            self.delete_key is not None,
        )


def moved_draft(message: MessageExt, topic: str, queue_id: int, added: Mapping[str, str]) -> RecordDraft:
    """Return a record with the content of a timer message and more properties, for another queue."""
    draft = moved(message, topic, queue_id, {**message.properties, **added})
    draft.prepared_transaction_offset = message.prepared_transaction_offset
    return draft
