"""Entry point of the `raymq` script, and its handling of Ctrl-C.

During imports and after the command has finished, Ctrl-C ends the process immediately, without a traceback.
While a command runs, it raises KeyboardInterrupt, so that the command can clean up. This module imports no
other module of RayMQ, to start fast.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Run the `raymq` script."""
    # A shell starts background processes with SIGINT ignored; leave that as it is.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cluster.cli.main import main as run

    run()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C inside, if `main` has set it to end the process."""
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
