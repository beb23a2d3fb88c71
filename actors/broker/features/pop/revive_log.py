"""ReviveLog: reads the revive topic, for claims that an earlier process or a RocketMQ broker has stored.

    ck ──► pending ──ack, bAck──► acked ──all acks have arrived──► each message without ack: retry topic
    own claims (`ClaimLog.own`) ──► skipped when they are done: `Reviver` takes care of them

Acks arrive through the timer, which may be late. They have all arrived when a record with a later time has:
if no other one follows, a mark is sent after them.

A queue's check points are handled in their order. The committed offset of CID_RMQ_SYS_REVIVE_GROUP is that of
the last one that is done, as in RocketMQ, so both resume where the other one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.metadata.topics import REVIVE_QUEUES, revive_topic
from actors.broker.features.pop.claim_log import ClaimLog
from actors.broker.features.pop.claims import ClaimQueue
from actors.broker.features.pop.pop_counts import ACK, CHECK_POINT, PopCounts
from actors.broker.features.pop.reviver import Reviver
from actors.host.figures import Sample
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECK_POINT_TAG, CheckPoint, ClaimAck, ClaimKey
from store.message.properties import MessageConst
from store.message.record import decode_records
from store.message_store import GetMessageResult, MessageStore
from store.store_errors import MessageInvalid, StoreError

_log = get_logger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
GRACE_MS: Final = 300
"""Acks are due at the revive time; those of consumers that are slightly late are accepted until then."""
FULL_GRACE_MS: Final = 5_000
"""The same if the queue is full, so that acks behind it are not read: they do not count then."""
READ_MESSAGES: Final = 256
READ_BYTES: Final = 256 * 1024
PENDING: Final = Bound(
    "pending_check_points",
    10_000,
    AtLimit.WAIT,
    "Check points read from one revive queue.",
)
"""A read that begins below the limit may exceed it by READ_MESSAGES."""
ACKS: Final = Bound(
    "early_acks", 100_000, AtLimit.EVICT, "Claims with acks whose check points are not read yet."
)
"""The acks are in the revive topic too, from which they arrive later."""


@dataclass(slots=True)
class _Pending:
    """A check point that is not done."""

    point: CheckPoint
    revive_offset: int
    open: dict[int, None]
    is_own: bool
    """True if the claim is in memory."""


@dataclass(slots=True)
class _ReviveQueue:
    """The progress in one queue of the revive topic."""

    queue_id: int
    next_offset: int = 0
    pending: dict[ClaimKey, _Pending] = field(default_factory=dict)
    arrived_ms: int = 0
    """All records that are due before this time have arrived."""
    mark_ms: int = 0
    """When the last mark is due."""


class ReviveLog:
    """The claims in one broker's revive topic."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        offsets: ConsumerOffsets,
        clock: Clock,
        log: ClaimLog,
        reviver: Reviver,
        wake: Callable[[ClaimQueue], None],
        counts: PopCounts,
    ) -> None:
        self._broker_name = settings.broker_name
        self._topic = revive_topic(settings.cluster_name)
        self._store = store
        self._reads = reads
        self._offsets = offsets
        self._clock = clock
        self._log = log
        self._reviver = reviver
        self._wake = wake
        self._counts = counts
        self._queues: list[_ReviveQueue] = []
        self._acks = Newest[ClaimKey, set[int]](ACKS)
        self._popped_from: dict[str, dict[int, int]] = {}
        """The committed offsets at the start: this process pops what is at or after them."""

    @property
    def pending(self) -> int:
        """Number of check points in the revive topic that are not done."""
        return sum(len(queue.pending) for queue in self._queues)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            PENDING.use(lambda: max((len(each.pending) for each in self._queues), default=None)),
            self._acks.use(),
        )

    def behind(self) -> Iterator[Sample]:
        """Yield the number of records that are not done, by queue."""
        for queue in self._queues:
            done = self._offsets.query(REVIVE_GROUP, self._topic, queue.queue_id)
            end = self._store.max_offset(self._topic, queue.queue_id)
            yield Sample((str(queue.queue_id),), max(end - (0 if done is None else done + 1), 0))

    def behind_ms(self) -> Iterator[Sample]:
        """Yield how long the first check point that is not done is overdue, by queue."""
        now_ms = self._clock.wall_ms()
        for queue in self._queues:
            first = next(iter(queue.pending.values()), None)
            yield Sample((str(queue.queue_id),), max(now_ms - first.point.revive_ms, 0) if first else 0)

    async def start(self) -> None:
        """Find the first check point of each queue that is not done."""
        self._queues = []
        self._popped_from = {key: dict(queues) for key, queues in self._offsets.table.offsets.items()}
        for queue_id in range(REVIVE_QUEUES):
            done = self._offsets.query(REVIVE_GROUP, self._topic, queue_id)
            self._queues.append(_ReviveQueue(queue_id, 0 if done is None else done + 1))

    async def stop(self) -> None:
        """Forget what was read: the next start reads it again."""
        for queue in self._queues:
            for pending in queue.pending.values():
                self._finish(pending, tuple(pending.open))
        self._queues = []

    def ack(self, key: ClaimKey, offsets: Iterable[int]) -> None:
        """Note acks of a stored claim of an earlier process, before they arrive in the revive topic."""
        for queue in self._queues:
            pending = queue.pending.get(key)
            if pending is not None:
                self._finish(pending, offsets)
                return
        self._acks[key] = self._acks.get(key, set()).union(offsets)

    async def tick(self) -> None:
        """Read new records, and revive what is due; to be called several times per second."""
        for queue in tuple(self._queues):
            while await self._read(queue):
                pass
            await self._handle_due(queue)

    async def _read(self, queue: _ReviveQueue) -> bool:
        """Read some records; return True if there are more."""
        if len(queue.pending) >= PENDING.limit:
            return False
        begin = max(queue.next_offset, self._store.min_offset(self._topic, queue.queue_id))
        if begin >= self._store.max_offset(self._topic, queue.queue_id):
            return False

        def read() -> GetMessageResult:
            return self._store.get_message(self._topic, queue.queue_id, begin, READ_MESSAGES, READ_BYTES)

        found = await self._reads.read(read)
        for part in found.slices:
            for message in decode_records(part, check_crc=False):
                self._add(queue, message)
        queue.next_offset = max(found.next_begin_offset, begin + (not found.slices))
        return queue.next_offset < self._store.max_offset(self._topic, queue.queue_id)

    def _add(self, queue: _ReviveQueue, message: MessageExt) -> None:
        tag = message.properties.get(MessageConst.TAGS)
        due = message.properties.get(MessageConst.TIMER_DELIVER_MS, "")
        if due.isdigit():
            queue.arrived_ms = max(queue.arrived_ms, int(due))
        try:
            if tag == CHECK_POINT_TAG:
                point = CheckPoint.decode(message.body, self._broker_name)
                if point is not None:
                    self._counts.read(point.key, CHECK_POINT, queue.queue_id)
                    self._add_point(queue, point, message.queue_offset)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = ClaimAck.decode(message.body, self._broker_name)
                if ack is not None:
                    self._counts.read(ack.key, ACK, queue.queue_id)
                    if (pending := queue.pending.get(ack.key)) is not None:
                        self._finish(pending, ack.offsets)
        except MessageInvalid as error:
            _log.warning(
                "revive_record_skipped", queue_id=queue.queue_id, offset=message.queue_offset,
                error=error.remark,
            )  # fmt: skip

    def _add_point(self, queue: _ReviveQueue, point: CheckPoint, revive_offset: int) -> None:
        acked = self._acks.pop(point.key, set()) | point.acked
        is_own = point.key in self._log.own
        end = None if is_own else self._popped_from.get(f"{point.key.topic}@{point.key.group}", {}).get(
            point.key.queue_id
        )  # fmt: skip
        is_open = dict.fromkeys(
            offset for offset in point.offsets if offset not in acked and (end is None or offset < end)
        )
        queue.pending[point.key] = _Pending(point, revive_offset, is_open, is_own)
        if not is_own:
            self._offsets.count_claimed(*point.key[:3], len(is_open))

    def _finish(self, pending: _Pending, offsets: Iterable[int]) -> None:
        """Note that messages are acked, revived or forgotten."""
        for offset in offsets:
            if offset in pending.open:
                del pending.open[offset]
                if not pending.is_own:  # else `Claims` counts it
                    self._offsets.count_claimed(*pending.point.key[:3], -1)

    async def _handle_due(self, queue: _ReviveQueue) -> None:
        for pending in tuple(queue.pending.values()):
            key = pending.point.key
            own = self._log.own.get(key)
            if own is not None:
                if own.open and not own.is_dropped:
                    break
                del self._log.own[key]
            elif (pending.open and not self._is_due(queue, pending.point)) or not await self._revive(pending):
                break
            queue.pending.pop(key, None)
            self._offsets.commit(REVIVE_GROUP, self._topic, queue.queue_id, pending.revive_offset)

    def _is_due(self, queue: _ReviveQueue, point: CheckPoint) -> bool:
        due_ms = point.revive_ms + GRACE_MS
        if queue.arrived_ms >= due_ms:
            return True
        now_ms = self._clock.wall_ms()
        if len(queue.pending) >= PENDING.limit and now_ms >= point.revive_ms + FULL_GRACE_MS:
            return True
        if now_ms >= due_ms > queue.mark_ms:
            try:
                self._log.store_mark(queue.queue_id, now_ms + 1)
                queue.mark_ms = now_ms + 1
            except StoreError as error:  # the next call tries again
                _log.warning("pop_revival_failed", topic=self._topic, error=str(error))
        return False

    async def _revive(self, pending: _Pending) -> bool:
        """Append the messages without ack to their retry topic; return False after an error."""
        key = pending.point.key
        queue = ClaimQueue(*key[:3])
        for offset in tuple(pending.open):
            try:
                await self._reviver.revive(
                    queue,
                    offset,
                    key.pop_ms,
                    lambda at=offset: at in pending.open,  # type: ignore[misc]
                )
            except (Refused, StoreError, OSError) as error:
                _log.warning("pop_revival_failed", topic=key.topic, group=key.group, error=str(error))
                return False
            self._finish(pending, (offset,))
            self._wake(queue)
        return True
