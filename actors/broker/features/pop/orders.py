"""Orders: pops in order (FIFO). A queue is blocked while a message of its last batch is claimed.

    pop ──► batch ──all acked──────────────────────────────────► next batch
              ├──pop with the same attempt id──────────────────► the same batch again
              └──invisible time over──► next batch: the unacked messages and those after them

The commit offset is that of the first message without ack. There are no check points and no retry topics.
The batches are kept in RocketMQ's `consumerOrderInfo.json`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.features.pop.claims import ClaimQueue
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.metadata import ConsumerOrderTable, OrderBatch

UNUSED_MS: Final = 24 * 3_600_000
"""A batch is forgotten after this time, as in RocketMQ."""


class Orders:
    """The ordered batches of one broker."""

    def __init__(
        self,
        table: ConsumerOrderTable,
        offsets: ConsumerOffsets,
        clock: Clock,
        on_change: Callable[[], None],
        wake: Callable[[ClaimQueue], None],
        *,
        keeps_acked: bool = True,
    ) -> None:
        """Create the object.

        Args:
            table: the batches; changed in place.
            offsets: the groups' commit offsets.
            clock: its wall time decides when a batch is visible again, because the times are stored.
            on_change: called after the table has changed.
            wake: resumes a waiting pop of a queue that is no longer blocked.
            keeps_acked: True if a batch is kept when all of it is acked, as in RocketMQ's file.
        """
        self._table = table
        self._offsets = offsets
        self._clock = clock
        self._on_change = on_change
        self._wake = wake
        self._keeps_acked = keeps_acked
        self._visible: list[tuple[int, ClaimQueue]] = []

    def is_blocked(self, queue: ClaimQueue, attempt_id: str) -> bool:
        """Return True if a message of the last batch is still invisible.

        A pop with the attempt id of the last one is not blocked: its response may have been lost.
        """
        batch = self._batch(queue)
        if batch is None or (attempt_id and attempt_id == batch.attempt_id):
            return False
        now_ms = self._clock.wall_ms()
        return any(now_ms < _visible_ms(batch, offset) for offset in batch.unacked)

    def popped(
        self, queue: ClaimQueue, offsets: list[int], pop_ms: int, invisible_ms: int, attempt_id: str
    ) -> dict[int, int]:
        """Note a new batch. Return the number of earlier deliveries by offset, without those that are 0."""
        last = self._batch(queue)
        counts: dict[int, int] = {}
        if last is not None:
            again = 0 if attempt_id and attempt_id == last.attempt_id else 1
            known = set(last.offsets)
            counts = {each: last.counts.get(each, 0) + again for each in offsets if each in known}
            counts = {offset: count for offset, count in counts.items() if count > 0}
        batch = OrderBatch(
            pop_ms, invisible_ms, offsets, {}, counts, self._clock.wall_ms(), 0, attempt_id or None
        )
        self._table.batches.setdefault(_key(queue), {})[queue.queue_id] = batch
        self._wake_at(pop_ms + invisible_ms, queue)
        self._on_change()
        return counts

    def ack(self, queue: ClaimQueue, offset: int, pop_ms: int) -> None:
        """Note an ack. Ignore one of an earlier batch. Raises Refused for an offset that was not popped."""
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        batch = self._batch(queue)
        if committed is None or offset < committed or batch is None or batch.pop_ms != pop_ms:
            return
        if offset not in batch.offsets:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{queue.topic}@{queue.queue_id}, old:{committed}, commit:{offset}: "
                "it is not one of the last pop",
            )
        batch.acked_bits |= 1 << batch.offsets.index(offset)
        batch.used_ms = self._clock.wall_ms()
        unacked = batch.unacked
        following = unacked[0] if unacked else batch.offsets[-1] + 1
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, following)
        if not (unacked or self._keeps_acked):
            self._table.batches[_key(queue)].pop(queue.queue_id)
        self._on_change()
        if not self.is_blocked(queue, ""):
            self._wake(queue)

    def change(self, queue: ClaimQueue, offset: int, pop_ms: int, invisible_ms: int) -> int | None:
        """Make a message visible again after `invisible_ms`.

        Returns the invisible time to report, counted from the pop; None if the message is not of the last
        batch.
        """
        batch = self._batch(queue)
        if batch is None or batch.pop_ms != pop_ms or offset not in batch.unacked:
            return None
        visible_ms = self._clock.wall_ms() + invisible_ms
        batch.visible_ms[offset] = visible_ms
        batch.used_ms = self._clock.wall_ms()
        self._wake_at(visible_ms, queue)
        self._on_change()
        return visible_ms - pop_ms

    def suspend(self, queue: ClaimQueue, pop_ms: int, invisible_ms: int) -> int | None:
        """Make the whole last batch visible again after `invisible_ms`; its next delivery is not counted.

        Returns the invisible time to report, counted from the pop; None if it is not the last batch.
        """
        batch = self._batch(queue)
        if batch is None or batch.pop_ms != pop_ms or not batch.unacked:
            return None
        batch.visible_ms.clear()
        batch.used_ms = self._clock.wall_ms()
        batch.invisible_ms = batch.used_ms + invisible_ms - pop_ms
        batch.counts = {offset: batch.counts.get(offset, 0) - 1 for offset in batch.offsets}
        self._wake_at(pop_ms + batch.invisible_ms, queue)
        self._on_change()
        return batch.invisible_ms

    def forget(self, queue: ClaimQueue) -> None:
        """Remove the batch of a queue, because the group's offset was reset or deleted."""
        if self._table.batches.get(_key(queue), {}).pop(queue.queue_id, None) is not None:
            self._on_change()

    def left_ms(self) -> int | None:
        """Return the time until the next batch becomes visible; None without one."""
        return self._visible[0][0] - self._clock.wall_ms() if self._visible else None

    def tick(self) -> None:
        """Resume the pops of queues whose batch has become visible; to be called after `left_ms`."""
        now_ms = self._clock.wall_ms()
        while self._visible and self._visible[0][0] <= now_ms:
            queue = heapq.heappop(self._visible)[1]
            if not self.is_blocked(queue, ""):
                self._wake(queue)

    def expire(self) -> None:
        """Forget the batches that were not used for UNUSED_MS."""
        before_ms = self._clock.wall_ms() - UNUSED_MS
        for key, queues in list(self._table.batches.items()):
            for queue_id in [queue_id for queue_id, batch in queues.items() if batch.used_ms < before_ms]:
                del queues[queue_id]
                self._on_change()
            if not queues:
                del self._table.batches[key]

    def _wake_at(self, time_ms: int, queue: ClaimQueue) -> None:
        heapq.heappush(self._visible, (time_ms, queue))

    def _batch(self, queue: ClaimQueue) -> OrderBatch | None:
        return self._table.batches.get(_key(queue), {}).get(queue.queue_id)


def _key(queue: ClaimQueue) -> str:
    return f"{queue.topic}@{queue.group}"


def _visible_ms(batch: OrderBatch, offset: int) -> int:
    return batch.visible_ms.get(offset, batch.pop_ms + batch.invisible_ms)
