"""Delayed messages, RocketMQ's 18 levels: stored under SCHEDULE_TOPIC_XXXX, and again under their own topic
when due.

    a message with DELAY = level   →  SCHEDULE_TOPIC_XXXX, queue level − 1, with REAL_TOPIC and REAL_QID
    storeTimestamp + level's delay →  its own topic and queue, the same properties (store format 12.1)

A queue of the schedule topic holds messages of one delay, so it is due from its front. How far each has been
delivered stands in `delayOffset.json`; after a crash what was delivered since the last save is delivered
again.
"""

from __future__ import annotations

from dataclasses import replace

from actors.broker.topics import SCHEDULE_TOPIC
from actors.remoting.codes import ResponseCode
from actors.remoting.errors import Refused
from store.clock import Clock
from store.errors import StoreError
from store.logs import get_logger
from store.message.message import MessageExt
from store.message.properties import MessageConst, encode_properties
from store.message.record import RecordDraft, decode_records
from store.message_store import MessageStore
from store.metadata import DelayOffsetTable

_log = get_logger(__name__)

# How much of one level is delivered in one go: bounded, as it happens on the loop.
MESSAGES_A_TURN = 64
BYTES_A_TURN = 1024 * 1024
_NEVER_MS = 1 << 62


def delay_level(properties: str) -> int:
    """The DELAY level in a property string, 0 where there is none. Raises `Refused` for what is no number,
    and for delays to the millisecond, which this broker does not have.
    """
    level = 0
    for pair in properties.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name == MessageConst.DELAY:
            if not value.lstrip("-").isdecimal():
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL, f"property DELAY is {value!r}, not a level from 1 on"
                )
            return max(int(value), 0)
        if name in _TIMERS:
            level = -1
    if level < 0:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "this broker has no timer for properties TIMER_…: use a delay level (DELAY)",
        )
    return level


_TIMERS = frozenset(
    {MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS, MessageConst.TIMER_DELIVER_MS}
)


class Delays:
    """The delayed messages of one broker."""

    def __init__(self, store: MessageStore, clock: Clock, table: DelayOffsetTable) -> None:
        """`table` tells how far each level has been delivered."""
        self._store = store
        self._clock = clock
        self._delays_ms = store.settings.delay_levels_ms()
        self.table = table
        self._due_ms: dict[int, int] = {}
        self.delivered = 0

    def put_off(self, draft: RecordDraft, level: int) -> RecordDraft:
        """The record to store instead, for a message of a level from 1 on; one too high is the highest."""
        level = min(level, len(self._delays_ms) - 1)
        real = (
            f"{MessageConst.REAL_TOPIC}\x01{draft.topic}\x02"
            f"{MessageConst.REAL_QUEUE_ID}\x01{draft.queue_id}\x02"
        )
        return replace(
            draft, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=draft.properties + real.encode()
        )

    def deliver(self) -> None:
        """Store what is due under its own topic; call a few times a second."""
        now_ms = self._clock.wall_ms()
        for level in range(1, len(self._delays_ms)):
            offset = self.table.offsets.get(level, 0)
            if offset >= self._store.max_offset(SCHEDULE_TOPIC, level - 1):
                continue
            # A clock set back must not keep a message longer than its delay.
            if now_ms < self._due_ms.get(level, 0) <= now_ms + self._delays_ms[level]:
                continue
            try:
                self._deliver_level(level, offset, now_ms)
            except StoreError as error:
                _log.error("delayed_messages_not_delivered", level=level, offset=offset, error=str(error))
                return

    def _deliver_level(self, level: int, offset: int, now_ms: int) -> None:
        found = self._store.get_message(SCHEDULE_TOPIC, level - 1, offset, MESSAGES_A_TURN, BYTES_A_TURN)
        messages = [message for part in found.slices for message in decode_records(part, check_crc=False)]
        for message in messages:
            due_ms = message.store_timestamp + self._delays_ms[level]
            if now_ms < due_ms <= now_ms + self._delays_ms[level]:
                self._due_ms[level] = due_ms
                return
            draft = _delivered(message)
            if draft is not None:
                self._store.append(draft)
                self.delivered += 1
            self.table.move(level, message.queue_offset + 1)
        self.table.move(level, found.next_begin_offset)


def _delivered(message: MessageExt) -> RecordDraft | None:
    topic = message.properties.get(MessageConst.REAL_TOPIC)
    queue_id = message.properties.get(MessageConst.REAL_QUEUE_ID, "0")
    if not topic or not queue_id.isdecimal():
        _log.error("delayed_message_without_topic", offset=message.queue_offset, queue_id=message.queue_id)
        return None
    return RecordDraft(
        topic,
        int(queue_id),
        message.body,
        encode_properties(message.properties),
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.born_host.packed,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )
