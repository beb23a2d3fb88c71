"""CompiledLater: a plain Python function that is replaced by a compiled one after many messages.

    plain function ──→ KERNELS_FROM messages counted ──→ a thread loads numba ──→ compiled function

Loading numba takes a second of CPU time. A process that handles only a few messages never loads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

KERNELS_FROM = 50_000
"""Number of messages after which the compiled function is loaded."""


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
        self._function = self._load()  # if it raises, threading logs the error and the plain function stays
