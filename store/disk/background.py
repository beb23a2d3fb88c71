"""Work that must not run on the store's own thread: it waits for the disk.

One thread, started when first needed.

The owner submits jobs and later collects them; nothing of the store is touched in between.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from store.disk.files import replace_file, sync_directory, sync_files


class Job(Protocol):
    """Something to run elsewhere."""

    def run(self) -> None:
        """Do it. Raises OSError."""


class CheckpointJob:
    """Make derived files durable, then say so in the checkpoint and the summary."""

    def __init__(
        self,
        paths: Sequence[str],
        directories: Sequence[Path],
        checkpoint: tuple[Path, bytes],
        summary_path: Path,
        summary: Callable[[], bytes],
        position: int,
    ) -> None:
        """`checkpoint` is where and what; `summary` gives the content of the file at `summary_path`, by which
        everything before `position` was dispatched.
        """
        self._paths = paths
        self._directories = directories
        self._checkpoint = checkpoint
        self._summary_path = summary_path
        self._summary = summary
        self.position = position
        self.is_synced = False

    def run(self) -> None:
        """Do it. Raises OSError."""
        sync_files(self._paths, self._summary_path.parent)
        for directory in self._directories:
            if directory.is_dir():
                sync_directory(directory)
        self.is_synced = True
        replace_file(*self._checkpoint)
        replace_file(self._summary_path, self._summary())


class Background:
    """Runs jobs one after the other; `collect` gives back those that have ended, with their errors."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Job, OSError | None]] = deque()
        self._thread: threading.Thread | None = None
        self.on_ended: Callable[[], None] = _nobody
        """Called on the thread of the jobs whenever one has ended: there is something to collect."""

    @property
    def has_ended_jobs(self) -> bool:
        """Whether `collect` would give something."""
        return bool(self._ended)

    def submit(self, job: Job) -> None:
        """Run `job` when those before it are done, even if one of them has ended the thread by a fault."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="store-background", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def collect(self) -> list[tuple[Job, OSError | None]]:
        """The jobs that have ended since the last call."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def finish(self) -> None:
        """Wait for all that is under way, and end the thread; the next `submit` starts another."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: OSError | None = None
            try:
                job.run()
            except OSError as failure:
                error = failure
            self._ended.append((job, error))
            self.on_ended()


def _nobody() -> None:
    """For an owner that looks by itself."""
