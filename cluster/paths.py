"""The home directory of a cluster: RAYMQ_HOME, by default `~/.raymq/<cluster>`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME_ENV = "RAYMQ_HOME"


def home_of(cluster: str) -> Path:
    """Return the absolute home directory of a cluster, which may not exist."""
    given = os.environ.get(HOME_ENV)
    return Path(given).expanduser().absolute() if given else Path.home() / ".raymq" / cluster


@contextmanager
def only_one_driver(home: Path) -> Iterator[None]:
    """Hold the driver lock of a home directory: only one command may change a cluster at a time."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "driver.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
