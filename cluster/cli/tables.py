"""Tables that fit the width of the terminal.

If a table is too wide, optional columns are omitted; if it is still too wide, each row is printed as a list
of fields. Names of values have their unit: `_ms` is a point in time, `_s` a duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

Row = Mapping[str, Any]

A_TIME_MS = 1_000_000_000_000
_CALENDAR_END_MS = 253_402_214_400_000
"""Values outside of these limits are not shown as times; the first is in September 2001."""

FOLDED_AT = 24
"""Columns wider than this may be folded to this width before a table counts as too wide."""

STYLE = "style"
"""The key of a row's style, which is not a column."""

HEADINGS = {"store_ms": "stored", "born_ms": "born", "last_ms": "last message", "shown": "body", "up_s": "up"}
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def fitted(
    columns: Sequence[str], rows: Sequence[Row], width: int, spared: Sequence[str] = ()
) -> RenderableType:
    """Return a table of at most `width` characters; columns in `spared` are omitted first, in this order."""
    left = list(columns)
    optional = [column for column in spared if column in left]
    while optional and _least_width(left, rows) > width:
        left.remove(optional.pop(0))
    return table_of(left, rows) if _least_width(left, rows) <= width else _one_by_one(columns, rows)


def table_of(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """Return rows as a rich table with numbers aligned to the right."""
    from rich.table import Table

    table = Table(header_style="bold")
    for column in columns:
        is_number = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(heading(column), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *(escaped_text(shown(column, row.get(column))) for column in columns), style=row.get(STYLE)
        )
    return table


def escaped(text: str) -> str:
    """Return `text` with control, format and other invisible characters as `\\x1b`.

    Texts of other users (keys, properties, names, remarks) could otherwise control the terminal or pretend to
    be other output.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def escaped_text(text: str) -> Text:
    """Return `text`, escaped, for rich, which then interprets no markup or emoji codes in it."""
    from rich.text import Text

    return Text(escaped(text))


def heading(column: str) -> str:
    """Return the heading of a column."""
    return HEADINGS.get(column, column.replace("_", " "))


def shown(name: str, value: object) -> str:
    """Return a value as text: thousands separated, `_ms` as local time, None as an empty text."""
    if value is None:
        return ""
    if name.endswith("_ms") and isinstance(value, int) and A_TIME_MS < value < _CALENDAR_END_MS:
        return datetime.fromtimestamp(value / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    if name == "up_s" and isinstance(value, int):
        return span_of(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(str, value))
    return str(value)


def span_of(seconds: int) -> str:
    """Return a duration in its two largest units: `3 d 4 h`, `12 min 5 s`, `8 s`."""
    for (size, name), (next_size, next_name) in pairwise(_SPANS):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size} {name} {rest} {next_name}" if rest else f"{seconds // size} {name}"
    return f"{seconds} s"


def _least_width(columns: Sequence[str], rows: Sequence[Row]) -> int:
    """Return the minimum width of a table, borders included."""
    from rich.cells import cell_len

    widths = (
        max([cell_len(heading(column)), *(cell_len(shown(column, row.get(column))) for row in rows)])
        for column in columns
    )
    return sum(min(width, FOLDED_AT) + 3 for width in widths) + 1


def _one_by_one(columns: Sequence[str], rows: Sequence[Row]) -> RenderableType:
    """Return each row as lines of `name  value`, separated by empty lines."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table

    parts = []
    for number, row in enumerate(rows):
        part = Table.grid(padding=(0, 2))
        part.add_column(style="bold", no_wrap=True)
        part.add_column(overflow="fold")
        for column in columns:
            part.add_row(heading(column), escaped_text(shown(column, row.get(column))), style=row.get(STYLE))
        parts.append(Padding(part, (1 if number else 0, 0, 0, 0)))
    return Group(*parts)
