"""Queries: find messages by key, and queue offsets by the time at which messages were stored."""

from struct import Struct

from store.commitlog.commit_log import CommitLog
from store.consumequeue.readable_queue import ReadableQueue
from store.disk.residency import NotResident
from store.index.index_service import IndexService
from store.kernels.java_hash import plain_key_hash
from store.message.buffers import Buffer
from store.message.record import MAGIC_V1, MAGIC_V2, decode_record
from store.store_errors import StoreError

FOREVER_MS = 0x7FFF_FFFF_FFFF_FFFF
# Limit of index entries per search: other keys may have the same hash, so it exceeds the messages wanted.
_CANDIDATES_MAX = 65_536
_SIZE_AND_MAGIC = Struct(">ii")
_OWN_OFFSET = Struct(">q")
_CANDIDATES_PER_STEP = 64
_PROBED_ONE_BY_ONE = 64


def has_key(record: Buffer, topic: str, key: str) -> bool:
    """Return True if the record belongs to this topic and has `key` as its UNIQ_KEY or among its KEYS."""
    message = decode_record(record, check_crc=False)
    properties = message.properties
    return message.topic == topic and (
        properties.get("UNIQ_KEY") == key or key in properties.get("KEYS", "").split(" ")
    )


class KeyQuery:
    """A search for messages by key, executed in steps.

    Call `find` once, on any thread; it may wait for the disk. Then call `check_candidates` on the store's
    thread until it returns True. `records` then has the result.
    """

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
        """Prepare a search for the newest `max_messages` records with this key.

        Their storeTimestamps must be in [begin_ms, end_ms].
        """
        self._log = log
        self._topic = topic
        self._key = key
        self._max_messages = max_messages if key else 0
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        key_hash = plain_key_hash(f"{topic}#{key}".encode())
        self._search = index.search(key_hash, begin_ms, end_ms, _CANDIDATES_MAX)
        self._candidates: list[int] = []
        self._checked = 0
        self._found: dict[int, memoryview] = {}

    def find(self) -> None:
        """Look up the candidates in the index: records with a key of the same hash as the searched key."""
        if self._max_messages:
            self._candidates = self._search.run()

    def check_candidates(self) -> bool:
        """Read the next candidates and keep those that really have the key.

        Returns True when the search is complete. Raises NotResident if the call would have to wait for the
        disk inside `resident_only`; the caller must repeat the call after the pages are loaded.
        """
        stop = self._checked + _CANDIDATES_PER_STEP
        batch = self._candidates[self._checked : stop]
        if self._log.residency.is_required:
            absent = [
                missing for offset in batch if (missing := self._log.missing_record_range(offset)) is not None
            ]
            if absent:
                raise NotResident(absent)
        for offset in batch:
            if len(self._found) >= self._max_messages:
                return True
            self._check(offset)
        self._checked = stop
        return len(self._found) >= self._max_messages or stop >= len(self._candidates)

    def _check(self, offset: int) -> None:
        if offset in self._found:
            return
        try:
            record = self._log.record_at(offset)
        except StoreError:  # the record was deleted, or the index entry is damaged: skip this candidate
            return
        if self._begin_ms <= store_timestamp_of(record) <= self._end_ms and has_key(
            record, self._topic, self._key
        ):
            self._found[offset] = record

    @property
    def records(self) -> list[memoryview]:
        """The records found so far, in log order."""
        return [self._found[offset] for offset in sorted(self._found)]


def offset_by_timestamp(log: CommitLog, queue: ReadableQueue, timestamp_ms: int, *, upper: bool) -> int:
    """Return the queue offset for a storeTimestamp, as RocketMQ's ConsumeQueue.getOffsetInQueueByTime does.

    If `upper` is False, that is the first offset stored at or after the time, or the end of the queue. If
    `upper` is True, it is the last offset stored at or before the time, or the beginning of the queue. Unlike
    RocketMQ, this function never returns an offset whose record is deleted; it returns the first existing
    offset instead. A damaged record counts as stored at the time of the next valid one. Raises StoreError if
    the queue cannot be read.
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


def _next_valid(log: CommitLog, queue: ReadableQueue, offset: int, stop: int) -> int:
    """Return a queue offset in [offset, stop) whose record is valid; `stop` if all records are invalid.

    It is the first such offset if at most `_PROBED_ONE_BY_ONE` damaged records precede it. A hole may have
    millions of damaged records, so a binary search is used for larger holes. It finds a valid record that
    directly follows a damaged one, which may not be the first such record.
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


def _stored_at(log: CommitLog, queue: ReadableQueue, offset: int) -> int | None:
    unit = queue.unit_at(offset)
    if unit.is_filler:
        return None
    try:
        record = log.slice(unit.physical_offset, unit.size)
    except StoreError:
        return None
    return store_timestamp_of(record) if _begins_with_header(record, unit.physical_offset) else None


def _begins_with_header(record: Buffer, physical_offset: int) -> bool:
    """Return True if `record` begins with a valid header whose physicalOffset is `physical_offset`.

    The body is not checked.
    """
    size, magic = _SIZE_AND_MAGIC.unpack_from(record)
    (own_offset,) = _OWN_OFFSET.unpack_from(record, 28)
    return size == len(record) and magic in (MAGIC_V1, MAGIC_V2) and own_offset == physical_offset


def read_store_timestamp(log: CommitLog, queue: ReadableQueue, offset: int) -> int:
    """Return the storeTimestamp of the message at a queue offset; -1 if the message does not exist."""
    if not queue.min_offset <= offset < queue.next_offset:
        return -1
    try:
        return _stored_at(log, queue, offset) or -1
    except StoreError:  # a unit that cannot be read
        return -1


def store_timestamp_of(record: Buffer) -> int:
    """Return the storeTimestamp of an encoded record."""
    extra_bytes = 12 if record[39] & 0x10 else 0
    return int.from_bytes(record[56 + extra_bytes : 64 + extra_bytes], "big", signed=True)
