"""QueueFileSwap: replaces full consume queue files of an open store by rename.

Only a file that the broker no longer writes is replaced: all its units are dispatched, and all their records
are still in the log. Readers that have the old file open finish their read with its old content. Until the
next checkpoint, raymq.derived still has the CRC of the old file: after a crash in between, the next start
compares the file with the log.
"""

from pathlib import Path

from store.common.logs import get_logger
from store.consumequeue.consume_queue import ConsumeQueue
from store.recovery.opening import StoreParts
from store.store_errors import StoreError

_log = get_logger(__name__)


class QueueFileSwap:
    """Replaces consume queue files of one store. Used only on the store's thread."""

    def __init__(self, parts: StoreParts) -> None:
        self._queues = parts.queues

    def require_full(self, topic: str, queue_id: int, offset: int) -> None:
        """Raise StoreError if the file that begins at queue offset `offset` cannot be replaced."""
        self._full_file(topic, queue_id, offset)

    def replace(self, topic: str, queue_id: int, offset: int, new: Path, crc: int) -> None:
        """Replace the file that begins at queue offset `offset` by the file at `new`, which is renamed.

        The caller has checked the units of the new file, whose CRC-32 is `crc`, and has flushed it to disk.
        Raises StoreError if the file cannot be replaced, and OSError.
        """
        queue = self._full_file(topic, queue_id, offset)
        queue.replace_file(offset, new, crc)
        _log.warning("consume_queue_file_replaced", topic=topic, queue_id=queue_id, offset=offset)

    def _full_file(self, topic: str, queue_id: int, offset: int) -> ConsumeQueue:
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            raise StoreError(f"queue {topic}-{queue_id} does not exist")
        first, end = max(queue.first_offset, queue.min_offset), offset + queue.units_per_file
        if offset % queue.units_per_file or not first <= offset < end <= queue.next_offset:
            raise StoreError(
                f"queue {topic}-{queue_id} has no full file that begins at offset {offset:,}: its offsets are"
                f" {first:,} to {queue.next_offset:,}, in files of {queue.units_per_file:,} units"
            )
        return queue
