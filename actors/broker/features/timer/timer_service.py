"""TimerService: delivers the timer messages of one broker.

Each round of its task

    1. adds new messages of the timer topic to the wheel and the log,
    2. appends the messages that are due to their own topics, or again to the timer topic (rolled).

The progress is saved when everything up to it is flushed, so a power failure delivers some messages again but
loses none. A message is never delivered before its time, by the wall clock.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from actors.beat import BEAT_MS, on_beat_s
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.topics import REVIVE_QUEUES, TIMER_TOPIC, Topics, revive_topic
from actors.broker.core.sending.put_aside import PutAside
from actors.broker.features.timer.timer_counts import TimerCounts
from actors.broker.features.timer.timer_messages import TIMER_QUEUE_ID, TimerMessage, moved_draft
from actors.broker.features.timer.timer_saving import TimerSaving
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.properties import MessageConst
from store.message.record import decode_record, decode_records
from store.message_store import MessageStore
from store.store_errors import MessageInvalid, RecordTooLarge, StoreError
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_files import TimerFiles, TimerProgress
from store.timer.timer_schedule import TimerEntry, TimerSchedule

_log = get_logger(__name__)

READ_MESSAGES = 256
READ_BYTES = 1024 * 1024
DELIVERIES_PER_TURN = 64
UNITS_PER_TURN = 2048
MIN_PAUSE_MS = 1
MAX_PAUSE_MS = 50
"""New messages are found at the latest after this time, or when they are announced."""
REST_AFTER_ROUNDS = 200
"""After so many rounds in a row without pending messages and new records, there is one at each beat."""
FAILURE_PAUSE_MS = 1000


class TimerService:
    """The timer of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        clock: Clock,
        counts: TimerCounts,
        topics: Topics,
        request_tick: Callable[[], None],
    ) -> None:
        """Create the service; `start` opens its files.

        Args:
            settings: the window of the wheel and the size of its log files.
            store: has the timer messages, and gets the delivered ones.
            reads: reads messages without blocking the loop.
            clock: decides which messages are due.
            counts: counts the pending messages.
            topics: decides which queues messages may be delivered to.
            request_tick: requests a turn of the broker's loop, which confirms the appends.
        """
        self._settings = settings
        self._store = store
        self._reads = reads
        self._clock = clock
        self._counts = counts
        self._topics = topics
        self._revive_topic = revive_topic(settings.cluster_name)
        self._aside = PutAside(store, topics)
        self._request_tick = request_tick
        # Now, and at each stop: later appends are not part of the log that the units refer to.
        self._physical_end = store.positions.written
        self._files = TimerFiles(store.root, settings.timer_log_file_bytes)
        self._schedule: TimerSchedule | None = None
        self._saving = TimerSaving(self._files, store, counts, clock)
        self._queue_offset = 0
        self._resumed = TimerProgress(0, 0)
        self._delivered_second = 0
        self._written = 0  # at the last round
        self._idle_rounds = 0
        self._announced = asyncio.Event()
        self._add_before = 0  # deliver nothing before these messages of the timer topic are added

    @property
    def pending(self) -> int:
        """Number of timer messages that are neither delivered nor cancelled."""
        schedule = self._schedule
        return 0 if schedule is None else max(schedule.pending, 0) + self.offset_behind

    @property
    def offset_behind(self) -> int:
        """Number of messages of the timer topic that are not in the wheel yet."""
        return max(self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE_ID) - self._queue_offset, 0)

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """The progress that was saved last."""
        return self._files.checkpoint

    @property
    def read_behind_s(self) -> int:
        """How many seconds the delivery is late."""
        schedule = self._schedule
        return 0 if schedule is None else max(self._clock.wall_ms() // 1000 - schedule.read_second, 0)

    def due_within(self, begin_s: int, end_s: int) -> int:
        """Return the number of messages in the wheel that are due from `begin_s` to `end_s` seconds from now.

        Those before now, with a negative `begin_s`, are late.
        """
        now_s = self._clock.wall_ms() // 1000
        return 0 if self._schedule is None else self._files.due_within(now_s + begin_s, now_s + end_s)

    async def next_stored_ms(self) -> int | None:
        """Return the store time of the first message that is not in the wheel yet; None without one."""
        if not self.offset_behind:
            return None
        offset, read = self._queue_offset, self._store.store_timestamp
        return await self._reads.read(partial(read, TIMER_TOPIC, TIMER_QUEUE_ID, offset))

    async def start(self) -> None:
        """Open the files and find the first message that is not in them."""
        await self._reads.caught_up()
        now_ms = self._clock.wall_ms()
        progress = await asyncio.to_thread(self._files.recover, now_ms, self._physical_end)
        self._queue_offset, self._resumed = progress.queue_offset, progress
        last = self._files.last_unit() if not progress.rebuilt_to else None
        if last is not None:
            message = await self._reads.read(partial(self._message_at, last.physical_offset))
            if message is not None and message.topic == TIMER_TOPIC:
                self._queue_offset = max(self._queue_offset, message.queue_offset + 1)
        begin, end = (self._store.min_offset(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0))
        self._queue_offset = min(max(self._queue_offset, begin), end)
        self._add_before = end
        window_s = self._settings.timer_roll_window_slots
        self._schedule = TimerSchedule(self._files, progress.read_second, window_s)
        if self.pending:
            _log.info("pending_timers_loaded", timers=self.pending, read_second=progress.read_second)

    async def stop(self) -> None:
        """Save the progress, so that a restart delivers nothing again, and close the files."""
        schedule, self._schedule = self._schedule, None
        if schedule is None:
            return
        is_complete = self._queue_offset >= self._resumed.rebuilt_to
        if self._files.exist and is_complete and not self._store.is_superseded:
            try:
                # Otherwise the saved progress, of before the last deliveries, stays: they may be truncated.
                if await self._saving.flush_store():
                    if schedule.needs_compaction:
                        schedule.compact()
                    await self._saving.save_now(TimerProgress(self._queue_offset, schedule.read_second))
            except (OSError, StoreError) as error:
                _log.error("timer_progress_not_saved", error=str(error))
        self._saving.forget()
        self._files.close()
        self._physical_end = self._store.positions.written

    async def run(self) -> None:
        """Deliver messages until the task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause_ms = await self.round()
            written, self._written = self._written, self._store.positions.written
            self._idle_rounds = 0 if self.pending or written < self._written else self._idle_rounds + 1
            if self._idle_rounds < REST_AFTER_ROUNDS:
                await asyncio.sleep(pause_ms / 1000)
            else:
                self._announced.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._announced.wait(), on_beat_s(BEAT_MS / 1000, loop.time()))

    def announce(self) -> None:
        """Let the next round begin soon, because a timer message is being appended."""
        self._announced.set()

    async def round(self) -> int:
        """Do what can be done now; return the milliseconds until the next round."""
        schedule = self._schedule
        if schedule is None:
            return MAX_PAUSE_MS
        try:
            # Read before the messages are added: a cancellation that was sent before that time is then known.
            now_ms = self._clock.wall_ms()
            may_add = schedule.may_add(now_ms)
            has_more = await self._enqueue(schedule) if may_add else True
            # Messages that are not added yet may cancel others, or be rolled ones that others cancel. After a
            # stop of many days the wheel has no room for them until older messages are delivered.
            if may_add and self._queue_offset < self._add_before:
                return MIN_PAUSE_MS
            has_more |= await self._deliver(schedule, now_ms)
        # Expected errors: the disk is full or slow. The next round tries again.
        except (StoreError, Refused, OSError) as error:
            _log.warning("timer_round_failed", error=str(error))
            return FAILURE_PAUSE_MS
        if has_more:
            return 0
        self._counts.rounds += 1
        return min(max(schedule.next_ms() - self._clock.wall_ms(), MIN_PAUSE_MS), MAX_PAUSE_MS)

    async def save_progress(self) -> None:
        """Save the progress up to what is flushed, and delete old files; to be called periodically."""
        schedule = self._schedule
        if schedule is None or not self._files.exist or self._store.is_superseded:
            return
        if self._queue_offset < self._resumed.rebuilt_to:
            return
        progress = TimerProgress(self._queue_offset, schedule.read_second)
        await self._saving.save(progress, self._delivered_second)

    def cancel(self, deliver_second: int, key: str) -> None:
        """Cancel a pending message now; the caller has appended the message with its TIMER_DEL_UNIQKEY."""
        if self._schedule is not None:
            self._schedule.delete(deliver_second, key, is_in_wheel=False)

    async def _enqueue(self, schedule: TimerSchedule) -> bool:
        """Add the next messages of the timer topic; return True if there are more."""
        await self._reads.caught_up()
        if not self.offset_behind:
            return False
        if self._files.is_full:
            await self._saving.in_thread(self._files.allocate)
        offset = max(self._queue_offset, self._store.min_offset(TIMER_TOPIC, TIMER_QUEUE_ID))
        found = await self._reads.read(
            lambda: self._store.get_message(TIMER_TOPIC, TIMER_QUEUE_ID, offset, READ_MESSAGES, READ_BYTES)
        )
        for message in (each for part in found.slices for each in decode_records(part, check_crc=False)):
            if self._files.is_full:
                return True
            self._add(schedule, message)
            self._queue_offset = message.queue_offset + 1
        self._queue_offset = max(found.next_begin_offset, self._queue_offset, offset + (not found.slices))
        return self.offset_behind > 0

    def _add(self, schedule: TimerSchedule, message: MessageExt) -> None:
        try:
            timer = self._checked(message)
        except (MessageInvalid, Refused) as error:
            self._put_aside(message, error)
            return
        is_known = message.queue_offset < self._resumed.rebuilt_to
        skip_before = self._resumed.rebuilt_from if is_known else 0
        if schedule.add(timer.arrival(message), skip_before=skip_before) is None:
            return
        if timer.delete_key is not None:
            schedule.delete((timer.due_ms - 1) // 1000, timer.delete_key, is_in_wheel=True)
        self._counts.enqueued_one(timer, message.born_timestamp)

    async def _deliver(self, schedule: TimerSchedule, now_ms: int) -> bool:
        """Deliver some of the messages that are due at `now_ms`; return True if there may be more."""
        if not schedule.load(now_ms, UNITS_PER_TURN):
            return True
        if schedule.unread_deletes:
            await self._read_deletes(schedule)
        entries = schedule.take(now_ms, DELIVERIES_PER_TURN)
        if not entries:
            return False
        left = entries[::-1]
        try:
            messages = await self._reads.all_of(
                partial(self._message_at, entry.unit.physical_offset) for entry in entries
            )
            for entry, message in zip(entries, messages, strict=True):
                self._deliver_one(schedule, entry, message)
                left.pop()
        finally:
            for entry in left:
                schedule.put_back(entry, entry.unit.time_ms + 1)
            self._request_tick()
        return True

    async def _read_deletes(self, schedule: TimerSchedule) -> None:
        units = list(schedule.unread_deletes)
        for message in await self._reads.all_of(
            partial(self._message_at, unit.physical_offset) for unit in units
        ):
            if message is None:
                continue
            try:
                key = TimerMessage.of(message).delete_key
            except MessageInvalid as error:  # of an adopted store: `_add` did not check it
                _log.error("timer_message_skipped", position=message.commit_log_offset, error=str(error))
                continue
            if key is not None:
                schedule.delete(schedule.read_second, key, is_in_wheel=True)
        schedule.deletes_read()

    def _deliver_one(self, schedule: TimerSchedule, entry: TimerEntry, message: MessageExt | None) -> None:
        """Deliver or roll one message. Raises StoreError if the store refuses appends."""
        if message is None:
            self._skip(schedule, entry, MessageInvalid("its record is deleted or damaged"))
            return
        try:
            timer = self._checked(message)
        except (MessageInvalid, Refused) as error:
            self._skip(schedule, entry, error, message)
            return
        now_ms = self._clock.wall_ms()
        if not entry.unit.is_roll:
            if timer.due_ms > now_ms:
                schedule.put_back(entry, timer.due_ms)
                return
            if schedule.is_deleted(timer.key):
                schedule.finish(entry, is_deleted=True)
                self._counts.dequeued += 1
                return
        self._append(schedule, entry, message, timer, now_ms)

    def _append(
        self,
        schedule: TimerSchedule,
        entry: TimerEntry,
        message: MessageExt,
        timer: TimerMessage,
        now_ms: int,
    ) -> None:
        added = {
            MessageConst.TIMER_ENQUEUE_MS: str(entry.unit.written_ms),
            MessageConst.TIMER_DEQUEUE_MS: str(now_ms),
        }
        topic, queue_id = timer.real_topic, timer.real_queue_id
        if entry.unit.is_roll:
            added[MessageConst.TIMER_ROLL_TIMES] = str(timer.rolled + 1)
            topic, queue_id = TIMER_TOPIC, TIMER_QUEUE_ID
        try:
            result = self._store.append(moved_draft(message, topic, queue_id, added))
        # A retry would fail as well, and delay the others. Other StoreErrors may be temporary.
        except (MessageInvalid, RecordTooLarge, struct.error) as error:
            self._skip(schedule, entry, error, message)
            return
        if topic == TIMER_TOPIC:
            self._add_before = result.queue_offset + 1
        schedule.finish(entry)
        self._delivered_second = schedule.read_second
        self._counts.dequeued_one(timer)

    def _checked(self, message: MessageExt) -> TimerMessage:
        """Return the facts about a message. Raises MessageInvalid or Refused if it cannot be delivered."""
        timer = TimerMessage.of(message)
        if timer.real_topic != self._revive_topic or timer.real_queue_id >= REVIVE_QUEUES:
            self._topics.prepare_delivery(message, timer.real_topic, timer.real_queue_id)
        return timer

    def _skip(
        self, schedule: TimerSchedule, entry: TimerEntry, error: Exception, message: MessageExt | None = None
    ) -> None:
        if message is not None and message.topic == TIMER_TOPIC:
            self._put_aside(message, error)
        else:  # a damaged file of the timer names the record of another topic
            self._counts.skipped += 1
            _log.error("timer_message_skipped", position=entry.unit.physical_offset, error=str(error))
        schedule.finish(entry)

    def _put_aside(self, message: MessageExt, error: Exception) -> None:
        self._counts.skipped += 1
        _log.error(
            "timer_message_skipped",
            offset=message.queue_offset,
            position=message.commit_log_offset,
            error=str(error),
        )
        self._aside.put(message, error)

    def _message_at(self, physical_offset: int) -> MessageExt | None:
        """Return a stored message; None if its record is deleted or damaged. Raises NotResident."""
        try:
            return decode_record(self._store.record_at(physical_offset), check_crc=False)
        except StoreError:
            return None
