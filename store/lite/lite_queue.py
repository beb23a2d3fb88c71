"""LiteQueue: a lite topic as a consume queue, for requests with the name of its light message queue (LMQ)."""

from __future__ import annotations

from store.commitlog.commit_log import CommitLog
from store.consumequeue.readable_queue import ReadableQueue
from store.consumequeue.unit import FILLER, UNIT, UNIT_BYTES
from store.lite.lite_index import LiteIndex
from store.message.validate import lite_topic_of
from store.reading.message_filter import MessageFilter
from store.reading.message_reader import GetMessageResult, GetMessageStatus, out_of_range_result
from store.store_errors import StoreError


class LiteQueue(ReadableQueue):
    """The units of one lite topic as they are now; it has no files."""

    __slots__ = ("_index", "_place")

    def __init__(self, name: str, place: tuple[str, str], index: LiteIndex) -> None:
        """Create the queue of `place`, topic and lite topic."""
        self.topic, self.queue_id = name, 0
        self._index, self._place, self._directory = index, place, name
        self.first_offset = self.min_offset = index.min_offset(*place)
        self.next_offset = index.max_offset(*place)
        last = index.read(*place, self.next_offset - 1, 1)
        self.end_physical_offset = last[0].physical_offset + last[0].size if last else 0

    def read_units(self, offset: int, count: int) -> bytes:
        """Return up to `count` units from queue offset `offset` on, with fillers for missing messages."""
        count = min(count, self.next_offset - offset)
        units = bytearray(FILLER * max(count, 0))
        for each in self._index.read(*self._place, offset, count):
            if each.offset < offset + count:
                UNIT.pack_into(units, (each.offset - offset) * UNIT_BYTES, each.physical_offset, each.size, 0)
        return bytes(units)

    def read(
        self, log: CommitLog, offset: int, max_messages: int, max_bytes: int, wanted: MessageFilter
    ) -> GetMessageResult:
        """Read messages as `MessageReader.read` does. Raises NotResident."""
        result = out_of_range_result(self, offset)
        if result is not None:
            return result
        status = GetMessageStatus
        result = GetMessageResult(status.FOUND, offset, self.min_offset, self.next_offset)
        for each in self._index.read(*self._place, offset, max_messages):
            if result.slices and result.size_bytes + each.size > max_bytes:
                break
            result.next_begin_offset = each.offset + 1
            try:
                record = log.record_at(each.physical_offset)
            except StoreError:
                continue  # damaged: later messages are served
            if wanted.matches(record):
                result.slices.append(record)
                result.message_count += 1
                result.size_bytes += each.size
        if not result.slices:
            result.status = status.NO_MATCHED_MESSAGE
        return result


def lite_queue_of(name: str, queue_id: int, index: LiteIndex | None) -> LiteQueue | None:
    """Return the queue of a light message queue's name; None if it is not the name of a known lite topic."""
    if index is None or queue_id:
        return None
    place = lite_topic_of(name)
    return None if place is None or not index.max_offset(*place) else LiteQueue(name, place, index)
