"""CompiledLater: a function whose compiled twin takes over after many messages.

    plain ──→ KERNELS_FROM messages in this process ──→ a thread loads numba ──→ compiled, from then on

Loading numba takes a second of CPU time, during which the plain function is used: a command that reads a
few messages never pays for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

KERNELS_FROM = 50_000


class CompiledLater(Generic[Parameters, Result]):
    """Callable with the plain function's signature; shared by all clients of a process."""

    def __init__(
        self, plain: Callable[Parameters, Result], load: Callable[[], Callable[Parameters, Result]]
    ) -> None:
        """`load` imports the twin; it is called once, in a thread."""
        self._function = plain
        self._load = load
        self._messages_left = KERNELS_FROM
        self._counting = threading.Lock()  # listeners' threads decode at the same time
        self.loading: threading.Thread | None = None

    def __call__(self, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        """Call the plain or the compiled function. Raises as the plain one."""
        return self._function(*arguments, **named)

    def did(self, messages: int) -> None:
        """Count `messages` more; at KERNELS_FROM start to load the compiled function."""
        if self.loading is not None:
            return
        with self._counting:
            self._messages_left -= messages
            if self.loading is None and self._messages_left <= 0:
                # Not a daemon: an interpreter that exits during this import may crash.
                thread = threading.Thread(target=self._take_over, name="raymq-load-kernels")
                with suppress(RuntimeError):  # no thread is available: try again with the next messages
                    thread.start()
                    self.loading = thread

    def _take_over(self) -> None:
        self._function = self._load()  # if that fails, the thread logs why, and the plain one stays
