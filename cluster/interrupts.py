"""Turns SIGINT and SIGTERM into one KeyboardInterrupt, even if several arrive together."""

from __future__ import annotations

import signal
import time
from types import FrameType

REPEATED_S = 5.0


def interrupt_once() -> None:
    """Raise KeyboardInterrupt on SIGINT and SIGTERM; ignore further signals within `REPEATED_S`.

    `timeout` signals the whole process group and `uv run` forwards its signals, so the process gets two. The
    second one must not interrupt the cleanup that the first one started.
    """
    last_s = float("-inf")

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s > REPEATED_S:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
