"""Bound: the limit of something that peers can fill, declared once beside the code that fills it.

HELD = Bound("held_orders", 1_000, AtLimit.REFUSE, "Orders that wait for a decision.")

if len(self._orders) >= HELD.limit:             the code uses the declaration,
    raise Refused(…)
HELD.use(lambda: len(self._orders))             the figures of its process show the use, and
TESTS = {"held_orders": (FILE, "test_…")}       `tests/actors/test_bound_walk.py` names the test that
                                                reaches it
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Protocol, TypeVar, runtime_checkable

from store.common.bounded_dict import BoundedDict

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class AtLimit(StrEnum):
    """What happens to what would exceed a limit."""

    REFUSE = "refuse"
    """It gets an error with the limit; what is there stays."""
    EVICT = "evict"
    """It takes the place of something that can be fetched or computed again, or is worth least."""
    CLOSE = "close"
    """A connection is closed."""
    WAIT = "wait"
    """It is not read or not begun until there is room."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The declaration of one bound. `limit` is the default if a setting may change it."""

    name: str
    limit: int
    at_limit: AtLimit
    help: str
    """What is counted, and in which unit if not in things."""

    def use(self, read: Callable[[], int | None], limit: Callable[[], int] | None = None) -> Use:
        """Return the use of this bound in one process.

        Args:
            read: returns what is in use now; of a bound that applies to each peer, the largest. None if it is
                not known.
            limit: returns the limit of the settings, 0 without one; None: that of the declaration.
        """
        return Use(self, read, limit or (lambda: self.limit))


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a bound one process uses."""

    bound: Bound
    read: Callable[[], int | None]
    limit: Callable[[], int]


@runtime_checkable
class Keeper(Protocol):
    """An object with state that peers can fill."""

    def bounds(self) -> Sequence[Use]:
        """Return the uses of its bounds."""


def uses_of(parts: Iterable[object]) -> Sequence[Use]:
    """Return the uses of the bounds of those parts that have some; of a bound that several share, one."""
    uses = chain.from_iterable(each.bounds() for each in parts if isinstance(each, Keeper))
    return tuple({each.bound: each for each in uses}.values())


class Newest(BoundedDict[KeyT, ValueT]):
    """A dict of what was set last; over the limit of its bound, what was set first is dropped."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound.limit)
        self._bound = bound

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)

    def use(self) -> Use:
        """Return the use of the bound."""
        return self._bound.use(self.__len__)
