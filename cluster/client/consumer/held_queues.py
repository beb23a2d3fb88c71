"""HeldQueues: the queues assigned to a push consumer, and its counters by topic."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.client.config import PushConfig
from cluster.client.consumer.arguments import check_is_queue
from cluster.client.consumer.consumer_stats import ConsumeCounts
from cluster.client.consumer.queue_work import CacheLimits, QueueWork
from cluster.client.consumer.running_info import QueueInfo
from cluster.client.errors import QueueNotAssigned
from cluster.client.namespaces import Namespace
from store.message.message_queue import MessageQueue


class HeldQueues:
    """The assigned queues in the order of their assignment, including those that are being released."""

    def __init__(self, config: PushConfig) -> None:
        self._config = config
        self.names = Namespace(config.namespace)
        """Translates the topics of the queues for the application."""
        self._works: dict[MessageQueue, QueueWork] = {}
        self._counts_of_released: dict[str, ConsumeCounts] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, work: QueueWork) -> bool:
        return self._works.get(work.queue) is work

    def get(self, queue: MessageQueue) -> QueueWork | None:
        """Return the state of `queue`, or None if it is not assigned."""
        return self._works.get(queue)

    def all(self) -> list[QueueWork]:
        """Return the states of all queues, including those that are being released."""
        return list(self._works.values())

    def assignment(self) -> list[MessageQueue]:
        """Return the assigned queues, without queues of the retry topic and queues being released."""
        works = [work for work in self.all() if not work.is_leaving and not work.is_retry_queue]
        return sorted(self.names.unwrap_queue(work.queue) for work in works)

    def named(self, queues: Sequence[MessageQueue]) -> list[QueueWork]:
        """Return the states of `queues`, or of all queues if `queues` is empty.

        Raises ConfigInvalid if an item is not a MessageQueue, and QueueNotAssigned if it is not assigned.
        """
        if not queues:
            return self.all()
        for queue in queues:
            check_is_queue(queue)
        queues = self.names.wrap_queues(queues)
        works = [work for work in map(self.get, queues) if work is not None and not work.is_leaving]
        if len(works) < len(queues):
            missing = next(queue for queue in queues if queue not in {work.queue for work in works})
            raise QueueNotAssigned(
                f"{missing} is not assigned to this consumer: assignment() returns the assigned queues"
            )
        return works

    def add(self, work: QueueWork) -> None:
        """Add a newly assigned queue."""
        self._works[work.queue] = work
        self._share_limits(work.queue.topic)

    def remove(self, work: QueueWork) -> None:
        """Remove a queue. Its counters remain part of the totals of its topic."""
        topic = work.queue.topic
        counted = self._counts_of_released.get(topic, ConsumeCounts())
        self._counts_of_released[topic] = counted.plus(work.counts)
        del self._works[work.queue]
        self._share_limits(topic)

    def _share_limits(self, topic: str) -> None:
        """Divide the cache limits of `topic`, if it has any, among its queues."""
        config = self._config
        if config.max_cached_messages_for_topic is None and config.max_cached_bytes_for_topic is None:
            return
        works = [work for queue, work in self._works.items() if queue.topic == topic]
        limits = CacheLimits.of(config, len(works))
        for work in works:
            work.share(limits)

    def counts(self) -> dict[str, ConsumeCounts]:
        """Return the counters since the consumer started, by topic."""
        counts = dict(self._counts_of_released)
        for work in self.all():
            topic = work.queue.topic
            counts[topic] = counts.get(topic, ConsumeCounts()).plus(work.counts)
        return counts

    def infos(self, epoch_ms: int) -> dict[MessageQueue, QueueInfo]:
        """Return the state of each queue for admin tools.

        `epoch_ms` is the wall-clock time at which the monotonic clock was 0.
        """
        found = {}
        for work in self.all():
            queue, pulled_ms, locked_ms = work.process_queue, work.fetcher.pulled_ms, work.locked_ms
            found[work.queue] = QueueInfo(
                queue.commit_offset,
                queue.commit_offset,
                queue.fetched_to,
                queue.cached_messages,
                queue.cached_bytes,
                work.is_leaving,
                pulled_ms and pulled_ms + epoch_ms,
                work.taken_ms and work.taken_ms + epoch_ms,
                locked_ms and locked_ms + epoch_ms,
            )
        return found
