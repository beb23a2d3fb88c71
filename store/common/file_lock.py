"""File locks that are tried again for a while."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable

EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
_RETRY_S = 0.02


def flock(descriptor: int) -> None:
    """Lock a whole file or directory. Raises OSError."""
    fcntl.flock(descriptor, EXCLUSIVE)


def try_lock(descriptor: int, wait_s: float = 0, lock: Callable[[int], object] = flock) -> bool:
    """Lock a file with `lock`, and try again for up to `wait_s`. Return False if it is locked elsewhere then.

    Raises OSError for another reason, for example because the file system has no locks.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            lock(descriptor)
        except (BlockingIOError, PermissionError):  # POSIX leaves open which
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_RETRY_S)
        else:
            return True
