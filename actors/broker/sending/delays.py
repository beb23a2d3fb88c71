"""Delayed messages, RocketMQ's 18 levels: stored under SCHEDULE_TOPIC_XXXX first, then under their own topic.

    a message with DELAY = level   →  SCHEDULE_TOPIC_XXXX, queue level − 1, with REAL_TOPIC and REAL_QID
    storeTimestamp + level's delay →  its own topic and queue, the same properties (store format 12.1)

A queue of the schedule topic holds messages of one delay, so they become due in its order. `delayOffset.json`
holds the offset up to which each queue has been delivered; after a crash, messages delivered since the last
save are delivered again.

The wall clock may jump or stand still, which makes store timestamps useless. So a message is due by the wall
clock unless that has jumped forward since the message was stored, and in any case once it has been seen
waiting for its delay by the monotonic clock.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable

from actors.broker.metadata.topics import SCHEDULE_TOPIC
from actors.broker.sending.interceptors import SendDraft
from actors.broker.sending.stored_properties import delay_level
from store.clock import NS_PER_MS, Clock
from store.disk.residency import NotResident
from store.logs import get_logger
from store.message.message import MessageExt
from store.message.properties import MessageConst, encode_properties
from store.message.record import RecordDraft, decode_records
from store.message.validate import DLQ_TOPIC_PREFIX
from store.message_store import GetMessageResult, MessageStore
from store.metadata import DelayOffsetTable
from store.store_errors import MessageInvalid, RecordTooLarge, StoreError

_log = get_logger(__name__)

# Bounds of one delivery of a level, which runs on the event loop.
MESSAGES_A_TURN = 64
BYTES_A_TURN = 1024 * 1024
_LEAP_MS = 1000
_QUEUE_ID = re.compile(r"[0-9]{1,10}")
_DELAY_PAIR = re.compile(r"((?:^|\x02)DELAY\x01)[^\x02]*")
_NOTE_NS = 50_000_000


Bring = Callable[[NotResident, Callable[[], None]], None]


class Waiting:
    """How long the messages of one level have been waiting, at least, by the monotonic clock."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ns = delay_ms * NS_PER_MS
        self._note_ns = max(self._delay_ns // 100, _NOTE_NS)  # so that notes are few
        self._notes: deque[tuple[int, int, int]] = deque()  # end offset; first and last time it was noted

    def note(self, end: int, now_ns: int) -> None:
        """Note that the level has `end` messages now."""
        known, first_ns, _ = self._notes[-1] if self._notes else (-1, 0, 0)
        if end <= known:
            return
        if known >= 0 and now_ns - first_ns < self._note_ns:
            self._notes[-1] = (end, first_ns, now_ns)
        else:
            self._notes.append((end, now_ns, now_ns))

    def is_over(self, offset: int, now_ns: int) -> bool:
        """Return True if the message at `offset` has waited for the whole delay."""
        while self._notes and self._notes[0][0] <= offset:
            self._notes.popleft()
        return bool(self._notes) and now_ns - self._notes[0][2] >= self._delay_ns


class Delays:
    """The delayed messages of one broker."""

    def __init__(
        self, store: MessageStore, clock: Clock, table: DelayOffsetTable, bring: Bring | None = None
    ) -> None:
        """Create the scheduler.

        Args:
            store: holds the messages before and after their delay.
            clock: decides when a message is due.
            table: how far each level has been delivered.
            bring: loads pages that are not resident and calls back; without it, reads may wait for the disk.
        """
        self._store = store
        self._clock = clock
        self._delays_ms = store.settings.delay_levels_ms()
        self.table = table
        self._waiting = [Waiting(delay_ms) for delay_ms in self._delays_ms]
        self._front: dict[int, tuple[int, int]] = {}  # offset and store timestamp of the first that waits
        self._trusts_wall_from: dict[int, int] = {}  # by level: the wall clock has jumped since earlier ones
        self._now_ms = clock.wall_ms()
        self._now_ns = clock.monotonic_ns()
        self.skipped = 0
        """Messages that the store refuses for good, such as those over a lowered max_message_bytes."""
        self._bring = bring
        self._loading: set[int] = set()

    def before_append(self, draft: SendDraft) -> None:
        """Send interceptor: store a delayed message under SCHEDULE_TOPIC_XXXX first."""
        level = delay_level(draft.properties)
        if level and not draft.record.topic.startswith(DLQ_TOPIC_PREFIX):
            draft.properties = self.delay_draft(draft.record, draft.properties, level)

    def delay_draft(self, record: RecordDraft, properties: str, level: int) -> str:
        """Redirect a record to the schedule topic; a level that is too high becomes the highest.

        Returns:
            The properties to store, with the topic and queue to deliver to.
        """
        highest = len(self._delays_ms) - 1
        if level > highest:
            level, properties = highest, _DELAY_PAIR.sub(rf"\g<1>{highest}", properties)
        if properties and not properties.endswith("\x02"):
            properties += "\x02"
        properties += (
            f"{MessageConst.REAL_TOPIC}\x01{record.topic}\x02"
            f"{MessageConst.REAL_QUEUE_ID}\x01{record.queue_id}\x02"
        )
        record.topic, record.queue_id = SCHEDULE_TOPIC, level - 1
        return properties

    def deliver(self) -> None:
        """Store due messages under their own topics; call a few times a second."""
        wall_ms, monotonic_ns = self._now_ms, self._now_ns
        self._now_ms, self._now_ns = self._clock.wall_ms(), self._clock.monotonic_ns()
        has_leapt = self._now_ms - wall_ms - (self._now_ns - monotonic_ns) // NS_PER_MS > _LEAP_MS
        for level in range(1, len(self._delays_ms)):
            offset = self.table.offsets.get(level, 0)
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if has_leapt:
                self._trusts_wall_from[level] = end
            if offset >= end:
                continue
            self._waiting[level].note(end, self._now_ns)
            first, stored_ms = self._front.get(level, (-1, 0))
            if first == offset and not self._is_due(level, offset, stored_ms):
                continue
            try:
                self._deliver_level(level, offset)
            # Not a bug: the disk refuses to read or write, or the process has no descriptor left.
            except (StoreError, OSError) as error:
                _log.error("delayed_delivery_failed", level=level, offset=offset, error=str(error))
                return

    def _is_due(self, level: int, offset: int, stored_ms: int) -> bool:
        if self._waiting[level].is_over(offset, self._now_ns):
            return True
        trusts_wall = offset >= self._trusts_wall_from.get(level, 0)
        return trusts_wall and self._now_ms >= stored_ms + self._delays_ms[level]

    def _deliver_level(self, level: int, offset: int) -> None:
        found = self._read(level, offset)
        if found is None:
            return
        messages = [message for part in found.slices for message in decode_records(part, check_crc=False)]
        for message in messages:
            if not self._is_due(level, message.queue_offset, message.store_timestamp):
                self._front[level] = (message.queue_offset, message.store_timestamp)
                return
            try:
                self._store.append(_delivered(message))
            # A retry would fail too and block the level. Any other StoreError may pass.
            except (MessageInvalid, RecordTooLarge, struct.error) as error:
                self._skip(level, message, error)
            self.table.move(level, message.queue_offset + 1)
        self.table.move(level, found.next_begin_offset)

    def _skip(self, level: int, message: MessageExt, error: Exception) -> None:
        self.skipped += 1
        _log.error(
            "delayed_message_skipped",
            level=level,
            offset=message.queue_offset,
            topic=message.properties.get(MessageConst.REAL_TOPIC, ""),
            error=str(error),
        )

    def _read(self, level: int, offset: int) -> GetMessageResult | None:
        """Return the next messages of a level, or None while their pages are being loaded."""
        queue_id = level - 1
        if self._bring is None:
            return self._store.get_message(SCHEDULE_TOPIC, queue_id, offset, MESSAGES_A_TURN, BYTES_A_TURN)
        if level in self._loading:
            return None
        try:
            with self._store.resident_only:
                return self._store.get_message(
                    SCHEDULE_TOPIC, queue_id, offset, MESSAGES_A_TURN, BYTES_A_TURN
                )
        except NotResident as cold:
            self._loading.add(level)
            self._bring(cold, lambda: self._loading.discard(level))
            return None


def _delivered(message: MessageExt) -> RecordDraft:
    """Return the record to append under the message's own topic. Raises MessageInvalid if it names none."""
    topic = message.properties.get(MessageConst.REAL_TOPIC)
    queue_id = message.properties.get(MessageConst.REAL_QUEUE_ID, "0")
    if not topic or not _QUEUE_ID.fullmatch(queue_id):
        raise MessageInvalid(f"its properties name topic {topic!r} and queue {queue_id[:40]!r} to deliver to")
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
