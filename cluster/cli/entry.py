"""Where the `raymq` script begins, and what Ctrl-C does.

While modules are imported, and when all is done, an interrupt ends the process as it ends any program: at
once and without a word. In between, where a command works, it is a KeyboardInterrupt, so that the command can
leave things in order. Nothing else of ours is imported here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """What the `raymq` script runs."""
    # Not where a shell started this in the background, with interrupts ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cluster.cli.main import main as run

    run()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C be a KeyboardInterrupt within, where `main` had it end the process."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
