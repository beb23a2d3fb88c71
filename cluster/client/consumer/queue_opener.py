"""QueueOpener: opens the queues that the group assigns to a push consumer, and releases them later.

Steps of `open`:

assigned ─→ lock (ordered consumers) ─→ first offset ─→ QueueWork with its fetcher
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.wire.bodies.groups import AssignedQueue
from cluster.client.config import PushConfig
from cluster.client.consumer.fetcher import Fetcher, FetchSink, PullSender
from cluster.client.consumer.local_offsets import OffsetStore
from cluster.client.consumer.ordered_work import OrderedQueueWork
from cluster.client.consumer.process_queue import ProcessQueue
from cluster.client.consumer.queue_locks import VALID_MS, ConsumerLocks
from cluster.client.consumer.queue_work import CacheLimits, QueueWork, Task
from cluster.client.group.group_session import GroupSession
from cluster.client.message_selector import ALL_MESSAGES
from cluster.client.namespaces import Namespace
from cluster.client.read_epoch import ReadEpoch
from cluster.client.transport.instance import ClientInstance
from store.message.message_queue import MessageQueue
from store.message.validate import RETRY_TOPIC_PREFIX


class QueueOpener:
    """Opens and closes the assigned queues of one push consumer."""

    def __init__(
        self,
        instance: ClientInstance,
        config: PushConfig,
        session: GroupSession,
        offsets: OffsetStore,
        offer: Callable[[QueueWork | Task], None],
        sink: FetchSink,
    ) -> None:
        """Create the opener.

        Args:
            instance: The client instance.
            config: Settings of the consumer.
            session: The group session, from which the subscriptions are read.
            offsets: The offset store, which determines the start offset of a queue.
            offer: Puts a queue or a task into the ready list of the listener threads; used if ordered.
            sink: Receives the messages of the fetchers.
        """
        self._instance = instance
        self._config = config
        self._session = session
        self._offsets = offsets
        self._offer = offer
        self._sink = sink
        self._puller = PullSender(instance, config, max_messages=config.max_cached_messages)
        self._locks = (
            ConsumerLocks(instance, config.group) if config.ordered and not config.is_broadcasting else None
        )
        # Queues that were revoked during a listener call. The event is set when the call returns.
        self._running: dict[MessageQueue, asyncio.Event] = {}

    @property
    def uses_locks(self) -> bool:
        """Return True if queues are locked at their brokers; then `renew` must be called periodically."""
        return self._locks is not None

    def renewal_ms(self) -> int:
        """Return the time until the next call of `renew`, in ms. Call it only if `uses_locks` is True."""
        assert self._locks is not None
        return self._locks.renewal_ms()

    async def open(self, assigned: AssignedQueue, is_wanted: Callable[[], bool]) -> QueueWork | None:
        """Open an assigned queue: lock it if necessary, determine its start offset and create its fetcher.

        Returns:
            The state of the queue, or None if `is_wanted()` returns False meanwhile.
        """
        queue, locked_ms = assigned.queue, 0
        while (call := self._running.get(queue)) is not None and self._config.ordered:
            await call.wait()
        if self._locks is not None:
            acquired_ms = await self._locks.acquire(assigned, is_wanted)
            if acquired_ms is None:
                return None
            locked_ms = acquired_ms
        is_retry_queue = queue.topic.startswith(RETRY_TOPIC_PREFIX)
        consume_from = "earliest" if is_retry_queue else self._config.start_from
        offset = await self._offsets.starting(queue, consume_from, assigned.generation, retry_refusals=True)
        if is_wanted():
            return self._work(assigned, offset, locked_ms)
        if self._locks is not None:
            await self._locks.withdraw(assigned)
        return None

    async def close(self, work: QueueWork) -> None:
        """Release the lock of a queue after its last commit, when no listener is running on it."""
        if self._locks is not None and work.may_commit:
            await self._locks.release(work.queue)

    def dropped(self, work: QueueWork) -> None:
        """Record that a queue was revoked while the listener is running on it."""
        self._running[work.queue] = asyncio.Event()

    def returned(self, work: QueueWork) -> None:
        """Record that the last listener call on a revoked queue has returned."""
        call = self._running.pop(work.queue, None)
        if call is not None:
            call.set()

    async def renew(self, works: Sequence[QueueWork]) -> list[QueueWork]:
        """Renew the locks of the queues of `works`.

        Returns:
            The items of `works` whose queue another member has locked.
        """
        ordered = [work for work in works if isinstance(work, OrderedQueueWork) and not work.is_leaving]
        if self._locks is None or not ordered:
            return []
        lost = await self._locks.renew(ordered)
        for work in lost:
            work.is_lock_lost = True
        return list[QueueWork](lost)

    def _work(self, assigned: AssignedQueue, offset: int, locked_ms: int) -> QueueWork:
        config, queue, names = self._config, assigned.queue, Namespace(self._config.namespace)
        work: QueueWork
        fetcher = Fetcher(
            self._instance,
            self._puller,
            queue,
            offset,
            self._session.subscriptions.get(queue.topic, ALL_MESSAGES),
            lambda: config.fetch_bytes,
            self._sink,
            lambda: work.process_queue.commit_offset,
            ReadEpoch(*self._offsets.epoch(queue)),
        )
        parts = (queue, assigned.generation, ProcessQueue(offset), CacheLimits.of(config, 1), fetcher)
        if not config.ordered:
            work = QueueWork(*parts, committed=offset, names=names)
            return work
        work = ordered = OrderedQueueWork(*parts, committed=offset, names=names, offer=self._offer)
        if self._locks is not None:
            ordered.renew(locked_ms, locked_ms + VALID_MS)
        return ordered
