"""How long tests wait for what comes by itself.

The bound matters only where it never comes. A shared machine may stand still for half a minute, and what
needs seconds takes minutes then: a bound that is near to what is usual tests the machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 180.0
BEYOND_PATIENCE_S = 2 * PATIENCE_S
"""What must not have to be waited for ends only then: whoever waits for it has lost his patience before."""


def wait_until(claim: Callable[[], object], what: str = "what the test waits for") -> None:
    """Ask again and again until it holds. Raises AssertionError when it does not within PATIENCE_S."""
    pause = threading.Event()
    deadline_s = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
        pause.wait(0.01)
