"""Ports for what the tests start, and start again: none that Linux gives to a connection in the meantime."""

from __future__ import annotations

import random

from cluster.driver.preflight import check_port

PORTS = range(61_010, 65_500)
"""Above those that Linux gives to who asks for any (32768 to 60999); Ray's workers have others by default."""
TRIES = 1000


def free_port(*neighbours: int) -> int:
    """Give a port of 127.0.0.1 that is free, and so is each at the distances `neighbours` from it."""
    for _ in range(TRIES):
        port = random.choice(PORTS)  # not in turn: other test runs look for ports beside this one
        if not any(check_port("127.0.0.1", port + distance) for distance in (0, *neighbours)):
            return port
    raise AssertionError(f"no free port with free neighbours {neighbours} in {TRIES} tries")
