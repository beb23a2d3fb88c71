"""Background: a thread of a test, such as a sender, that works until a block ends."""

from __future__ import annotations

import threading
from typing import Self


class Background:
    """Runs `run` of a subclass in a thread during a `with` block; the end of the block awaits the thread."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        """Set at the end of the block: `run` waits for it between two steps, and returns then."""
        self._thread = threading.Thread(target=self.run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()

    def run(self) -> None:
        """Work until `is_over` is set."""
        raise NotImplementedError
