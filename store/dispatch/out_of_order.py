"""OutOfOrderUnits: writes consume queue units that do not directly follow the last unit of their queue.

See docs/store-format.md#units-out-of-order. Such a unit is already in the queue, comes after a gap,
belongs to a topic that was deleted and recreated, or belongs to a queue that lost its first files. The queue
offset of its record may also be damaged, because the record CRC does not cover the queue offset. A gap is
closed with filler units, which reserve the queue offsets of records that no longer exist.
"""

from store.commitlog.holes import LogFiles
from store.common.logs import get_logger
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.unit import UNIT, UNIT_BYTES
from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.message.record import MIN_RECORD_BYTES, decode_record
from store.store_errors import StoreError

_log = get_logger(__name__)

_REFUSED_MAX = 100_000
_GAP_MAX = 1_000_000  # fillers for one gap: 20 MB


class OutOfOrderUnits:
    """Writes out-of-order units into the consume queues of a store; `log` is used to check their records."""

    def __init__(self, log: LogFiles) -> None:
        self._log = log
        self.refused: dict[int, int] = {}
        """Maps the physical offset of each record with an impossible queue offset to that queue offset."""

    def put(self, queue: ConsumeQueue, batch: RecordBatch, group: list[int], units: memoryview) -> None:
        """Write the units of one group of `batch` into `queue`; a group has the units of one queue.

        During recovery, units that the queue already has are compared with the log and repaired if they
        differ. Raises OSError, StoreError.
        """
        first = group[kernel.GROUP_FIRST_QUEUE_OFFSET]
        physical_offset = group[kernel.GROUP_FIRST_PHYSICAL_OFFSET]
        end = group[kernel.GROUP_END_PHYSICAL_OFFSET]
        is_new = physical_offset >= queue.end_physical_offset > 0
        if 0 <= first < queue.first_offset and not is_new:
            queue.start_again(first)  # the queue lost its first files: rebuild it from the log
        count = len(units) // UNIT_BYTES
        if not group[kernel.GROUP_IN_ORDER]:
            self._put_one_by_one(queue, batch, units)
        elif first > queue.next_offset:
            if self._close_gap(queue, first, physical_offset, count):
                queue.append_units(units, end)
        elif first == 0 and physical_offset >= queue.end_physical_offset:
            queue.start_again(0)
            queue.append_units(units, end)
        elif _is_present(queue, first, units, is_recovery=batch.is_recovery):
            present = (queue.next_offset - first) * UNIT_BYTES
            if present < len(units):
                queue.append_units(units[present:], end)
        else:
            self._put_one_by_one(queue, batch, units)

    def _put_one_by_one(self, queue: ConsumeQueue, batch: RecordBatch, units: memoryview) -> None:
        file = batch.file
        places = [UNIT.unpack(units[at : at + UNIT_BYTES]) for at in range(0, len(units), UNIT_BYTES)]
        offsets = [
            int.from_bytes(file.view[at - file.base + 20 : at - file.base + 28], "big", signed=True)
            for at, _, _ in places
        ]
        for number, (queue_offset, (physical_offset, size, _)) in enumerate(
            zip(offsets, places, strict=True)
        ):
            unit = units[number * UNIT_BYTES : (number + 1) * UNIT_BYTES]
            if queue_offset == 0 < queue.next_offset and physical_offset >= queue.end_physical_offset:
                if queue.next_offset + 1 in offsets[number + 1 : number + 2]:
                    self._refuse(
                        queue, queue_offset, physical_offset
                    )  # the next record continues the old queue
                    continue
                queue.start_again(0)
            if queue_offset < queue.next_offset:
                if batch.is_recovery:
                    self._repair(queue, queue_offset, unit)
                if queue_offset < queue.next_offset:
                    continue
            if queue_offset > queue.next_offset and not self._close_gap(
                queue, queue_offset, physical_offset, 1
            ):
                continue
            queue.append_units(unit, physical_offset + size)

    def _close_gap(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, agreeing: int) -> bool:
        """Append filler units to the queue up to the queue offset of a record.

        Each missing record of the gap occupied log space between the record of the queue's last unit and this
        record, which is at `physical_offset`. A gap with too little log space is therefore impossible, unless
        the next records confirm the offset (`agreeing`, the number of records with consecutive queue offsets
        from this one on, is more than 1) and the gap is not larger than `_GAP_MAX`. Returns False, and
        appends nothing, if the queue offset is impossible.
        """
        if queue.next_offset == queue.first_offset:
            queue.start_at(queue_offset)
            return True
        gap = queue_offset - queue.next_offset
        room = (physical_offset - queue.end_physical_offset) // MIN_RECORD_BYTES
        if gap > room and (agreeing == 1 or gap > _GAP_MAX):
            self._refuse(queue, queue_offset, physical_offset)
            return False
        _log.warning(
            "consume_queue_gap",
            topic=queue.topic,
            queue_id=queue.queue_id,
            from_offset=queue.next_offset,
            to_offset=queue_offset,
        )
        queue.fill_to(queue_offset)
        return True

    def _refuse(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> None:
        """Log that the queue offset of a record is damaged. The record is left out of its queue."""
        if len(self.refused) < _REFUSED_MAX:
            self.refused[physical_offset] = queue_offset
        _log.error(
            "queue_offset_invalid",
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=queue_offset,
            next_offset=queue.next_offset,
            position=physical_offset,
        )

    def _repair(self, queue: ConsumeQueue, offset: int, unit: memoryview) -> None:
        """Truncate a queue at queue offset `offset` if its unit there differs from `unit`, read from the log.

        The caller must then append the correct unit. If instead the record's queue offset is damaged, the
        queue is not changed.
        """
        present = queue.read_units(offset, 1)
        if present == unit:
            return
        physical_offset = UNIT.unpack(unit)[0]
        if offset < queue.first_offset or self._is_claimed(queue, offset, present, physical_offset):
            self._refuse(queue, offset, physical_offset)
            return
        _log.warning("consume_queue_repaired", topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        end = 0
        if offset > queue.first_offset:
            before = queue.unit_at(offset - 1)
            end = 0 if before.is_filler else before.physical_offset + before.size
        queue.truncate_to(offset, end)

    def _is_claimed(self, queue: ConsumeQueue, offset: int, unit: bytes, before: int) -> bool:
        """Return True if `unit` points to a valid record with this topic, queue id and queue offset.

        Only records before the CommitLog offset `before` are considered.
        """
        physical_offset, size, _ = UNIT.unpack(unit)
        if physical_offset >= before or (offset > queue.first_offset and queue.unit_at(offset - 1).is_filler):
            return False  # a unit after a gap proves nothing: its own damaged offset may have made the gap
        try:
            message = decode_record(self._log.slice(physical_offset, size))
        except StoreError:
            return False
        place = (message.topic, message.queue_id, message.queue_offset, message.commit_log_offset)
        return place == (queue.topic, queue.queue_id, offset, physical_offset)


def _is_present(queue: ConsumeQueue, first: int, units: memoryview, *, is_recovery: bool) -> bool:
    """Return True if the queue already has `units`, the first of which has the queue offset `first`.

    During recovery the units are compared; otherwise only the position of the last one is compared.
    """
    count = min(queue.next_offset - first, len(units) // UNIT_BYTES)
    if not is_recovery:
        physical_offset, size, _ = UNIT.unpack(units[(count - 1) * UNIT_BYTES : count * UNIT_BYTES])
        return bool(physical_offset + size <= queue.end_physical_offset)
    done = 0
    while done < count:
        present = queue.read_units(first + done, count - done)
        if not present or present != units[done * UNIT_BYTES : done * UNIT_BYTES + len(present)]:
            return False
        done += len(present) // UNIT_BYTES
    return True
