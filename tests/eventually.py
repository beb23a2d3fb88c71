"""Wait for a condition in another thread, process or task: the only wait helper of the tests.

A limit only bounds how long a broken test takes to fail; it is not a performance requirement. It is
multiplied by the environment variable RAYMQ_TEST_TIME_SCALE (default 1), for slow or busy machines.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TIME_SCALE = float(os.environ.get("RAYMQ_TEST_TIME_SCALE", "1"))
LIMIT_S = 60.0 * TIME_SCALE
"""Limit of a blocking wait that normally ends early, such as ``event.wait(LIMIT_S)``."""
NEVER_S = 10 * LIMIT_S
"""Timeout that must not expire during the test: longer than any limit of the test."""
_POLL_INTERVAL_S = 0.01
_EAGER_POLLS = 100  # most conditions in a coroutine become true after a few turns of its event loop


def eventually(predicate: Callable[[], T], message: str = "", *, within_s: float = 60.0) -> T:
    """Call `predicate` until it returns a true value, and return that value.

    Args:
        predicate: called about every 10 ms; its exceptions propagate.
        message: name of the condition, for the failure text.
        within_s: limit in seconds, multiplied by RAYMQ_TEST_TIME_SCALE.

    Raises:
        AssertionError: the limit expired; the message contains the last value.
    """
    limit_s = within_s * TIME_SCALE
    deadline_s = time.monotonic() + limit_s
    pause = threading.Event()  # tests replace time.sleep
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < deadline_s, f"{message or predicate} is still {value!r} after {limit_s:g} s"
        pause.wait(_POLL_INTERVAL_S)


async def eventually_async(
    predicate: Callable[[], T | Awaitable[T]], message: str = "", *, within_s: float = 60.0
) -> T:
    """Like `eventually`, without blocking the event loop; `predicate` may be a coroutine function."""
    limit_s = within_s * TIME_SCALE
    deadline_s = time.monotonic() + limit_s
    attempts = 0
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline_s, f"{message or predicate} is still {value!r} after {limit_s:g} s"
        await asyncio.sleep(0 if attempts < _EAGER_POLLS else _POLL_INTERVAL_S)
        attempts += 1
