"""A function whose compiled twin takes over where there is enough to do.

    plain ──→ KERNELS_FROM messages in this process ──→ a thread loads numba ──→ compiled, from then on

To load numba takes a second of the processor, in which the plain one goes on: a command that reads a few
messages ends without ever having paid for it.
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
    """Called as the plain function is; for all clients of a process."""

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
        """What the function gives. Raises as the plain one."""
        return self._function(*arguments, **named)

    def did(self, messages: int) -> None:
        """So many messages more have come by."""
        if self.loading is not None:
            return
        with self._counting:
            self._messages_left -= messages
            if self.loading is None and self._messages_left <= 0:
                # No daemon: an interpreter that ends in the middle of this import may crash.
                thread = threading.Thread(target=self._take_over, name="raymq-load-kernels")
                with suppress(RuntimeError):  # no thread is to be had now: again with the next messages
                    thread.start()
                    self.loading = thread

    def _take_over(self) -> None:
        self._function = self._load()  # where that fails, the thread says why, and the plain one stays
