"""AutoscalerService: calls the controller every few seconds, and serves status, pause and resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from cluster.autoscale.controller import Controller
from store.logs import get_logger

Result = TypeVar("Result")

PAUSED_FILE = "paused"

_log = get_logger(__name__)


class AutoscalerService:
    """Runs one controller. All calls of the controller are made in one thread, one after another."""

    def __init__(
        self,
        make_controller: Callable[[], Controller],
        interval_s: float,
        data_dir: Path,
        on_failure: Callable[[str], None],
    ) -> None:
        """Create the service, which does nothing before `start`.

        Args:
            make_controller: Creates the controller, in its thread.
            interval_s: Seconds between two ticks.
            data_dir: Directory in which a pause is recorded, so that it outlives a restart.
            on_failure: Called with the reason if a tick raises an unexpected exception.
        """
        self._make_controller = make_controller
        self._interval_s = interval_s
        self._paused_file = data_dir / PAUSED_FILE
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "controller")
        self._task: asyncio.Task[None] | None = None
        self._controller: Controller | None = None

    async def start(self) -> None:
        """Create the controller and start to call it."""
        self._controller = await self._in_thread(self._make_controller)
        self._controller.is_paused = self._paused_file.exists()
        self._task = asyncio.get_running_loop().create_task(self._run(self._controller))

    async def stop(self) -> None:
        """Stop after the present tick, and cancel the drains that are not finished."""
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
