"""Ending long work from outside: however many signals say so at once, it is one KeyboardInterrupt."""

from __future__ import annotations

import signal
import time
from types import FrameType

REPEATED_S = 5.0


def interrupt_once() -> None:
    """From now on let SIGINT and SIGTERM raise KeyboardInterrupt; those that come within
    `REPEATED_S` of one another count as one.

    `timeout` signals a whole process group, and `uv run` passes on what it gets: the second of the two would
    end the tidying up that the first has begun.
    """
    told_s = float("-inf")

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal told_s
        before_s, told_s = told_s, time.monotonic()
        if told_s - before_s > REPEATED_S:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
