"""DelayScheduler: messages with one of RocketMQ's 18 delay levels.

    sent with DELAY = level         →  SCHEDULE_TOPIC_XXXX, queue level − 1, with REAL_TOPIC and REAL_QID
    at storeTimestamp + the delay   →  its own topic and queue, the same properties

The form of these messages is in docs/store-format.md#delay-levels.
All messages in a queue of SCHEDULE_TOPIC_XXXX have the same delay, so they become due in the order of the
queue. `delayOffset.json` holds the offset up to which each queue has been delivered, by deliveries that are
flushed and confirmed. After a crash, messages delivered later are delivered again.

The wall clock may jump or stop, so store timestamps are not reliable. A message is due if its delay has
passed by the wall clock, unless that has jumped forward since the message was stored; and in any case if the
broker has observed it for its delay by the monotonic clock.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterator

from actors.broker.core.metadata.topics import SCHEDULE_TOPIC, Topics
from actors.broker.core.sending.delay_draft import delay_draft
from actors.broker.core.sending.interceptors import SendDraft
from actors.broker.core.sending.moved import moved
from actors.broker.core.sending.put_aside import PutAside
from actors.broker.core.sending.stored_properties import delay_level
from actors.broker.features.delay.unconfirmed_deliveries import Delivery, UnconfirmedDeliveries
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.disk.residency import NotResident
from store.message.message import MessageExt
from store.message.properties import MessageConst
from store.message.record import RecordDraft, decode_records
from store.message.validate import DLQ_TOPIC_PREFIX
from store.message_store import GetMessageResult, MessageStore
from store.metadata import DelayOffsetTable
from store.store_errors import MessageInvalid, RecordTooLarge, StoreError
from store.writing.send_gate import REPLICATION

_log = get_logger(__name__)

# Limits of one delivery of a level, which runs on the event loop.
MESSAGES_PER_TURN = 64
BYTES_PER_TURN = 1024 * 1024
_CLOCK_JUMP_MS = 1000
_QUEUE_ID = re.compile(r"[0-9]{1,10}")
_NOTE_INTERVAL_NS = 50_000_000


LoadPages = Callable[[NotResident, Callable[[], None]], None]


class DelayTimer:
    """Measures by the monotonic clock how long the messages of one level have waited."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ns = delay_ms * NS_PER_MS
        self._note_interval_ns = max(self._delay_ns // 100, _NOTE_INTERVAL_NS)  # limits the number of notes
        # Each note: end offset, times of the first and last observation.
        self._notes: deque[tuple[int, int, int]] = deque()

    def observe(self, end: int, now_ns: int) -> None:
        """Record that the queue of this level ends at offset `end` at time `now_ns`."""
        known, first_ns, _ = self._notes[-1] if self._notes else (-1, 0, 0)
        if end <= known:
            return
        if known >= 0 and now_ns - first_ns < self._note_interval_ns:
            self._notes[-1] = (end, first_ns, now_ns)
        else:
            self._notes.append((end, now_ns, now_ns))

    def has_elapsed(self, offset: int, now_ns: int) -> bool:
        """Return True if the message at `offset` was first observed at least its delay ago."""
        while self._notes and self._notes[0][0] <= offset:
            self._notes.popleft()
        return bool(self._notes) and now_ns - self._notes[0][2] >= self._delay_ns


class DelayScheduler:
    """Stores the delayed messages of one broker and delivers them when they are due."""

    property_names = (MessageConst.DELAY,)

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        table: DelayOffsetTable,
        topics: Topics,
        deliveries: UnconfirmedDeliveries,
        load_pages: LoadPages | None = None,
    ) -> None:
        """Create the scheduler.

        Args:
            store: stores the messages before and after their delay.
            clock: decides when a message is due.
            table: the offset up to which each level has been delivered.
            topics: decides which queues messages may be delivered to.
            deliveries: knows which deliveries the log has lost.
            load_pages: loads missing pages, then calls back; if None, reads may wait for the disk.
        """
        self._store = store
        self._clock = clock
        self._delays_ms = store.settings.delay_levels_ms()
        self.table = table
        self._topics = topics
        self._aside = PutAside(store, topics)
        self._timers = [DelayTimer(delay_ms) for delay_ms in self._delays_ms]
        # By level: offset and store timestamp of the next message to deliver.
        self._front: dict[int, tuple[int, int]] = {}
        # By level: the wall clock has jumped since the messages before this offset were stored.
        self._trusts_wall_from: dict[int, int] = {}
        self._now_ms = clock.wall_ms()
        self._now_ns = clock.monotonic_ns()
        self.skipped = 0
        """Number of messages that could not be delivered, such as oversized ones; see `PutAside`."""
        self._deliveries = deliveries
        self._load_pages = load_pages
        self._loading: set[int] = set()

    def before_append(self, draft: SendDraft) -> None:
        """Redirect a message with a delay level to SCHEDULE_TOPIC_XXXX (send interceptor)."""
        level = delay_level(draft.properties)
        if level and not draft.record.topic.startswith(DLQ_TOPIC_PREFIX):
            draft.properties = delay_draft(draft.record, draft.properties, level, self._delays_ms)

    def deliver(self) -> None:
        """Append the due messages to their own topics; to be called after `left_ms`."""
        wall_ms, monotonic_ns = self._now_ms, self._now_ns
        self._now_ms, self._now_ns = self._clock.wall_ms(), self._clock.monotonic_ns()
        has_jumped = self._now_ms - wall_ms - (self._now_ns - monotonic_ns) // NS_PER_MS > _CLOCK_JUMP_MS
        for level, offset in self._deliveries.take_lost().items():
            self.table.move(level, min(offset, self.table.offsets.get(level, offset)))
        positions = self._store.positions
        self.table.settle(positions.written, min(positions.flushed, positions.confirmed))
        if self._store.gate.is_closed_by(REPLICATION):  # expected; the log has all other errors
            return
        for level, offset, end in self._waiting():
            if has_jumped:
                self._trusts_wall_from[level] = end
            self._timers[level].observe(end, self._now_ns)
            first, stored_ms = self._front.get(level, (-1, 0))
            if first == offset and not self._is_due(level, offset, stored_ms):
                continue
            try:
                self._deliver_level(level, offset)
            # Expected errors: the disk fails, or the process has too many open files. The next call retries.
            except (StoreError, OSError) as error:
                _log.error("delayed_delivery_failed", level=level, offset=offset, error=str(error))
                return

    def left_ms(self) -> int | None:
        """Return the time until a message is due by the wall clock: None without one, 0 if not known."""
        left_ms: list[int] = []
        for level, offset, _ in self._waiting():
            first, stored_ms = self._front.get(level, (-1, 0))
            left_ms.append(stored_ms + self._delays_ms[level] - self._now_ms if first == offset else 0)
        return min(left_ms, default=None)

    def _waiting(self) -> Iterator[tuple[int, int, int]]:
        """Yield the levels that have messages to deliver: level, first offset and end of its queue."""
        for level in range(1, len(self._delays_ms)):
            offset, end = self.table.offsets.get(level, 0), self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if offset < end:
                yield level, offset, end

    def _is_due(self, level: int, offset: int, stored_ms: int) -> bool:
        if self._timers[level].has_elapsed(offset, self._now_ns):
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
                draft = _delivered(message)
                self._topics.prepare_delivery(message, draft.topic, draft.queue_id)
                result = self._store.append(draft)
                end = result.physical_offset + result.size_bytes
                self._deliveries.add(Delivery(end, level, message.queue_offset))
            # Skipped, because a retry would fail too and block the level. Other StoreErrors may be temporary.
            except (MessageInvalid, RecordTooLarge, Refused, struct.error) as error:
                self._skip(level, message, error)
            self.table.move(level, message.queue_offset + 1)
        self.table.move(level, found.next_begin_offset)

    def _skip(self, level: int, message: MessageExt, error: Exception) -> None:
        self.skipped += 1
        _log.error(
            "delayed_message_skipped",
            level=level,
            offset=message.queue_offset,
            position=message.commit_log_offset,
            topic=message.properties.get(MessageConst.REAL_TOPIC, ""),
            error=str(error),
        )
        self._aside.put(message, error)

    def _read(self, level: int, offset: int) -> GetMessageResult | None:
        """Return the next messages of a level, or None while their pages are being loaded."""
        queue_id = level - 1
        if self._load_pages is None:
            return self._store.get_message(
                SCHEDULE_TOPIC, queue_id, offset, MESSAGES_PER_TURN, BYTES_PER_TURN
            )
        if level in self._loading:
            return None
        try:
            with self._store.resident_only:
                return self._store.get_message(
                    SCHEDULE_TOPIC, queue_id, offset, MESSAGES_PER_TURN, BYTES_PER_TURN
                )
        except NotResident as cold:
            self._loading.add(level)
            self._load_pages(cold, lambda: self._loading.discard(level))
            return None


def _delivered(message: MessageExt) -> RecordDraft:
    """Return the record to append to the message's own topic. Raises MessageInvalid if it has none."""
    topic = message.properties.get(MessageConst.REAL_TOPIC)
    queue_id = message.properties.get(MessageConst.REAL_QUEUE_ID, "0")
    if not topic or not _QUEUE_ID.fullmatch(queue_id):
        raise MessageInvalid(
            f"invalid delivery target: REAL_TOPIC is {topic!r}, REAL_QID is {queue_id[:40]!r}"
        )
    draft = moved(message, topic, int(queue_id))
    draft.prepared_transaction_offset = message.prepared_transaction_offset
    return draft
