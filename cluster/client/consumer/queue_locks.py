"""QueueLocks: locks queues at their brokers for an ordered consumer (LOCK_BATCH_MQ).

In a group of Python members, the generations that the rebalancer assigns already ensure that each queue has
one owner. The locks are needed where generations are not available: in groups with Java members, in groups
whose rebalancer is unavailable, and with RocketMQ's brokers. A Python member takes the locks in every group,
because a Java member that joins later immediately locks each assigned queue that is not locked.

The broker drops a lock 60 s after its last renewal. The client renews it every RENEWAL_MS, and does not call
the listener if the last renewal is older than VALID_MS. If a broker did not respond, for example because it
was restarting, the client renews again after RETRY_MS. RocketMQ's clients use the same periods.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from actors.wire.bodies.groups import AssignedQueue
from actors.wire.bodies.locks import LockedQueues, LockRequest
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from cluster.client.consumer.ordered_work import OrderedQueueWork
from cluster.client.errors import ClientError
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

RENEWAL_MS = 20_000
VALID_MS = 30_000
RETRY_MS = 3_000


class Locked(NamedTuple):
    """Result of a lock request: the queues that were locked, and the queues that another member has locked.

    Queues of brokers that did not respond are in neither set.
    """

    held: frozenset[MessageQueue]
    refused: frozenset[MessageQueue]


class ConsumerLocks:
    """Acquires, renews and releases the queue locks of one ordered consumer."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._opening: dict[MessageQueue, AssignedQueue] = {}
        self._is_renewed = True

    def renewal_ms(self) -> int:
        """Return the time until the next call of `renew`, in ms."""
        return RENEWAL_MS if self._is_renewed else RETRY_MS

    async def acquire(self, assigned: AssignedQueue, is_wanted: Callable[[], bool]) -> int | None:
        """Lock the queue of `assigned`. Retry until the previous owner releases the lock or the lock expires.

        Returns:
            The time of the successful request in monotonic ms, or None without a lock if `is_wanted()`
            returned False before a request succeeded.
        """
        queue, backoff, is_logged = assigned.queue, Backoff(), False
        self._opening[queue] = assigned
        while is_wanted():
            requested_ms = self._instance.now_ms()
            locked = await self._lock({queue: assigned.generation})
            if queue in locked.held:
                if is_wanted():
                    return requested_ms
                break
            if queue in locked.refused and not is_logged:
                is_logged = True
                _log.info("queue_lock_awaited", group=self._group, queue=str(queue))
            await asyncio.sleep(backoff.next_ms() / 1000)
        await self.withdraw(assigned)
        return None

    async def withdraw(self, assigned: AssignedQueue) -> None:
        """Release the lock that `acquire(assigned)` took, unless the queue was assigned again since then."""
        if self._opening.get(assigned.queue) is assigned:
            await self.release(assigned.queue)

    async def renew(self, works: Iterable[OrderedQueueWork]) -> list[OrderedQueueWork]:
        """Renew the locks of the queues of `works`, and offer queues whose work was paused.

        Returns:
            The items of `works` whose queue another member has locked.
        """
        by_queue = {work.queue: work for work in works}
        requested_ms = self._instance.now_ms()
        locked = await self._lock({queue: work.generation for queue, work in by_queue.items()})
        for queue in locked.held:
            work = by_queue[queue]
            is_due, tasks = work.renew(requested_ms, requested_ms + VALID_MS)
            for item in (*tasks, *((work,) if is_due else ())):
                work.offer(item)
        self._is_renewed = locked.held | locked.refused == by_queue.keys()
        return [by_queue[queue] for queue in locked.refused]

    async def release(self, queue: MessageQueue) -> None:
        """Release the lock of a queue. If the request fails, the lock expires at the broker after 60 s."""
        self._opening.pop(queue, None)
        try:
            await self._request(RequestCode.UNLOCK_BATCH_MQ, queue.broker_name, {queue: 0})
        except ClientError as error:
            _log.info("queue_unlock_failed", group=self._group, queue=str(queue), error=str(error))

    async def _lock(self, generations: Mapping[MessageQueue, int]) -> Locked:
        by_broker: dict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, generation in generations.items():
            by_broker[queue.broker_name][queue] = generation
        results = await asyncio.gather(*map(self._lock_at, by_broker, by_broker.values()))
        held = frozenset[MessageQueue]().union(*(each.held for each in results))
        return Locked(held, frozenset[MessageQueue]().union(*(each.refused for each in results)))

    async def _lock_at(self, broker: str, generations: Mapping[MessageQueue, int]) -> Locked:
        try:
            response = await self._request(RequestCode.LOCK_BATCH_MQ, broker, generations)
            held = frozenset(LockedQueues.decode(response.body).queues) & generations.keys()
        except (ClientError, Refused) as error:
            _log.info("queue_lock_failed", group=self._group, broker=broker, error=str(error))
            return Locked(frozenset(), frozenset())
        return Locked(held, frozenset(generations.keys() - held))

    async def _request(
        self, code: RequestCode, broker: str, generations: Mapping[MessageQueue, int]
    ) -> RemotingCommand:
        queues = list(generations)
        address = self._instance.master_of(queues[0].topic, broker)
        body = LockRequest(
            self._group, self._instance.client_id, queues, generations=list(generations.values())
        ).encode()
        return await self._instance.invoke(address, RemotingCommand(code, body=body))
