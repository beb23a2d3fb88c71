"""Turns SIGINT and SIGTERM into KeyboardInterrupt: where a command can clean up, and only once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REPEATED_S = 5.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C inside, if the `raymq` script has set it to end the process."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


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
