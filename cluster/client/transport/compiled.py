"""CompiledLater: a plain Python function that is replaced by a compiled one after many messages.

    plain function ──→ KERNELS_FROM messages counted ──→ a thread loads numba ──→ compiled function

Loading numba takes a second of CPU time. A process that handles only a few messages never loads it. Without
numba (`raymq-client` does not install it) the plain functions stay; calls with tables need it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Generic, ParamSpec, TypeVar

from cluster.client.errors import PackageMissing

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

KERNELS_FROM = 50_000
"""Number of messages after which the compiled function is loaded."""
TABLE_PACKAGES = ("numpy", "numba", "pyarrow")


def check_tables(call: str) -> None:
    """Raise PackageMissing unless the packages are installed that `call`, which uses tables, needs."""
    if missing := [package for package in TABLE_PACKAGES if find_spec(package) is None]:
        raise PackageMissing(
            f"{call} needs {', '.join(missing)}, not installed: pip install 'raymq-client[tables]', or raymq"
        )


class CompiledLater(Generic[Parameters, Result]):
    """Callable that runs the plain function until the compiled one is loaded. Shared by all clients."""

    def __init__(
        self, plain: Callable[Parameters, Result], load: Callable[[], Callable[Parameters, Result]]
    ) -> None:
        """`load` imports and returns the compiled function; it is called once, in a thread."""
        self._function = plain
        self._load = load
        self._messages_left = KERNELS_FROM
        self._counting = threading.Lock()  # listeners' threads decode at the same time
        self.loading: threading.Thread | None = None

    def __call__(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        """Call the compiled function if it is loaded, else the plain one."""
        return self._function(*arguments, **named)

    def count(self, messages: int) -> None:
        """Count handled messages. At KERNELS_FROM, start to load the compiled function."""
        if self.loading is not None:
            return
        with self._counting:
            self._messages_left -= messages
            if self.loading is None and self._messages_left <= 0:
                # Not a daemon: an interpreter that exits during this import may crash.
                thread = threading.Thread(target=self._take_over, name="raymq-load-kernels")
                with suppress(RuntimeError):  # no thread available: retry at the next call
                    thread.start()
                    self.loading = thread

    def _take_over(self) -> None:
        # if it raises something else, threading logs the error; the plain function stays
        with suppress(ModuleNotFoundError):  # no numba
            self._function = self._load()
