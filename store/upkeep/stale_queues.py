"""StaleQueues: queues that may begin with records of a deleted log file.

    log file deleted ──→ all queues are stale ──→ a slice per turn, and each before it is read, gets its first
                                                  offset corrected; its files without records are removed

A queue whose units are not resident is corrected after another thread has brought them in.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from store.clock import Clock
from store.consumequeue.consume_queue import ConsumeQueue
from store.disk.residency import NotResident, WarmJob
from store.jobs import Lane
from store.logs import get_logger
from store.recovery.opening import StoreParts
from store.store_errors import StoreError

_log = get_logger(__name__)

_CORRECTION_NS = 2_000_000  # what a turn may spend on queues …
_CORRECTIONS_MAX = 256  # … and how many it looks at
_WARMING_MAX = 64  # queues whose units are being brought in from the disk


class StaleQueues:
    """Belongs to the store's thread."""

    def __init__(
        self, parts: StoreParts, lane: Lane, clock: Clock, remove: Callable[[Sequence[Path]], None]
    ) -> None:
        """`remove` removes files in the background."""
        self._queues = parts.queues
        self._positions = parts.positions
        self._residency = parts.residency
        self._lane = lane
        self._clock = clock
        self._remove = remove
        self._warming = 0
        # After a kill in the midst of a cleaning there may be something left of it.
        self._stale = dict.fromkeys(queue for queue in self._queues if queue.has_dead_files)

    @property
    def has_any(self) -> bool:
        """Whether some queue is stale."""
        return bool(self._stale)

    def add_all(self) -> None:
        """Mark all queues as stale: a log file has been deleted."""
        self._stale = dict.fromkeys(self._queues)

    def forget(self, queue: ConsumeQueue) -> None:
        """The queue has been removed."""
        self._stale.pop(queue, None)

    def settle(self, queue: ConsumeQueue) -> None:
        """Make sure that the queue begins with a record that is there.

        Raises StoreError, and NotResident if it must not wait: then it is still to be done.
        """
        if queue not in self._stale:
            return
        if self._queues.find(queue.topic, queue.queue_id) is not queue:
            del self._stale[queue]
            return
        queue.correct_min_offset(self._positions.min)
        del self._stale[queue]
        dead = queue.take_dead_files()
        if dead:
            self._remove(dead)

    def settle_if_there(self, queue: ConsumeQueue) -> None:
        """As `settle`; if that would have to wait outside `resident_only`, its turn comes later."""
        if self._residency.is_required:
            self.settle(queue)
            return
        with suppress(NotResident), self._residency:
            self.settle(queue)

    def correct_some(self) -> None:
        """Settle some queues."""
        began_ns = self._clock.monotonic_ns()
        for queue in list(islice(self._stale, _CORRECTIONS_MAX)):
            if self._warming >= _WARMING_MAX or self._clock.monotonic_ns() - began_ns > _CORRECTION_NS:
                return
            try:
                with self._residency:
                    self.settle(queue)
            except NotResident as cold:
                self._warming += 1
                self._lane.submit(WarmJob(cold.ranges).run, self._warmed)
                self._stale[queue] = self._stale.pop(queue)  # its turn comes again after all others
            except StoreError as error:
                self._stale.pop(queue, None)
                _log.error(
                    "queue_correction_failed", topic=queue.topic, queue_id=queue.queue_id, error=str(error)
                )

    def _warmed(self, _error: Exception | None) -> None:
        self._warming -= 1
