"""How long to wait before the next attempt."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first_ms` to `last_ms`, each with up to a fifth taken off, so that clients
    spread.
    """

    def __init__(self, first_ms: int = 50, last_ms: int = 1_000, seed: int | None = None) -> None:
        self._first_ms = first_ms
        self._last_ms = last_ms
        self._next_ms = first_ms
        self._seed = seed
        self._random: random.Random | None = None  # made at first use: a seed costs more than a send

    def next_ms(self) -> float:
        """Return the next delay."""
        delay_ms = self._next_ms
        if self._random is None:
            self._random = random.Random(self._seed)
        self._next_ms = min(2 * delay_ms, self._last_ms)
        return delay_ms * (1 - 0.2 * self._random.random())

    def reset(self) -> None:
        """Start again from the first delay: an attempt succeeded."""
        self._next_ms = self._first_ms
