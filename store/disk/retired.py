"""Files that have left a store: unlinked at once, let go when the last slice in flight is gone (law 10).

Both run in the background: unlinking a file of 1 GiB and unmapping it take tens of milliseconds each.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from store.clock import NS_PER_MS
from store.disk.disk_use import DiskProbe, DiskState, survey


class RetiredFile:
    """A file that nothing in the store leads to any more."""

    def __init__(self, path: Path, release: Callable[[], bool] = lambda: True) -> None:
        """`release` unmaps and closes it, and tells whether it could; it is asked again until it can."""
        self.path = path
        self.is_unlinked = False
        self.since_ns = 0  # when it was retired
        self.is_told = False  # that it cannot be removed
        self._let_go = release

    def leave(self) -> bool:
        """Unlink it, and let go of it; tells whether that is done. Raises OSError."""
        if not self.is_unlinked:
            self.path.unlink(missing_ok=True)
            self.is_unlinked = True
        return self._let_go()


class RemoveJob:
    """Removes files; `left` are those still in use, or not removed because of an error."""

    def __init__(self, files: Sequence[RetiredFile]) -> None:
        self.left = list(files)

    def run(self) -> None:
        """Do it. Raises OSError, when all have been tried."""
        left, error = [], None
        for file in self.left:
            try:
                if not file.leave():
                    left.append(file)
            except OSError as failure:
                left.append(file)
                error = failure
        self.left = left
        if error is not None:
            raise error


class RemoveTreeJob:
    """Removes a directory that nothing in the store leads to any more, with all that is in it."""

    def __init__(self, path: Path, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """It may be gone already. `is_given_up` is asked again and again: the rest may stay."""
        self.path = path
        self._is_given_up = is_given_up

    def run(self) -> None:
        """Do it. Raises OSError."""
        for directory, _, names in os.walk(self.path, topdown=False):
            if self._is_given_up():
                return
            for name in names:
                os.unlink(f"{directory}/{name}")  # noqa: PTH108 - of 20,000 files
            os.rmdir(directory)  # noqa: PTH106


class SurveyJob:
    """Looks at the disks, and at when the oldest log files were last changed."""

    def __init__(
        self, logs: Sequence[Path], derived: Path, files: Sequence[tuple[int, Path]], probe: DiskProbe
    ) -> None:
        """`files` are the candidates by their first offset, the oldest first."""
        self.state: DiskState | None = None
        self.changed_ms: dict[int, int] = {}
        self._logs = logs
        self._derived = derived
        self._files = files
        self._probe = probe

    def run(self) -> None:
        """Do it. Raises OSError."""
        self.state = survey(self._logs, self._derived, self._probe)
        self.changed_ms = {base: path.stat().st_mtime_ns // NS_PER_MS for base, path in self._files}
