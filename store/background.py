"""Work that must not run on the store's own thread: it waits for the disk.

One thread, started when first needed.

The owner submits jobs and later collects them; nothing of the store is touched in between.
"""

import queue
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from store.checkpoint import StoreCheckpoint
from store.files import replace_file, sync_directory, sync_files
from store.mapped_file import allocate_file
from store.summary import DerivedSummary


class Job(Protocol):
    """Something to run elsewhere."""

    def run(self) -> None:
        """Do it. Raises OSError."""


class AllocateJob:
    """Make the log file at `base` ahead of need."""

    def __init__(self, path: Path, base: int, size_bytes: int, scratch: Path) -> None:
        self.base = base
        self._path = path
        self._size_bytes = size_bytes
        self._scratch = scratch

    def run(self) -> None:
        """Allocate it. Raises OSError."""
        allocate_file(self._path, self._size_bytes, self._scratch)
        sync_directory(self._path.parent)


class CheckpointJob:
    """Make derived files durable, then say so in the checkpoint and the summary."""

    def __init__(
        self,
        paths: Sequence[str],
        directories: Sequence[Path],
        checkpoint_path: Path,
        checkpoint: StoreCheckpoint,
        summary_path: Path,
        summary: DerivedSummary,
    ) -> None:
        self._paths = paths
        self._directories = directories
        self._checkpoint_path = checkpoint_path
        self._checkpoint = checkpoint.encode()
        self._summary_path = summary_path
        self.summary = summary

    def run(self) -> None:
        """Do it. Raises OSError."""
        sync_files(self._paths, self._checkpoint_path.parent)
        for directory in self._directories:
            if directory.is_dir():
                sync_directory(directory)
        replace_file(self._checkpoint_path, self._checkpoint)
        replace_file(self._summary_path, self.summary.encode())


class Background:
    """Runs jobs one after the other; `collect` gives back those that have ended, with their errors."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Job, OSError | None]] = deque()
        self._thread: threading.Thread | None = None

    @property
    def has_ended_jobs(self) -> bool:
        """Whether `collect` would give something."""
        return bool(self._ended)

    def submit(self, job: Job) -> None:
        """Run `job` when those before it are done."""
        if self._thread is None:
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
