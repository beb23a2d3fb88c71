"""Lists with a filter, an order and pages, for tables of thousands of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from cluster.console.api_errors import ApiError

T = TypeVar("T")

Page = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Size = Annotated[int, msgspec.Meta(ge=1, le=500)]


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page of a list; `total` counts the rows of all pages."""

    rows: Sequence[T]
    total: int


def listing(
    rows: Sequence[T], match: str, sort: str, page: int, size: int, text: Callable[[T], str],
    sortable: Sequence[str],
) -> Listing[T]:  # fmt: skip
    """Return one page of the rows whose text contains `match`; unknown values are last in either order.

    `sort` is a name of `sortable`, with a minus for descending order, or empty. Raises ApiError.
    """
    found = [row for row in rows if match.casefold() in text(row).casefold()]
    if sort:
        name = sort.removeprefix("-")
        if name not in sortable:
            raise ApiError(400, f"sort is {sort[:40]!r}", f"Use one of: {', '.join(sortable)}.")
        value: Callable[[Any], Any] = attrgetter(name)
        known = [row for row in found if value(row) is not None]
        unknown = [row for row in found if value(row) is None]
        found = [*sorted(known, key=value, reverse=sort.startswith("-")), *unknown]
    return Listing(found[(page - 1) * size : page * size], len(found))
