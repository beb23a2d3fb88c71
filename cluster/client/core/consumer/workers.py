"""The threads in which listeners run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

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
        self._idle = 0
        self._lock = threading.Lock()

    def put(self, job: Job) -> None:
        """Run `job` soon. It must not raise."""
        self._jobs.put(job)
        if self._idle < self._jobs.qsize() and len(self._threads) < self._count:
            thread = threading.Thread(
                target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            job = self._jobs.get()
            with self._lock:
                self._idle -= 1
            if job is None:
                return
            with suppress(RuntimeError):  # the loop that waits for the job's end is closed: nobody does
                job()

    def stop(self) -> None:
        """Let the threads end when they have done what was put; does not wait."""
        for _ in self._threads:
            self._jobs.put(None)
