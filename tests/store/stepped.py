"""StepByStep: an executor without threads, whose jobs run when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class _Step(Future[Any]):
    """A job that runs at the latest when its result is needed."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        if self.done() or not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(self._work())
        except Exception as error:  # noqa: BLE001 - the caller gets it from the future
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class StepByStep(Executor):
    """Keeps submitted jobs until `step` runs the oldest one."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque()

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        step = _Step(lambda: work(*arguments, **named))
        self._steps.append(step)
        return step

    def step(self) -> bool:
        """Run the oldest waiting job; return False if no job is waiting."""
        while self._steps:
            step = self._steps.popleft()
            if not step.done():
                step.run()
                return True
        return False

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._steps:
            self._steps.popleft().cancel()
