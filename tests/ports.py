"""Ports for the servers that tests start and restart.

They are outside of the ephemeral range of Linux: otherwise a connection could occupy the port while its
server restarts.
"""

from __future__ import annotations

import random

from cluster.driver.preflight import check_port

PORTS = range(61_010, 65_500)
"""Above the ephemeral ports of Linux (32768 to 60999); Ray's workers use other ports by default."""
TRIES = 1000


def free_port(*neighbours: int) -> int:
    """Return a free port of 127.0.0.1 whose `neighbours` (distances from it) are free too."""
    for _ in range(TRIES):
        port = random.choice(PORTS)  # at random: other test runs search for ports at the same time
        if not any(check_port("127.0.0.1", port + distance) for distance in (0, *neighbours)):
            return port
    raise AssertionError(f"no free port with free neighbours {neighbours} in {TRIES} tries")
