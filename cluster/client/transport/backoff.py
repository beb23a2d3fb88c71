"""Exponential backoff with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Delays between attempts: they double from `first_ms` to `last_ms`, each minus a random part up to 20 %.

    `seed` makes the random part reproducible in tests.
    """

    def __init__(self, first_ms: int = 50, last_ms: int = 1_000, seed: int | None = None) -> None:
        self._first_ms = first_ms
        self._last_ms = last_ms
        self._next_ms = first_ms
        self._seed = seed
        self._random: random.Random | None = None  # created at first use: seeding is slower than a send

    def next_ms(self) -> float:
        """Return the next delay in milliseconds."""
        delay_ms = self._next_ms
        if self._random is None:
            self._random = random.Random(self._seed)
        self._next_ms = min(2 * delay_ms, self._last_ms)
        return delay_ms * (1 - 0.2 * self._random.random())

    def reset(self) -> None:
        """Return to the first delay. Call it after a success."""
        self._next_ms = self._first_ms
