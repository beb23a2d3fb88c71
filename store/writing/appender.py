"""Appender: assigns offsets and timestamps to records, and writes the records to the CommitLog.

An append writes all its records or none.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from store.commitlog.commit_log import CommitLog
from store.common.clock import Clock
from store.common.logs import get_logger
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import explain
from store.kernels.encode import encode_batch_records, measure_batch
from store.kernels.stamp import Stamp, stamp_runs
from store.message.buffers import Buffer
from store.message.hosts import Host
from store.message.record import RecordDraft, encode_record
from store.message.runs import Runs
from store.message.sys_flag import TRANSACTION_UNQUEUED
from store.store_errors import MessageInvalid, StoreError
from store.store_settings import StoreSettings
from store.writing.raw_records import RawRecords
from store.writing.send_gate import SendGate

_log = get_logger(__name__)

_OVERHEAD_MAX_BYTES = 65_536  # limit for all parts of a record except its body (RocketMQ)
_DEFAULT_HOST = Host("127.0.0.1", 10911)
_AHEAD_MAX_MS = 24 * 3_600_000


@dataclass(slots=True)
class AppendResult:
    """Result of an append. `physical_offset` and `queue_offset` are those of the first record.

    `physical_offsets` has one CommitLog offset per record of a batch request. For records of several queues,
    `queue_offsets` has the first queue offset of each run (the records of one queue).
    """

    physical_offset: int
    queue_offset: int
    size_bytes: int
    store_timestamp: int
    count: int = 1
    physical_offsets: Sequence[int] = ()
    queue_offsets: Sequence[int] = ()


class BlockRoom(NamedTuple):
    """The CommitLog offset of the next append, the bytes that fit into its file, and its storeTimestamp."""

    position: int
    size_bytes: int
    timestamp_ms: int


class Appender:
    """Appends records to one CommitLog."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        settings: StoreSettings,
        gate: SendGate,
        clock: Clock,
        last_timestamp: int,
        undispatched: Callable[[], Iterable[tuple[bytes, int, int]]],
    ) -> None:
        """Create an appender for `log`.

        `last_timestamp` is the storeTimestamp of the last record in the log; later records never get an
        earlier one. A value more than a day ahead of the clock is ignored: the record CRC does not cover the
        timestamp, and all later records would inherit a damaged value.

        `undispatched` yields (topic, queue id, next queue offset) for records in the log whose units are not
        in their consume queues yet.
        """
        self._log = log
        self.raw = RawRecords(log)
        self._positions = log.positions
        self._queues = queues
        self._gate = gate
        self._clock = clock
        self._append_crc = settings.append_property_crc
        self._settings = settings
        self.last_timestamp = last_timestamp
        if last_timestamp - clock.wall_ms() > _AHEAD_MAX_MS:
            _log.warning("store_timestamp_ahead", last_timestamp=last_timestamp, wall_ms=clock.wall_ms())
            self.last_timestamp = 0
        self.store_host = _DEFAULT_HOST.packed
        self._undispatched = undispatched
        self.assigned_is_known = self._positions.dispatched == self._positions.written
        """True if every queue's `assigned_offset` counts all records in the log."""
        self.awaited: Collection[str | tuple[str, int]] = ()

    def append(self, draft: RecordDraft) -> AppendResult:
        """Append one message. Raises StoreError, MessageInvalid."""
        # The flags are read here: a call for each check would cost more than the checks.
        if not self._gate.is_open:
            self._gate.check()
        if not self.assigned_is_known:
            self._recount_assigned()
        queue = self._queues.get(draft.topic, draft.queue_id)
        queue_offset = queue.assigned_offset
        position = self._positions.written
        timestamp = self._now()
        # Encode for the expected position; only if a new file is needed, the record is encoded again.
        record = encode_record(
            draft, queue_offset, position, timestamp, self.store_host, append_crc=self._append_crc
        )
        size_bytes = len(record)
        if size_bytes > self._settings.max_message_bytes + _OVERHEAD_MAX_BYTES:
            raise self._too_large(size_bytes)
        place = self._reserve(size_bytes)
        if place != position:
            position = place
            record = encode_record(
                draft, queue_offset, position, timestamp, self.store_host, append_crc=self._append_crc
            )
        self._write(position, record)
        # After the write: a failed append must not leave a gap in the queue.
        if not draft.sys_flag & TRANSACTION_UNQUEUED:
            queue.assigned_offset = queue_offset + 1
        else:
            queue_offset = 0
        self._mark_awaited(draft.topic, draft.queue_id)
        return AppendResult(position, queue_offset, size_bytes, timestamp)

    def append_batch(self, draft: RecordDraft, batch: Buffer) -> AppendResult:
        """Append the messages in the body of a RocketMQ batch request. Raises StoreError, MessageInvalid."""
        if not self._gate.is_open:
            self._gate.check()
        if not self.assigned_is_known:
            self._recount_assigned()
        queue = self._queues.get(draft.topic, draft.queue_id)
        count, size_bytes = measure_batch(batch, draft, len(self.store_host), append_crc=self._append_crc)
        if count == 0:
            raise MessageInvalid("the batch has no messages: send at least one")
        position = self._reserve(size_bytes)
        timestamp = self._now()
        queue_offset = queue.assigned_offset
        encoded = encode_batch_records(
            batch, draft, queue_offset, position, timestamp, self.store_host, append_crc=self._append_crc
        )
        self._write(position, encoded.records)
        queue.assigned_offset += count
        self._mark_awaited(draft.topic, draft.queue_id)
        physical_offsets = (encoded.positions + position).tolist()
        return AppendResult(position, queue_offset, size_bytes, timestamp, count, physical_offsets)

    def append_runs(self, topic: str, runs: Runs, born_host: bytes) -> AppendResult:
        """Append records of queues of one topic that a client encoded; `runs` has one run per queue.

        Offsets, timestamps and hosts are written into the records in place. Raises StoreError,
        MessageInvalid.
        """
        if not self._gate.is_open:
            self._gate.check()
        if not self.assigned_is_known:
            self._recount_assigned()
        queues = self._queues.get_all(topic, runs.queue_ids)
        queue_offsets = [queue.assigned_offset for queue in queues]
        size_bytes = len(runs.records)
        position = self._reserve(size_bytes)
        timestamp = self._now()
        limit_bytes = self._settings.max_message_bytes
        stamp = Stamp(topic, position, timestamp, born_host, self.store_host, limit_bytes)
        stamp_runs(runs, stamp, queue_offsets)
        self._write(position, runs.records)
        for queue, messages in zip(queues, runs.messages, strict=True):
            queue.assigned_offset += messages
        awaited = self.awaited
        if awaited and (topic in awaited or any((topic, queue_id) in awaited for queue_id in runs.queue_ids)):
            self._positions.awaited = self._positions.written
        return AppendResult(
            position,
            queue_offsets[0],
            size_bytes,
            timestamp,
            sum(runs.messages),
            queue_offsets=queue_offsets,
        )

    def begin_block(self) -> BlockRoom | None:
        """Return where the next records would be appended; None if they need a new file, or are refused."""
        if not self._gate.is_open:
            return None
        if not self.assigned_is_known:
            self._recount_assigned()
        room_bytes = self._log.room_bytes
        return BlockRoom(self._positions.written, room_bytes, self._now()) if room_bytes > 0 else None

    def append_block(self, position: int, records: memoryview, *, is_awaited: bool) -> None:
        """Append records that were encoded for `position`, and whose queue offsets are assigned.

        Raises StoreError.
        """
        try:
            self._write(position, records)
        except StoreError:
            self.assigned_is_known = False  # they count records that are not in the log
            raise
        if is_awaited:
            self._positions.awaited = self._positions.written

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes copied from another replica's log at CommitLog offset `offset`. Raises StoreError."""
        try:
            timestamp = self.raw.append(offset, data)
        except OSError as error:
            raise self._no_space(error) from error
        # A promoted replica must not write earlier times than the replica that it replaces.
        self.last_timestamp = max(self.last_timestamp, timestamp)
        if self.awaited:  # of which queues the records are is not known
            self._positions.awaited = self._positions.written
        self.assigned_is_known = False

    def _mark_awaited(self, topic: str, queue_id: int) -> None:
        if (topic, queue_id) in self.awaited or topic in self.awaited:
            self._positions.awaited = self._positions.written

    def _reserve(self, size_bytes: int) -> int:
        try:
            return self._log.reserve(size_bytes)
        except OSError as error:
            raise self._no_space(error) from error

    def _write(self, position: int, record: Buffer) -> None:
        try:
            self._log.write_at(position, (record,))
        except OSError as error:
            raise self._no_space(error) from error

    def _no_space(self, error: OSError) -> StoreError:
        return StoreError(f"the commit log cannot be written: {explain(error)}", str(self._log.paths))

    def _too_large(self, size_bytes: int) -> MessageInvalid:
        limit_bytes = self._settings.max_message_bytes
        return MessageInvalid(
            f"record of {size_bytes:,} bytes exceeds max_message_bytes {limit_bytes:,} plus "
            f"{_OVERHEAD_MAX_BYTES:,} for properties: raise it on the broker or compress the body"
        )

    def _now(self) -> int:
        now_ms = self._clock.wall_ms()
        if now_ms > self.last_timestamp:
            self.last_timestamp = now_ms
        return self.last_timestamp

    def rewind(self) -> None:
        """Continue at `positions.written`, after the log was truncated there."""
        self.raw.forget()
        self.assigned_is_known = False  # the next append computes the offsets again

    def _recount_assigned(self) -> None:
        """Compute the `assigned_offset` of each queue from the log.

        It is the queue offset after the last record in the log, whether this record is dispatched or not.
        Raises StoreError if the last record is incomplete.
        """
        written = self._positions.written
        if self.raw.next_record != written:
            reason = f"the log ends at {written:,}, inside the record before {self.raw.next_record:,}"
            if self.raw.next_record < written:
                reason = f"the log ends at {written:,}, inside the record at {self.raw.next_record:,}"
            raise StoreError(f"{reason}: truncate it before new records are appended")
        self.raw.forget()
        for queue in self._queues:
            queue.assigned_offset = queue.next_offset
        for topic, queue_id, following in self._undispatched():
            self._queues.get_by_bytes(topic, queue_id).assigned_offset = following
        self.assigned_is_known = True
