"""Lists with a filter, an order and pages, for tables of thousands of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from cluster.console.api_errors import ApiError
from cluster.console.routes import Parameters

T = TypeVar("T")

ROWS_MAX = 500


class ListParameters(Parameters, frozen=True, kw_only=True):
    """Part of a list: rows that contain `match`, in the order `sort` (`-name`: descending), one page."""

    match: Annotated[str, msgspec.Meta(max_length=255)] = ""
    sort: Annotated[str, msgspec.Meta(max_length=40)] = ""
    page: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    size: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = 50


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page of a list; `total` counts the rows of all pages."""

    rows: Sequence[T]
    total: int
    page: int
    size: int


def listing(
    rows: Sequence[T], given: ListParameters, text: Callable[[T], str], sortable: Sequence[str]
) -> Listing[T]:
    """Return the wanted page of `rows`; unknown values are last in either order. Raises ApiError."""
    wanted = given.match.casefold()
    found = [row for row in rows if wanted in text(row).casefold()]
    if given.sort:
        name = given.sort.removeprefix("-")
        if name not in sortable:
            raise ApiError(400, f"sort is {given.sort!r}", f"Use one of: {', '.join(sortable)}.")
        value: Callable[[Any], Any] = attrgetter(name)
        known = [row for row in found if value(row) is not None]
        unknown = [row for row in found if value(row) is None]
        found = [*sorted(known, key=value, reverse=given.sort.startswith("-")), *unknown]
    begin = (given.page - 1) * given.size
    return Listing(found[begin : begin + given.size], len(found), given.page, given.size)
