"""Background jobs that remove files of a store and measure its disks.

A retired file is unlinked immediately, and unmapped when no response in flight refers to it any more
(docs/design.md#invariant-10). Unlinking and unmapping a file of 1 GiB take tens of milliseconds each.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from store.common.clock import NS_PER_MS
from store.disk.disk_use import DiskProbe, DiskState, survey


class RetiredFile:
    """A file that is no longer part of the store and must be deleted from the disk."""

    def __init__(self, path: Path, release: Callable[[], bool] = lambda: True) -> None:
        """Create a retired file.

        `release` unmaps and closes the file. It returns False while the file is in use, and must then be
        called again.
        """
        self.path = path
        self.is_unlinked = False
        self.since_ns = 0  # monotonic time of its retirement
        self.is_failure_logged = False  # the failure to remove it has been logged
        self._release = release

    def remove(self) -> bool:
        """Unlink and release the file.

        Returns False if it is still in use. Raises OSError if unlinking fails.
        """
        if not self.is_unlinked:
            self.path.unlink(missing_ok=True)
            self.is_unlinked = True
        return self._release()


class RemoveJob:
    """Deletes retired files from the disk.

    Afterwards, `left` holds the files that are still in use or could not be deleted.
    """

    def __init__(self, files: Sequence[RetiredFile]) -> None:
        self.left = list(files)

    def run(self) -> None:
        """Try to delete all files, then raise the last OSError if there was one."""
        left, error = [], None
        for file in self.left:
            try:
                if not file.remove():
                    left.append(file)
            except OSError as failure:
                left.append(file)
                error = failure
        self.left = left
        if error is not None:
            raise error


class RemoveTreeJob:
    """Deletes a directory tree that is no longer part of the store."""

    def __init__(self, path: Path, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Create a job for the tree at `path`, which need not exist.

        `is_cancelled` is called before each directory; if it returns True, the rest of the tree is kept.
        """
        self.path = path
        self._is_cancelled = is_cancelled

    def run(self) -> None:
        """Delete the tree. Raises OSError."""
        for directory, _, names in os.walk(self.path, topdown=False):
            if self._is_cancelled():
                return
            for name in names:
                os.unlink(f"{directory}/{name}")  # noqa: PTH108 - runs for 20,000 files
            os.rmdir(directory)  # noqa: PTH106


class SurveyJob:
    """Measures the usage of the store's disks, and reads the modification times of the oldest log files.

    `run` sets `state`, the usage of the disks, and `changed_ms`, which maps the CommitLog offset at which a
    log file begins to the file's modification time.
    """

    def __init__(
        self, logs: Sequence[Path], derived: Path, files: Sequence[tuple[int, Path]], probe: DiskProbe
    ) -> None:
        """Create a job.

        Args:
            logs: The CommitLog's directories.
            derived: The directory of consume queues and index files.
            files: Log files that may be deleted, the oldest first: the CommitLog offset at which each begins,
                and
                its path.
            probe: Returns the usage of the disk that contains a path.
        """
        self.state: DiskState | None = None
        self.changed_ms: dict[int, int] = {}
        self._logs = logs
        self._derived = derived
        self._files = files
        self._probe = probe

    def run(self) -> None:
        """Measure disk usage and read the modification times. Raises OSError."""
        self.state = survey(self._logs, self._derived, self._probe)
        self.changed_ms = {base: path.stat().st_mtime_ns // NS_PER_MS for base, path in self._files}
