"""ReadableStore: what can be read of a store – messages, offsets, times, keys. It writes nothing."""

from collections.abc import Iterator

from store.commitlog.positions import Positions
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.unit import Unit
from store.disk.residency import Residency
from store.reading.message_filter import MATCH_ALL, MessageFilter
from store.reading.message_reader import GetMessageResult, MessageReader
from store.reading.queries import (
    FOREVER_MS,
    KeyQuery,
    offset_by_timestamp,
    store_timestamp_at,
    store_timestamp_of,
)
from store.recovery.opening import StoreParts
from store.store_errors import StoreError
from store.upkeep.retention import Retention


class ReadableStore:
    """The reading half of a MessageStore; the same thread owns both.

    Inside `with store.resident_only:` a read raises NotResident instead of waiting for the disk.
    """

    def __init__(self, parts: StoreParts, retention: Retention) -> None:
        """Reads `parts`; `retention` knows which queues may begin with records that are gone."""
        self.positions: Positions = parts.positions
        self.resident_only: Residency = parts.residency
        self.retention = retention
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self._reader = MessageReader(parts.log)

    @property
    def skipped(self) -> int:
        """Messages that reads have passed over, as their records are damaged or gone."""
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
        """Read messages of a queue from `offset` on; see `MessageReader.read`."""
        queue = self._find(topic, queue_id)
        return self._reader.read(queue, offset, max_messages, max_bytes, wanted)

    def _find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, which begins with a record that is still there."""
        queue = self._queues.find(topic, queue_id)
        if queue is not None and self.retention.has_stale_queues:
            self.retention.settle(queue)
        return queue

    def record_at(self, physical_offset: int) -> memoryview:
        """The record that stands at a physical offset.

        Raises StoreError when there is none, or a damaged one.
        """
        if physical_offset >= self.positions.confirmed:
            raise StoreError(
                f"offset {physical_offset:,} is beyond the confirmed {self.positions.confirmed:,}"
            )
        return self._log.record_at(physical_offset)

    def record_timestamp(self, physical_offset: int) -> int:
        """When the record at a physical offset was stored. Raises StoreError as `record_at`."""
        return store_timestamp_of(self.record_at(physical_offset))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first offset of a queue that can be read.

        It never waits: right after a log file was deleted, where the queue's units have to come from the disk
        first, it may be an offset that is gone. Within `resident_only` that is NotResident.
        """
        return self.known_min_offset(topic, queue_id) or 0

    def known_min_offset(self, topic: str, queue_id: int) -> int | None:
        """The same; None for a queue that has had no message: a topic's others are made with their first."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        if self.retention.has_stale_queues:
            self.retention.settle_if_there(queue)
        return queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset after the last message of a queue that can be read."""
        queue = self._queues.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at an offset was stored; -1 where there is none."""
        queue = self._find(topic, queue_id)
        return -1 if queue is None else store_timestamp_at(self._log, queue, offset)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """Up to `count` consume-queue units from an offset on, as far as there are any."""
        queue = self._find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return []
        end = min(offset + count, queue.next_offset)
        return [queue.unit_at(place) for place in range(offset, end)]

    def offset_by_timestamp(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """The offset in a queue for a time: see `queries.offset_by_timestamp`. 0 for an unknown queue."""
        queue = self._find(topic, queue_id)
        return offset_by_timestamp(self._log, queue, timestamp_ms, upper=upper) if queue is not None else 0

    def key_query(
        self, topic: str, key: str, max_messages: int = 64, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> KeyQuery | None:
        """A search by key in steps; None without an index."""
        index = self._parts.index
        if index is None:
            return None
        return KeyQuery(self._log, index, topic, key, max_messages, begin_ms, end_ms)

    def query_by_key(
        self, topic: str, key: str, max_messages: int = 64, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> list[memoryview]:
        """Records with this very key, the newest `max_messages`, in the order of the log. May wait."""
        query = self.key_query(topic, key, max_messages, begin_ms, end_ms)
        if query is None:
            return []
        query.find()
        while not query.look():
            pass
        return query.records

    def queues(self) -> Iterator[tuple[str, int]]:
        """All queues that have got messages, (topic, queue id)."""
        return ((queue.topic, queue.queue_id) for queue in self._queues if queue.next_offset)
