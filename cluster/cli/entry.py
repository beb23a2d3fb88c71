"""Entry point of the `raymq` script.

During imports and after the command has finished, Ctrl-C ends the process immediately, without a traceback.
While a command runs, it raises KeyboardInterrupt, so that the command can clean up (`cluster.interrupts`).
This module imports no other module of RayMQ, to start fast.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the `raymq` script."""
    # A shell starts background processes with SIGINT ignored; leave that as it is.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cluster.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
