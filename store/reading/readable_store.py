"""ReadableStore: read access to a store by offset, time and key. It writes nothing."""

from collections.abc import Iterator

from store.commitlog.positions import Positions
from store.common.clock import Clock
from store.consumequeue.readable_queue import ReadableQueue
from store.consumequeue.unit import UNIT, Unit
from store.disk.residency import Residency
from store.lite.lite_index import LiteIndex
from store.lite.lite_queue import LiteQueue, lite_queue_of
from store.reading.message_filter import MATCH_ALL, MessageFilter
from store.reading.message_reader import GetMessageResult, MessageReader
from store.reading.queries import (
    FOREVER_MS,
    KeyQuery,
    offset_by_timestamp,
    read_store_timestamp,
    store_timestamp_of,
)
from store.recovery.opening import StoreParts
from store.store_errors import StoreError
from store.upkeep.retention import Retention


class ReadableStore:
    """The read operations of a MessageStore. Used only on the store's thread.

    Inside the context `with store.resident_only:` a read raises NotResident instead of waiting for the disk.
    """

    def __init__(self, parts: StoreParts, retention: Retention, clock: Clock) -> None:
        """Create the read operations of a store from its `parts`.

        `retention` is needed because a queue may begin with deleted records after log files were deleted.
        `clock` limits the time of a read.
        """
        self.positions: Positions = parts.positions
        self.resident_only: Residency = parts.residency
        self.retention = retention
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self.lite_index: LiteIndex | None = parts.lite_index
        self._reader = MessageReader(parts.log, clock)

    def spare_descriptors(self) -> int:
        """Return how many further descriptors the files of the log and of the queues may need."""
        return self._parts.spare_descriptors()

    @property
    def skipped(self) -> int:
        """Number of messages that reads have skipped because their records are damaged or deleted."""
        return self._reader.bad_units + self._reader.gap_units

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        wanted: MessageFilter = MATCH_ALL,
    ) -> GetMessageResult:
        """Read messages of a queue from queue offset `offset` on; see `MessageReader.read`."""
        queue = self._find(topic, queue_id)
        if isinstance(queue, LiteQueue):
            return queue.read(self._log, offset, max_messages, max_bytes, wanted)
        return self._reader.read(queue, offset, max_messages, max_bytes, wanted)

    def _find(self, topic: str, queue_id: int) -> ReadableQueue | None:
        """Return a queue, or None; its first offset is corrected if log files have been deleted."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return lite_queue_of(topic, queue_id, self.lite_index)
        if self.retention.has_stale_queues:
            self.retention.correct(queue)
        return queue

    def record_at(self, physical_offset: int) -> memoryview:
        """Return the record at a CommitLog offset.

        Raises StoreError if there is no valid record at this offset, or if the offset is not confirmed.
        """
        if physical_offset >= self.positions.confirmed:
            raise StoreError(
                f"physical offset {physical_offset:,} is not confirmed yet: the log is confirmed up to "
                f"{self.positions.confirmed:,}"
            )
        return self._log.record_at(physical_offset)

    @property
    def has_log_files(self) -> bool:
        """True if the log has a file, possibly without a record; else it may begin at any offset."""
        return bool(self._log.bases)

    def log_bytes(self, offset: int, max_bytes: int) -> memoryview:
        """Return the written bytes of the log at CommitLog offset `offset`, without copying them.

        They end after `max_bytes`, at the end of the log, or at that of a log file; they are not aligned to
        records, and may not be flushed or confirmed: for copies of the log only. Raises StoreError if the log
        does not have `offset`.
        """
        file_end = self._log.base_of(offset) + self._log.file_bytes
        return self._log.slice(
            offset, max(min(offset + max_bytes, file_end, self.positions.written) - offset, 0)
        )

    def record_timestamp(self, physical_offset: int) -> int:
        """Return the storeTimestamp of the record at a CommitLog offset. Raises the errors of `record_at`."""
        return store_timestamp_of(self.record_at(physical_offset))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read; 0 if the queue does not exist.

        The call never waits for the disk. Immediately after a log file is deleted, the result may therefore
        be an offset whose record is deleted. Inside `resident_only`, NotResident is raised in this case.
        """
        return self.known_min_offset(topic, queue_id) or 0

    def known_min_offset(self, topic: str, queue_id: int) -> int | None:
        """Return the first queue offset that can be read.

        Returns None if the queue has never received a message.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            lite = lite_queue_of(topic, queue_id, self.lite_index)
            return None if lite is None else lite.min_offset
        if self.retention.has_stale_queues:
            self.retention.correct_if_resident(queue)
        return queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message that can be read; 0 if the queue does not exist."""
        queue = self._queues.find(topic, queue_id) or lite_queue_of(topic, queue_id, self.lite_index)
        return queue.next_offset if queue is not None else 0

    def max_offsets(self, topic: str, queues: int) -> list[int]:
        """Return `max_offset` of the first `queues` queues of a topic."""
        return [queue.next_offset if queue is not None else 0 for queue in self._queues.first(topic, queues)]

    def offset_at_position(self, topic: str, queue_id: int, position: int) -> int:
        """Return the offset of a queue's first message at or after a CommitLog position, else its end."""
        queue = self._find(topic, queue_id)
        if queue is None or queue.end_physical_offset <= position:
            return 0 if queue is None else queue.next_offset
        return queue.bisect(
            queue.min_offset, queue.next_offset, lambda unit: unit.physical_offset >= position
        )

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the storeTimestamp of the message at a queue offset; -1 if there is no such message."""
        queue = self._find(topic, queue_id)
        return -1 if queue is None else read_store_timestamp(self._log, queue, offset)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """Return up to `count` consume queue units from queue offset `offset` on.

        Fewer at the end of the queue.
        """
        queue = self._find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return []
        units: list[Unit] = []
        while some := queue.read_units(offset + len(units), count - len(units)):
            units += map(Unit._make, UNIT.iter_unpack(some))
        return units

    def offset_by_timestamp(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """Return the queue offset for a time (see `queries.offset_by_timestamp`); 0 for an unknown queue."""
        queue = self._find(topic, queue_id)
        return offset_by_timestamp(self._log, queue, timestamp_ms, upper=upper) if queue is not None else 0

    def key_query(
        self, topic: str, key: str, max_messages: int = 64, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> KeyQuery | None:
        """Return a search by key that is executed in steps; None if the store has no index."""
        index = self._parts.index
        if index is None:
            return None
        return KeyQuery(self._log, index, topic, key, max_messages, begin_ms, end_ms)

    def query_by_key(
        self, topic: str, key: str, max_messages: int = 64, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> list[memoryview]:
        """Return the newest `max_messages` records with this key, in log order. May wait for the disk."""
        query = self.key_query(topic, key, max_messages, begin_ms, end_ms)
        if query is None:
            return []
        query.find()
        while not query.check_candidates():
            pass
        return query.records

    def queues(self) -> Iterator[tuple[str, int]]:
        """Iterate over all queues that have received messages, as (topic, queue id)."""
        return ((queue.topic, queue.queue_id) for queue in self._queues if queue.next_offset)
