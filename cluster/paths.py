"""Where a cluster keeps its things: RAYMQ_HOME, by default `~/.raymq/<cluster>`, and no working directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME_ENV = "RAYMQ_HOME"


def home_of(cluster: str) -> Path:
    """The absolute home directory of a cluster; it need not exist."""
    given = os.environ.get(HOME_ENV)
    return Path(given).expanduser().absolute() if given else Path.home() / ".raymq" / cluster


@contextmanager
def only_one_driver(home: Path) -> Iterator[None]:
    """Hold the home's driver lock: two `up` or `down` of one cluster run one after the other."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "driver.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
