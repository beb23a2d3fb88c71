"""Finding messages other than by queue offset: by key, and by the time they were stored."""

from struct import Struct

from store.commitlog.commit_log import CommitLog
from store.consumequeue.consume_queue import ConsumeQueue
from store.disk.residency import NotResident
from store.index.index_service import IndexService
from store.kernels.java_hash import plain_key_hash
from store.message.buffers import Buffer
from store.message.record import MAGIC_V1, MAGIC_V2, decode_record
from store.store_errors import StoreError

FOREVER_MS = 0x7FFF_FFFF_FFFF_FFFF
# Hash-equal candidates beyond the messages wanted: a file's chain may hold other keys of the same hash.
_CANDIDATES_MAX = 65_536
_SIZE_AND_MAGIC = Struct(">ii")
_OWN_OFFSET = Struct(">q")
_LOOKED_AT_ONCE = 64
_PROBED_ONE_BY_ONE = 64


def has_key(record: Buffer, topic: str, key: str) -> bool:
    """Whether a record is of this topic and has `key` as its UNIQ_KEY or among its KEYS."""
    message = decode_record(record, check_crc=False)
    properties = message.properties
    return message.topic == topic and (
        properties.get("UNIQ_KEY") == key or key in properties.get("KEYS", "").split(" ")
    )


class KeyQuery:
    """A search by key. `find` may run in any thread; then, on the store's own, `look` until it is done."""

    def __init__(
        self,
        log: CommitLog,
        index: IndexService,
        topic: str,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
    ) -> None:
        """For the newest `max_messages` records with this very key that were stored in [begin_ms, end_ms]."""
        self._log = log
        self._topic = topic
        self._key = key
        self._max_messages = max_messages if key else 0
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        key_hash = plain_key_hash(f"{topic}#{key}".encode())
        self._search = index.search(key_hash, begin_ms, end_ms, _CANDIDATES_MAX)
        self._candidates: list[int] = []
        self._looked_at = 0
        self._found: dict[int, memoryview] = {}

    def find(self) -> None:
        """Find the candidates: records with a key of the same hash."""
        if self._max_messages:
            self._candidates = self._search.run()

    def look(self) -> bool:
        """Look at the next candidates, some tens of them; returns whether all is done.

        Raises NotResident where it must not wait: then it is to be called again.
        """
        stop = self._looked_at + _LOOKED_AT_ONCE
        some = self._candidates[self._looked_at : stop]
        if self._log.residency.is_required:
            lacks = [each for offset in some if (each := self._log.missing_record_range(offset)) is not None]
            if lacks:
                raise NotResident(lacks)
        for offset in some:
            if len(self._found) >= self._max_messages:
                return True
            self._look_at(offset)
        self._looked_at = stop
        return len(self._found) >= self._max_messages or stop >= len(self._candidates)

    def _look_at(self, offset: int) -> None:
        if offset in self._found:
            return
        try:
            record = self._log.record_at(offset)
        except StoreError:  # deleted with its log file, or an index entry gone bad: the others still count
            return
        if self._begin_ms <= store_timestamp_of(record) <= self._end_ms and has_key(
            record, self._topic, self._key
        ):
            self._found[offset] = record

    @property
    def records(self) -> list[memoryview]:
        """What has been found, in the order of the log."""
        return [self._found[offset] for offset in sorted(self._found)]


def offset_by_timestamp(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool) -> int:
    """Lower: the first offset stored at or after the time, the queue's end if none.

    Upper: the last at or before it, the queue's beginning if none. As RocketMQ's
    ConsumeQueue.getOffsetInQueueByTime; but where that gives an offset whose record is gone, this gives the
    first that is there. Damaged records count as stored with the next sound one. Raises StoreError when the
    queue cannot be read.
    """
    low, high = queue.min_offset, queue.next_offset
    while low < high:
        middle = (low + high) // 2
        probe = _next_valid(log, queue, middle, high)
        stored_ms = _stored_at(log, queue, probe) if probe < high else None
        if stored_ms is None or (stored_ms > timestamp_ms if upper else stored_ms >= timestamp_ms):
            is_beyond_a_hole = stored_ms is not None and probe - middle >= _PROBED_ONE_BY_ONE
            high = probe if is_beyond_a_hole else middle
        else:
            low = probe + 1
    return max(low - 1, queue.min_offset) if upper else queue.skip_fillers(low, queue.next_offset)


def _next_valid(log: CommitLog, queue: ConsumeQueue, offset: int, stop: int) -> int:
    """The first offset in [offset, stop) whose record is sound, `stop` if none is; in a hole of more than a
    few records, which may have millions, one that is sound behind one that is not.
    """
    offset = queue.skip_fillers(offset, stop)
    for probe in range(offset, min(offset + _PROBED_ONE_BY_ONE, stop)):
        if _stored_at(log, queue, probe) is not None:
            return probe
    damaged, step = offset + _PROBED_ONE_BY_ONE - 1, 1
    while damaged < stop - 1:
        probe = min(damaged + step, stop - 1)
        if _stored_at(log, queue, probe) is not None:
            break
        damaged, step = probe, 2 * step
    else:
        return stop
    while probe - damaged > 1:
        middle = (damaged + probe) // 2
        if _stored_at(log, queue, middle) is None:
            damaged = middle
        else:
            probe = middle
    return probe


def _stored_at(log: CommitLog, queue: ConsumeQueue, offset: int) -> int | None:
    unit = queue.unit_at(offset)
    if unit.is_filler:
        return None
    try:
        record = log.slice(unit.physical_offset, unit.size)
    except StoreError:
        return None
    return store_timestamp_of(record) if _begins_with_header(record, unit.physical_offset) else None


def _begins_with_header(record: Buffer, physical_offset: int) -> bool:
    """Whether the fixed fields are those of a record at this place; its body is not looked at."""
    size, magic = _SIZE_AND_MAGIC.unpack_from(record)
    (own_offset,) = _OWN_OFFSET.unpack_from(record, 28)
    return size == len(record) and magic in (MAGIC_V1, MAGIC_V2) and own_offset == physical_offset


def store_timestamp_at(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    """When the message at an offset was stored; -1 where it is not there, or no longer."""
    if not queue.min_offset <= offset < queue.next_offset:
        return -1
    try:
        return _stored_at(log, queue, offset) or -1
    except StoreError:  # a unit that cannot be read
        return -1


def store_timestamp_of(record: Buffer) -> int:
    """When a record was stored."""
    extra_bytes = 12 if record[39] & 0x10 else 0
    return int.from_bytes(record[56 + extra_bytes : 64 + extra_bytes], "big", signed=True)
