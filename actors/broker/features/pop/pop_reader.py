"""PopReader: reads the queues of one pop, claims what it found and encodes the response.

    queues in turn, the retry topic first or last ──► where the group is ──► read ──► claim ──► response
                                                          └─ blocked (ordered), or too much in flight: skipped

All of it runs in one step of the event loop, or again from the start if pages had to be loaded, so no queue
has to be locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from struct import Struct
from typing import Final, NamedTuple

from actors.bounds import AtLimit, Bound, Use
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.group.group_progress import GroupProgress
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.metadata.topics import REVIVE_QUEUES, Topics
from actors.broker.core.reading.queue_reader import QueueReader, ReadLimits
from actors.broker.core.sending.moved import moved
from actors.broker.features.pop.claims import ClaimQueue, Claims
from actors.broker.features.pop.orders import Orders
from actors.broker.features.pop.priorities import Priorities
from actors.broker.features.pop.waiting import WaitingPop
from actors.wire.bodies.pops import (
    ClaimedQueue,
    PopResponse,
    message_offset_info,
    order_count_info,
    start_offset_info,
)
from actors.wire.command import RemotingCommand
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message.pop_records import (
    NORMAL,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Receipt,
    pop_retry_topic,
)
from store.message.properties import MessageConst
from store.message.record import QUEUE_OFFSET, decode_record, encode_record
from store.message.validate import RETRY_TOPIC_PREFIX
from store.message_store import GetMessageResult, GetMessageStatus, MessageStore
from store.reading.message_filter import MATCH_ALL, MessageFilter

_log = get_logger(__name__)

IN_FLIGHT: Final = Bound(
    "popped_messages", 500_000, AtLimit.WAIT, "Popped messages that are neither acked nor visible again."
)
REPORT_MS: Final = 60_000
RETRY_FIRST_EVERY: Final = 5
"""One pop in five begins with the retry topic (RocketMQ's popFromRetryProbability 20 %)."""

_SIZE = Struct(">i")
_QUEUE_OFFSET = Struct(f">{QUEUE_OFFSET}xq")
_STARTS_AGAIN = frozenset(
    {
        GetMessageStatus.OFFSET_TOO_SMALL,
        GetMessageStatus.OFFSET_FOUND_NULL,
        GetMessageStatus.MESSAGE_WAS_REMOVING,
    }
)


class PopSource(NamedTuple):
    """A queue to pop from."""

    queue: ClaimQueue
    kind: str
    message_filter: MessageFilter


class FoundMessages(NamedTuple):
    """What a read of a queue at `offset` found."""

    source: PopSource
    offset: int
    result: GetMessageResult


class PopReader:
    """Reads and claims the messages of one broker's queues."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reader: QueueReader,
        progress: GroupProgress,
        topics: Topics,
        offsets: ConsumerOffsets,
        claims: Claims,
        orders: Orders,
        priorities: Priorities,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reader = reader
        self._progress = progress
        self._topics = topics
        self._offsets = offsets
        self._claims = claims
        self._orders = orders
        self._priorities = priorities
        self._clock = clock
        self._numbers = count()
        self._next_report_ns = 0

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (IN_FLIGHT.use(lambda: self._claims.in_flight),)

    def sources(self, request: WaitingPop) -> list[PopSource]:
        """Return the queues of a request in the order to read them.

        Raises Refused if its topic does not exist or is not readable.
        """
        topic, group = request.topic, request.group
        config = self._topics.for_pulling(topic)
        queues, number, by_priority = config.read_queue_nums, next(self._numbers), None
        if request.queue_id >= 0:
            self._reader.check_queue(topic, request.queue_id)
            chosen: Iterable[int] = (request.queue_id,)
        elif not request.order and (by_priority := self._priorities.of_pop(config, group)):
            chosen = by_priority[0]
        else:
            first = number % max(queues, 1)
            chosen = (*range(first, queues), *range(first))
        wanted = request.message_filter
        found = [PopSource(ClaimQueue(topic, group, queue_id), NORMAL, wanted) for queue_id in chosen]
        if request.order or topic.startswith(RETRY_TOPIC_PREFIX):
            return found
        retries = list(self._retry_sources(topic, group, number))
        retries_first = by_priority[1] if by_priority else number % RETRY_FIRST_EVERY == 0
        return retries + found if retries_first else found + retries

    def can_read(self, sources: Iterable[PopSource]) -> bool:
        """Return True if a queue has messages that are dispatched already."""
        for source in sources:
            topic, group, queue_id = source.queue
            committed = self._offsets.query(group, topic, queue_id) or 0
            if self._claims.next_offset(source.queue, committed) < self._store.max_offset(topic, queue_id):
                return True
        return False

    def has_message(self, request: WaitingPop) -> bool:
        """Return True if a pop of this group would probably find a message; the filter is not applied."""
        for source in self.sources(request):
            offset = self._offset(request, source)
            if offset is not None and offset < self._store.max_offset(*source.queue[::2]):
                return True
        return False

    def read(self, request: WaitingPop, sources: Iterable[PopSource]) -> list[FoundMessages]:
        """Read up to the requested number of messages. Raises NotResident and StoreError."""
        found: list[FoundMessages] = []
        messages, left_bytes = request.max_messages, self._settings.pull_max_bytes
        for source in sources:
            if messages <= 0 or left_bytes <= 0:
                break
            offset = self._offset(request, source)
            queue = source.queue[::2]
            if offset is None or self._store.max_offset(*queue) == offset:
                continue
            limits = ReadLimits(messages, left_bytes)
            result = self._reader.peek(queue, offset, limits, source.message_filter)
            if not result.slices and result.status in _STARTS_AGAIN:
                offset = result.next_begin_offset
                result = self._reader.peek(queue, offset, limits, source.message_filter)
            found.append(FoundMessages(source, offset, result))
            messages -= result.message_count
            left_bytes -= result.size_bytes
        return found

    def claim(self, request: WaitingPop, found: Iterable[FoundMessages]) -> RemotingCommand | None:
        """Claim the messages that were found, and return the response; None if nothing was found.

        The next pop of each queue begins after what was read, also if the filter has rejected all of it.
        """
        now_ms = self._clock.wall_ms()
        revive_queue = ORDER_REVIVE_QUEUE if request.order else next(self._numbers) % REVIVE_QUEUES
        parts: list[memoryview | bytes] = []
        claimed: list[ClaimedQueue] = []
        counts: list[str] = []
        rest = 0
        for source, start, result in found:
            rest += max(result.max_offset - result.next_begin_offset, 0)
            offsets, slices = self._open_messages(request, source.queue, result.slices)
            if not self._claim_queue(request, source, start, result, offsets, now_ms, revive_queue):
                continue
            queue = ClaimedQueue(source.kind, source.queue.queue_id, start, offsets)
            claimed.append(queue)
            if request.order:
                popped = self._orders.popped(
                    source.queue, offsets, now_ms, request.invisible_ms, request.attempt_id
                )
                counts.append(order_count_info(queue, popped))
            if source.kind == NORMAL:
                parts += slices
            else:
                receipt = Receipt(
                    start, now_ms, request.invisible_ms, revive_queue, source.kind,
                    self._settings.broker_name, source.queue.queue_id, 0,
                )  # fmt: skip
                parts += _as_of_topic(slices, request.topic, receipt)
            self._reader.served(source.queue[::2], source.queue.group, result)
        if not claimed:
            return None
        header = PopResponse(
            now_ms,
            request.invisible_ms,
            revive_queue,
            rest,
            start_offset_info(claimed),
            message_offset_info(claimed),
            ";".join(counts) if request.order else None,
        )
        return RemotingCommand.response(0, GetMessageStatus.FOUND.name, header.to_ext(), parts=parts)

    def nothing(self, request: WaitingPop) -> PopResponse:
        """Return the header of a response without messages."""
        queue = ORDER_REVIVE_QUEUE if request.order else next(self._numbers) % REVIVE_QUEUES
        counts = "" if request.order else None
        return PopResponse(self._clock.wall_ms(), request.invisible_ms, queue, 0, "", "", counts)

    def _open_messages(
        self, request: WaitingPop, queue: ClaimQueue, slices: Sequence[memoryview]
    ) -> tuple[list[int], Sequence[memoryview]]:
        """Return the offsets and records that were read, without those that are acked already."""
        read = list(_offsets_of(slices))
        if request.order:
            return read, slices
        offsets = self._offsets.acked.open_of(queue, read)
        return offsets, slices if offsets is read else list(_records_at(slices, frozenset(offsets)))

    def _claim_queue(
        self,
        request: WaitingPop,
        source: PopSource,
        start: int,
        result: GetMessageResult,
        offsets: list[int],
        now_ms: int,
        revive_queue: int,
    ) -> bool:
        """Claim the messages of one queue, or note that it has none. Return True if they are claimed."""
        queue, following = source.queue, result.next_begin_offset
        if result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY:
            self._move(queue, following)  # the log has lost messages, after a power failure
            return False
        if request.order:
            self._commit(queue, start if offsets else following)
            return bool(offsets)
        if not offsets:
            if following > start:
                self._claims.skip(queue, following)
            return False
        claim = self._claims.claim(
            queue, offsets, following, start, now_ms, request.invisible_ms, revive_queue
        )
        return claim is not None

    def _offset(self, request: WaitingPop, source: PopSource) -> int | None:
        """Return the offset at which the request reads a queue; None if the queue is blocked or full."""
        queue, offsets = source.queue, self._offsets
        topic, group, queue_id = queue
        if offsets.resets and request.is_pop:
            reset = offsets.take_reset(group, topic, queue_id)
            if reset is not None:
                self._claims.reset(queue, reset)
                self._orders.forget(queue)
        committed = offsets.query(group, topic, queue_id)
        if committed is None:  # a new group, or the topic or group was deleted
            if not request.is_pop:
                return self._store.min_offset(topic, queue_id)
            self._claims.forget(queue)
            self._orders.forget(queue)
            committed = self._progress.pop_begin(topic, queue_id, at_end=request.starts_at_end)
            offsets.commit(group, topic, queue_id, committed)
        if request.order:
            return None if self._orders.is_blocked(queue, request.attempt_id) else committed
        if self._claims.in_flight >= IN_FLIGHT.limit:
            self._report_full(group, topic)
            return None
        return self._claims.next_offset(queue, committed)

    def _report_full(self, group: str, topic: str) -> None:
        """Log that too many messages are claimed, at most once per minute."""
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_report_ns:
            self._next_report_ns = now_ns + REPORT_MS * NS_PER_MS
            _log.warning(
                "pop_in_flight_limit", group=group, topic=topic, limit=IN_FLIGHT.limit,
                remedy="ack messages, or pop with a shorter invisible time",
            )  # fmt: skip

    def _move(self, queue: ClaimQueue, offset: int) -> None:
        self._claims.reset(queue, offset)
        self._orders.forget(queue)
        self._offsets.acked.forget(lambda each: each == queue)
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, offset)

    def _commit(self, queue: ClaimQueue, offset: int) -> None:
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        if committed is not None and offset > committed:
            self._offsets.commit(queue.group, queue.topic, queue.queue_id, offset)

    def _retry_sources(self, topic: str, group: str, number: int) -> Iterator[PopSource]:
        """Yield the queues of one retry topic: a response must not have those of both."""
        names = {kind: pop_retry_topic(group, topic, kind) for kind in (RETRY_V1, RETRY_V2)}
        kinds = [kind for kind, name in names.items() if self._topics.find(name) is not None]
        if not kinds:
            return
        kind = kinds[number % len(kinds)]
        config = self._topics.find(names[kind])
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            yield PopSource(ClaimQueue(names[kind], group, queue_id), kind, MATCH_ALL)


def _offsets_of(slices: Iterable[memoryview]) -> Iterator[int]:
    for part in slices:
        position = 0
        while position < len(part):
            yield _QUEUE_OFFSET.unpack_from(part, position)[0]
            position += _SIZE.unpack_from(part, position)[0]


def _records_at(slices: Iterable[memoryview], offsets: Collection[int]) -> Iterator[memoryview]:
    """Yield the records at these queue offsets."""
    for part in slices:
        position = 0
        while position < len(part):
            end = position + _SIZE.unpack_from(part, position)[0]
            if _QUEUE_OFFSET.unpack_from(part, position)[0] in offsets:
                yield part[position:end]
            position = end


def _as_of_topic(slices: Iterable[memoryview], topic: str, receipt: Receipt) -> Iterator[bytes]:
    """Yield the records of a retry topic as records of the requested topic, each with its receipt."""
    for part in slices:
        position = 0
        while position < len(part):
            message = decode_record(part, position, check_crc=False)
            position += message.store_size
            properties = dict(message.properties)
            properties.setdefault(MessageConst.POP_CK, receipt._replace(offset=message.queue_offset).encode())
            draft = moved(message, topic, message.queue_id, properties)
            draft.prepared_transaction_offset = message.prepared_transaction_offset
            yield encode_record(
                draft,
                message.queue_offset,
                message.commit_log_offset,
                message.store_timestamp,
                message.store_host.packed,
            )
