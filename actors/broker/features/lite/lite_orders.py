"""LiteOrders: where each group is in each lite topic, and what it has in flight.

A lite topic is an ordered queue (`pop.orders`). Its commit offsets are saved with those of other topics,
under the name of RocketMQ's light message queue (LMQ); its batches in flight are only in memory. After a
restart, messages without ack are visible at once, and deliveries count from 0 again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.reading.queue_reader import ReadLimits
from actors.broker.features.pop.claims import ClaimQueue
from actors.broker.features.pop.orders import Orders
from store.common.clock import Clock
from store.lite.lite_index import LiteMessage, lmq_name
from store.lite.names import SEPARATOR
from store.metadata import ConsumerOrderTable


class LiteTopics(Protocol):
    """The lite topics that have messages on this broker."""

    def min_offset(self, topic: str, name: str) -> int:
        """Return the first offset of a lite topic; 0 without messages."""

    def max_offset(self, topic: str, name: str) -> int:
        """Return the end offset of a lite topic; 0 without messages."""

    def read(self, topic: str, name: str, offset: int, count: int) -> Sequence[LiteMessage]:
        """Return up to `count` entries from an offset on."""

    def offset_at(self, topic: str, name: str, time_ms: int) -> int:
        """Return the offset of the first message that was stored at `time_ms` or later, or the end."""

    def names(self, topic: str) -> Iterable[str]:
        """Return the names of all lite topics, as they are now."""


class Start(Enum):
    """How a subscription changes the offset of the group (RocketMQ's OffsetOption)."""

    MIN = "MIN"
    MAX = "MAX"
    OFFSET = "OFFSET"
    TAIL = "TAIL_N"
    TIME = "TIMESTAMP"


class OffsetOption(NamedTuple):
    """Where a group begins to read a lite topic; `value` is unused for MIN and MAX."""

    start: Start
    value: int = 0


class FoundMessages(NamedTuple):
    """The messages of one lite topic for a pop."""

    name: str
    queue: ClaimQueue
    entries: Sequence[LiteMessage]


def lite_queue(group: str, topic: str, name: str) -> ClaimQueue:
    """Return the key of a lite topic in a group."""
    return ClaimQueue(lmq_name(topic, name), group, 0)


class LiteOrders:
    """The offsets and batches of all lite groups of one broker."""

    def __init__(
        self,
        topics: LiteTopics,
        offsets: ConsumerOffsets,
        clock: Clock,
        became_ready: Callable[[str, str, str], None],
    ) -> None:
        """Create the object; `became_ready` is called with group, topic and name when a batch has ended."""
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._became_ready = became_ready
        self._table = ConsumerOrderTable()
        self._orders = Orders(self._table, offsets, clock, _nothing, self._visible, keeps_acked=False)
        self.left_ms = self._orders.left_ms
        self.tick = self._orders.tick
        self.expire = self._orders.expire

    @property
    def batches(self) -> int:
        """The number of lite topics with a batch, by group."""
        return len(self._table.batches)

    def is_ready(self, group: str, topic: str, name: str) -> bool:
        """Return True if a lite topic has a message for a group, and no batch in flight."""
        queue = lite_queue(group, topic, name)
        committed = self._offsets.query(group, queue.topic, 0) or 0
        return committed < self._topics.max_offset(topic, name) and not self._orders.is_blocked(queue, "")

    def find(
        self, group: str, topic: str, names: Iterable[str], attempt_id: str, limits: ReadLimits
    ) -> list[FoundMessages]:
        """Return the next messages of lite topics, up to the limits; at least one, if there is one."""
        found: list[FoundMessages] = []
        messages, left_bytes = limits.max_messages, limits.max_bytes
        for name in names:
            if messages <= 0 or left_bytes <= 0:
                break
            queue = lite_queue(group, topic, name)
            offset = self._next_offset(queue, topic, name, attempt_id)
            chosen: list[LiteMessage] = []
            for entry in () if offset is None else self._topics.read(topic, name, offset, messages):
                if entry.size > left_bytes and (chosen or found):
                    left_bytes = 0
                    break
                chosen.append(entry)
                left_bytes -= entry.size
            if chosen or left_bytes > 0:  # else there was no room for its first message
                messages -= len(chosen)
                found.append(FoundMessages(name, queue, chosen))
        return found

    def claim(
        self, found: Iterable[FoundMessages], pop_ms: int, invisible_ms: int, attempt_id: str
    ) -> list[str]:
        """Note the batches of a pop. Return an item for each message: how often it was delivered before."""
        counts: list[str] = []
        for each in found:
            offsets = [entry.offset for entry in each.entries]
            if offsets:
                before = self._orders.popped(each.queue, offsets, pop_ms, invisible_ms, attempt_id)
                counts += (f"0 qo0%{at} {before[at]}" if at in before else "0" for at in offsets)
        return counts

    def ack(self, queue: ClaimQueue, offset: int, pop_ms: int) -> None:
        """Note an ack. Raises Refused for an offset that was not popped."""
        self._orders.ack(queue, offset, pop_ms)

    def change(
        self, queue: ClaimQueue, offset: int, pop_ms: int, invisible_ms: int, *, is_suspension: bool
    ) -> int | None:
        """Make a message, or with `is_suspension` the whole batch, visible again after `invisible_ms`.

        Returns the invisible time to report, counted from the pop; None if it is not in flight.
        """
        if is_suspension:
            return self._orders.suspend(queue, pop_ms, invisible_ms)
        return self._orders.change(queue, offset, pop_ms, invisible_ms)

    def reset(self, group: str, topic: str, name: str, option: OffsetOption) -> None:
        """Set where a group begins to read a lite topic. Its batch in flight is forgotten."""
        queue = lite_queue(group, topic, name)
        committed = self._offsets.query(group, queue.topic, 0)
        offset = self._start(topic, name, committed, option)
        if offset != committed:
            self._offsets.reset(group, queue.topic, 0, offset)
            self._orders.forget(queue)
            self._became_ready(group, topic, name)

    def drop(self, group: str, topic: str, name: str) -> None:
        """Forget where a group is in a lite topic, which begins again at offset 0."""
        queue = lite_queue(group, topic, name)
        self._offsets.remove(group, queue.topic)
        self._orders.forget(queue)
        self._table.batches.pop(f"{queue.topic}@{group}", None)

    def skip(self, queue: ClaimQueue, offset: int) -> None:
        """Let a group resume at `offset`, because the messages before cannot be read."""
        self._offsets.commit(queue.group, queue.topic, 0, offset)
        self._orders.forget(queue)
        self._visible(queue)

    def clear(self) -> None:
        """Forget all batches: another replica serves the clients now."""
        self._table.batches.clear()

    def _start(self, topic: str, name: str, committed: int | None, option: OffsetOption) -> int:
        first, end = self._topics.min_offset(topic, name), self._topics.max_offset(topic, name)
        if option.start is Start.MIN:
            return first
        if option.start is Start.MAX:
            return end
        if option.start is Start.TIME:
            return self._topics.offset_at(topic, name, option.value)
        offset = option.value
        if option.start is Start.TAIL:
            offset = (end if committed is None else committed) - option.value
        return min(max(offset, first), end)

    def _next_offset(self, queue: ClaimQueue, topic: str, name: str, attempt_id: str) -> int | None:
        """Return the offset of the next pop; None if a batch is in flight or there is no message."""
        self._offsets.take_reset(queue.group, queue.topic, 0)
        if self._orders.is_blocked(queue, attempt_id):
            return None
        committed = self._offsets.query(queue.group, queue.topic, 0)
        end = self._topics.max_offset(topic, name)
        offset = min(max(committed or 0, self._topics.min_offset(topic, name)), end)
        if offset != committed:
            self._offsets.check_room(queue.group, queue.topic)
            self._offsets.commit(queue.group, queue.topic, 0, offset)
        return offset if offset < end else None

    def _visible(self, queue: ClaimQueue) -> None:
        _, topic, name = queue.topic.split(SEPARATOR)
        self._became_ready(queue.group, topic, name)


def _nothing() -> None:
    """Batches are not saved."""
