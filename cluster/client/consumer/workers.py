"""The threads in which listeners run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from store.logs import get_logger

_log = get_logger(__name__)

Job = Callable[[], None]


class Workers:
    """At most `count` threads, started as they are needed; jobs are taken in the order in which they were
    put.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # One for each that waits, less those for whom a job has been put. No lock: listeners' threads would
        # stand in line for it.
        self._idle: deque[None] = deque()

    def put(self, job: Job) -> None:
        """Run `job` soon. It must not raise."""
        self._jobs.put(job)
        if not self._takes_idle() and len(self._threads) < self._count:
            thread = threading.Thread(
                target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)  # first: its job may put another one
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads to give: those that run do it
                self._threads.remove(thread)
                if not self._threads:
                    raise

    def _takes_idle(self) -> bool:
        try:
            self._idle.pop()
        except IndexError:
            return False
        return True

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                self._idle.append(None)
                job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception:  # noqa: BLE001 -- a bug of ours in one job must not cost the others their thread
                _log.exception("job_failed", thread=threading.current_thread().name)

    def stop(self) -> None:
        """Let the threads end when they have done what was put; does not wait."""
        for _ in self._threads:
            self._jobs.put(None)
