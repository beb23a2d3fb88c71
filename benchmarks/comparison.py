"""The start of each comparison with another broker, and its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cluster.interrupts import interrupt_once
from tests.compat.build import BuildFailed, JavaNotFound


def run_comparison(compare: Callable[[], None], *errors: type[Exception]) -> int:
    """Call `compare`; return 0, 2 after one of the errors or without Java, or 130 after an interrupt.

    An interrupt or termination also stops the processes that `compare` has started.
    """
    expected: tuple[type[Exception], ...] = (JavaNotFound, BuildFailed, *errors)
    interrupt_once()
    try:
        compare()
    except expected as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; all processes were stopped", file=sys.stderr)
        return 130
    return 0
