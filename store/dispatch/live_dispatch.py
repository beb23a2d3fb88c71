"""LiveDispatch: dispatches the confirmed records of an open store to its sinks, one step at a time.

A step reads one slice of the CommitLog. Between steps, the states are:

idle ──advance──→ idle                                      the slice was dispatched
             ├──→ under way ──(units written)──→ idle       another thread writes the consume queue units
             └──→ failed ──(retry after 1 s)──→ idle        appends are refused until then; no data is lost
"""

from collections.abc import Callable

from store.commitlog.positions import Positions
from store.common.clock import Clock
from store.common.logs import get_logger
from store.disk.files import explain
from store.dispatch.dispatcher import Dispatcher, DispatchStep
from store.dispatch.queue_sink import ConsumeQueueSink
from store.store_errors import StoreError
from store.writing.send_gate import DISPATCH, SendGate

_log = get_logger(__name__)

_RETRY_NS = 1_000_000_000


class LiveDispatch:
    """Dispatches confirmed records and advances `positions.dispatched`. Used only on the store's thread."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        queues: ConsumeQueueSink,
        positions: Positions,
        gate: SendGate,
        clock: Clock,
        on_step: Callable[[DispatchStep], None],
    ) -> None:
        """Create the dispatch of a store.

        `on_step` is called after each step, when all sinks have processed the records of the step.
        """
        self._dispatcher = dispatcher
        self._queues = queues
        self._positions = positions
        self._gate = gate
        self._clock = clock
        self._on_step = on_step
        self._under_way: DispatchStep | None = None
        self._retry_ns = 0
        self._incomplete_before = -1  # the confirmed bytes up to this offset end with an incomplete record
        self.fault: str | None = None
        """Error message of the last step if it failed, else None."""

    @property
    def has_more(self) -> bool:
        """True if there are confirmed records that `advance` can dispatch now."""
        confirmed = self._positions.confirmed
        return (
            self._positions.dispatched < confirmed
            and self.fault is None
            and confirmed != self._incomplete_before
        )

    @property
    def is_under_way(self) -> bool:
        """True while another thread writes consume queue units of a step.

        Until `finish` is called, queues may be read but not changed.
        """
        return self._under_way is not None

    @property
    def can_finish(self) -> bool:
        """True if a step is under way and `finish` would return without waiting."""
        return self._queues.can_finish

    def advance(self) -> None:
        """Dispatch the next slice of confirmed records. Must not be called while a step is under way.

        After a failed step this does nothing until the retry delay of 1 s has passed.
        """
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
        """Wait for the step that is under way, if any, and complete it."""
        step, self._under_way = self._under_way, None
        if step is None:
            return
        try:
            self._queues.finish()
        except (OSError, StoreError) as error:
            self._fail(error)
        else:
            self._done(step)

    def rewind(self) -> None:
        """Complete the step that is under way, because the log is about to be truncated."""
        self.finish()
        self._incomplete_before = -1

    def run(self) -> None:
        """Dispatch all confirmed records, and wait until all units are written."""
        self.finish()
        self.advance()  # `has_more` is False after a fault; this retries the step once its delay has passed
        self.finish()
        while self.has_more:
            self.advance()
            self.finish()

    def _done(self, step: DispatchStep) -> None:
        if self.fault is not None:
            self.fault = None
            self._gate.open(DISPATCH)
        self._positions.dispatched = step.position
        self._on_step(step)

    def _fail(self, error: OSError | StoreError) -> None:
        self._retry_ns = self._clock.monotonic_ns() + _RETRY_NS
        if self.fault is None:
            _log.error("dispatch_failed", error=str(error))
        reason = explain(error) if isinstance(error, OSError) else str(error)
        self.fault = f"consume queues or index cannot be written: {reason}"
        self._gate.close(DISPATCH, self.fault)
