"""StaleQueues: queues that may begin with records of a deleted log file.

    log file deleted ──→ all queues are stale ──→ a few queues per turn, and each queue before it is read,
                                                  get their first offset corrected

Then consume queue files without any existing record are deleted. If the units of a queue are not resident
(not in the page cache), another thread loads them before the queue is corrected.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from store.common.background import Lane
from store.common.clock import Clock
from store.common.logs import get_logger
from store.consumequeue.consume_queue import ConsumeQueue
from store.disk.residency import NotResident, WarmJob
from store.recovery.opening import StoreParts
from store.store_errors import StoreError

_log = get_logger(__name__)

_CORRECTION_NS = 2_000_000  # time limit per turn
_CORRECTIONS_MAX = 256  # queues per turn
_LOADING_MAX = 64  # limit of queues whose units are being loaded from disk


class StaleQueues:
    """The stale queues of one store. Used only on the store's thread."""

    def __init__(
        self, parts: StoreParts, lane: Lane, clock: Clock, remove: Callable[[Sequence[Path]], None]
    ) -> None:
        """Find queues that a killed process left stale. `remove` must delete files in the background."""
        self._queues = parts.queues
        self._positions = parts.positions
        self._residency = parts.residency
        self._lane = lane
        self._clock = clock
        self._remove = remove
        self._loading = 0
        # A process killed while cleaning may have left files without records.
        self._stale = dict.fromkeys(queue for queue in self._queues if queue.has_dead_files)

    @property
    def has_any(self) -> bool:
        """True if some queue is stale."""
        return bool(self._stale)

    def add_all(self) -> None:
        """Mark all queues as stale, because a log file has been deleted."""
        self._stale = dict.fromkeys(self._queues)

    def forget(self, queue: ConsumeQueue) -> None:
        """Forget a queue that has been deleted."""
        self._stale.pop(queue, None)

    def correct(self, queue: ConsumeQueue) -> None:
        """Correct the first offset of a stale queue, so that the queue begins with an existing record.

        Raises StoreError, and NotResident if the correction would have to wait for the disk inside
        `resident_only`; the queue stays stale then.
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

    def correct_if_resident(self, queue: ConsumeQueue) -> None:
        """Call `correct` if the units of the queue are resident; otherwise leave the queue stale.

        Inside `resident_only`, NotResident is raised instead.
        """
        if self._residency.is_required:
            self.correct(queue)
            return
        with suppress(NotResident), self._residency:
            self.correct(queue)

    def correct_some(self) -> None:
        """Correct some of the stale queues, within a time limit."""
        began_ns = self._clock.monotonic_ns()
        for queue in list(islice(self._stale, _CORRECTIONS_MAX)):
            if self._loading >= _LOADING_MAX or self._clock.monotonic_ns() - began_ns > _CORRECTION_NS:
                return
            try:
                with self._residency:
                    self.correct(queue)
            except NotResident as not_resident:
                self._loading += 1
                self._lane.submit(WarmJob(not_resident.ranges).run, self._on_loaded)
                self._stale[queue] = self._stale.pop(queue)  # retry after all other queues
            except StoreError as error:
                self._stale.pop(queue, None)
                _log.error(
                    "queue_correction_failed", topic=queue.topic, queue_id=queue.queue_id, error=str(error)
                )

    def _on_loaded(self, _error: Exception | None) -> None:
        self._loading -= 1
