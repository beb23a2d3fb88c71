"""LiveDispatch: keeps the sinks of an open store behind what is confirmed, one step at a time.

idle ──advance──→ idle                                     a slice is dispatched
             ├──→ under way ──(units written)──→ idle      the consume queues were left to another thread
             └──→ failed ──(after a second)──→ idle        sends are refused meanwhile; nothing is lost
"""

from collections.abc import Callable

from store.clock import Clock
from store.commitlog.positions import Positions
from store.disk.files import explain
from store.dispatch.dispatcher import Dispatcher, Step
from store.dispatch.queue_sink import ConsumeQueueSink
from store.logs import get_logger
from store.store_errors import StoreError

_log = get_logger(__name__)

_RETRY_NS = 1_000_000_000


class LiveDispatch:
    """Moves `positions.dispatched`. Belongs to the store's thread."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        queues: ConsumeQueueSink,
        positions: Positions,
        clock: Clock,
        on_step: Callable[[Step], None],
    ) -> None:
        """Call `on_step` after each step, when all sinks have it."""
        self._dispatcher = dispatcher
        self._queues = queues
        self._positions = positions
        self._clock = clock
        self._on_step = on_step
        self._under_way: Step | None = None
        self._retry_ns = 0
        self._incomplete_before = -1  # up to here there is only a part of a record left
        self.fault: str | None = None
        """Why the last step failed; None if it did not."""

    @property
    def has_more(self) -> bool:
        """Whether something is confirmed and not dispatched, and can be."""
        confirmed = self._positions.confirmed
        return (
            self._positions.dispatched < confirmed
            and self.fault is None
            and confirmed != self._incomplete_before
        )

    @property
    def is_under_way(self) -> bool:
        """Whether another thread writes units: then nothing may be done to queues but to read them."""
        return self._under_way is not None

    @property
    def can_finish(self) -> bool:
        """Whether a step is under way that `finish` need not wait for."""
        return self._queues.can_finish

    def advance(self) -> None:
        """Dispatch one slice; no step may be under way."""
        begin, confirmed = self._positions.dispatched, self._positions.confirmed
        if begin >= confirmed or (self.fault is not None and self._clock.monotonic_ns() < self._retry_ns):
            return
        try:
            step = self._dispatcher.step(begin, confirmed)
        except (OSError, StoreError) as error:
            self._fail(error)
            return
        if step.position == begin:
            self._incomplete_before = confirmed
        if self._queues.is_under_way:
            self._under_way = step
        else:
            self._done(step)

    def finish(self) -> None:
        """Wait for the step under way, if there is one."""
        step, self._under_way = self._under_way, None
        if step is None:
            return
        try:
            self._queues.finish()
        except (OSError, StoreError) as error:
            self._fail(error)
        else:
            self._done(step)

    def run(self) -> None:
        """Dispatch all that is confirmed, and wait for it."""
        self.finish()
        self.advance()  # also after a fault, when its time has come
        self.finish()
        while self.has_more:
            self.advance()
            self.finish()

    def _done(self, step: Step) -> None:
        self.fault = None
        self._positions.dispatched = step.position
        self._on_step(step)

    def _fail(self, error: OSError | StoreError) -> None:
        self._retry_ns = self._clock.monotonic_ns() + _RETRY_NS
        if self.fault is None:
            _log.error("dispatch_failed", error=str(error))
        reason = explain(error) if isinstance(error, OSError) else str(error)
        self.fault = f"consume queues or index cannot be written: {reason}"
