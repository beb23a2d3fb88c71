"""ClaimedOffsets: a group's committed offsets as they follow from its claims."""

from __future__ import annotations

from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.features.pop.claims import ClaimQueue


class ClaimedOffsets:
    """Commits the offsets of queues that groups pop, and counts the claims before them."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets

    def commit(self, queue: ClaimQueue, offset: int) -> None:
        """Commit an offset, unless it is lower than the committed one, or the topic or group was deleted."""
        topic, group, queue_id = queue
        committed = self._offsets.query(group, topic, queue_id)
        if committed is not None and offset > committed:
            self._offsets.commit(group, topic, queue_id, offset)
            self._offsets.acked.committed(queue, offset)

    def done(self, queue: ClaimQueue, offset: int) -> None:
        """Note that a message after the committed offset is done."""
        self._offsets.acked.done(queue, offset)

    def skip(self, queue: ClaimQueue, offset: int) -> None:
        """Let pops skip a message that is acked before it is popped again."""
        self._offsets.acked.add(queue, offset)

    def count_safe(self, queue: ClaimQueue, change: int) -> None:
        """Note that `change` more (or fewer) claimed messages are before the committed offset."""
        self._offsets.count_claimed(*queue, change)
