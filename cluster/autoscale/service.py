"""AutoscalerService: calls the controller every few seconds, and serves status, pause, resume and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from actors.host.descriptors import reserve_descriptors
from actors.host.figures import Figure, Kind, Sample
from actors.host.metrics.endpoint import AUTOSCALER_PORT, CONNECTIONS, MetricsEndpoint
from cluster.autoscale.autoscaler_settings import AutoscalerSettings
from cluster.autoscale.controller import Controller
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING
from store.common.logs import get_logger

Result = TypeVar("Result")

PAUSED_FILE = "paused"
LABELS = {"node_type": "autoscaler", "node_id": "autoscaler"}

_log = get_logger(__name__)


class AutoscalerService:
    """Runs one controller. All calls of the controller are made in one thread, one after another."""

    def __init__(
        self,
        make_controller: Callable[[], Controller],
        settings: AutoscalerSettings,
        data_dir: Path,
        on_failure: Callable[[str], None],
    ) -> None:
        """Create the service, which does nothing before `start`.

        Args:
            make_controller: Creates the controller, in its thread.
            settings: Interval of the ticks, and the metrics.
            data_dir: Directory in which a pause is recorded, so that it outlives a restart.
            on_failure: Called with the reason if a tick raises an unexpected exception.
        """
        self._make_controller = make_controller
        self._interval_s = settings.interval_s
        self._paused_file = data_dir / PAUSED_FILE
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "controller")
        self._task: asyncio.Task[None] | None = None
        self._controller: Controller | None = None
        reserve_descriptors(CONNECTIONS.limit)
        self.metrics = MetricsEndpoint(settings, self._figures(), lambda: LABELS)

    async def start(self) -> None:
        """Create the controller and start to call it. Raises OSError if the given port is in use."""
        self._controller = await self._in_thread(self._make_controller)
        self._controller.is_paused = self._paused_file.exists()
        await self.metrics.start(AUTOSCALER_PORT)
        self._task = asyncio.get_running_loop().create_task(self._run(self._controller))

    async def stop(self) -> None:
        """Stop after the present tick, and cancel the drains that are not finished."""
        await self.metrics.stop()
        if self._task is not None:
            self._task.cancel()
        if self._controller is not None:
            await self._in_thread(self._controller.pause)
        self._thread.shutdown(wait=False)

    async def status(self) -> dict[str, Any]:
        """Return the status of the controller (`Controller.status`)."""
        return await self._in_thread(self._started().status)

    async def set_paused(self, *, paused: bool) -> None:
        """Pause or resume the controller, also for later restarts."""
        controller = self._started()
        if paused:
            self._paused_file.parent.mkdir(parents=True, exist_ok=True)
            self._paused_file.touch()
            await self._in_thread(controller.pause)
        else:
            self._paused_file.unlink(missing_ok=True)
            await self._in_thread(controller.resume)

    def _figures(self) -> tuple[Figure, ...]:
        """Return the figures. They read what the controller's thread replaces as a whole or only counts."""

        def brokers() -> Iterator[Sample]:
            states = self._started().states()
            return (Sample((state,), states.count(state)) for state in (STARTING, RUNNING, DRAINING))

        def events() -> Iterator[Sample]:
            return (Sample((event,), count) for event, count in dict(self._started().counts).items())

        return (
            Figure(
                "target", Kind.GAUGE, "", lambda: self._started().decision.target,
                "Brokers that there should be, by the last decision.",
                metric="raymq_autoscaler_target_brokers",
            ),
            Figure(
                "brokers", Kind.GAUGE, "", brokers, "Elastic brokers by state.", ("state",),
                metric="raymq_autoscaler_brokers",
            ),
            Figure(
                "decisions", Kind.COUNTER, "", lambda: self._started().decisions, "Decisions.",
                metric="raymq_autoscaler_decisions_total",
            ),
            Figure(
                "events", Kind.COUNTER, "", events,
                "Changes of target and brokers, and their failures, as in the log.", ("event",),
                metric="raymq_autoscaler_events_total",
            ),
            Figure(
                "paused", Kind.GAUGE, "", lambda: int(self._started().is_paused),
                "1 while it adds and removes no brokers.",
                metric="raymq_autoscaler_paused",
            ),
        )  # fmt: skip

    def _started(self) -> Controller:
        assert self._controller is not None
        return self._controller

    async def _run(self, controller: Controller) -> None:
        try:
            while True:
                await self._in_thread(controller.tick)
                await asyncio.sleep(self._interval_s)
        # Ray restarts the actor, and the next controller begins with the brokers that it finds.
        except Exception as error:  # noqa: BLE001 - logged, and reported to the host
            _log.exception("controller_failed")
            self._on_failure(f"{type(error).__name__}: {error}")

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
