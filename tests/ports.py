"""Ports for the servers that tests start and restart.

They are outside of the ephemeral range of Linux: otherwise a connection could occupy the port while its
server restarts. Each port is reserved, as test runs and their workers search for ports at the same time.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import tempfile
from pathlib import Path
from typing import BinaryIO

from cluster.control.preflight import check_port

PORTS = (*range(20_000, 32_700), *range(61_010, 65_500))
"""Below and above the ephemeral ports of Linux (32768 to 60999), above those of Ray's workers (to 19999)."""
TRIES = 1000

_reserved: set[int] = set()


def free_port(*neighbours: int) -> int:
    """Return a free port of 127.0.0.1 whose `neighbours` (distances from it) are free too.

    None of them is returned again, in this process or, while this process runs, in another one.
    """
    for _ in range(TRIES):
        port = random.choice(PORTS)
        ports = [port + distance for distance in (0, *neighbours)]
        if all(map(_reserve, ports)) and not any(check_port("127.0.0.1", each) for each in ports):
            return port
    raise AssertionError(f"no free port with free neighbours {neighbours} in {TRIES} tries")


def _reserve(port: int) -> bool:
    """Return whether no one else has `port`; the lock of its byte ends with this process."""
    if port in _reserved:
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    _reserved.add(port)
    return True


@functools.cache
def _reservations() -> BinaryIO:
    """Return the file with a byte for each port; it stays open, as closing it would end all locks."""
    return (Path(tempfile.gettempdir()) / f"raymq-test-ports-{os.getuid()}").open("ab")
