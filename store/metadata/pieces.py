"""Encode a large table as JSON in pieces.

To encode 20,000 rows in one call would block the event loop, and hold the GIL.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import orjson

ROWS_PER_PIECE = 1_000
_READABLE = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def content_pieces(content: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the JSON of the object `content`, of which one member may be a large table of objects.

    A small object is one piece. `content` must not change between two pieces.
    """
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    name = max(tables, key=lambda each: len(tables[each]), default="")
    if len(tables.get(name, ())) <= ROWS_PER_PIECE:
        yield orjson.dumps(content, option=_READABLE)
        return
    table = list(tables[name].items())
    head = {other: value for other, value in content.items() if other != name}
    yield orjson.dumps(head)[:-1] + (b"," if head else b"") + orjson.dumps(name) + b":{\n"
    for at in range(0, len(table), ROWS_PER_PIECE):
        some = dict(table[at : at + ROWS_PER_PIECE])
        yield (b",\n" if at else b"") + orjson.dumps(some, option=orjson.OPT_NON_STR_KEYS)[1:-1]
    yield b"\n}}\n"


class Rows(Protocol):
    """Numbers by key and number."""

    def __iter__(self) -> Iterator[str]: ...

    def get(self, key: str, default: Mapping[int, int], /) -> Mapping[int, int]:
        """Return the numbers of a key."""


def table_pieces(head: Mapping[str, Any], name: str, table: Rows) -> Iterator[bytes]:
    """Yield the JSON of the object `head` with an additional last member `name`, the nested dict `table`.

    Each piece has about 1,000 rows, the inner entries of `table`. The table may change between two pieces: a
    row is encoded as it is when its piece is produced.
    """
    piece = [orjson.dumps(head)[:-1], b"," if head else b"", orjson.dumps(name), b":{"]
    rows = 0
    for number, key in enumerate(list(table)):
        piece += [b",\n" if number else b"\n", orjson.dumps(key), b":{"]
        entries = list(table.get(key, {}).items())
        for at in range(0, len(entries), ROWS_PER_PIECE):
            some = dict(entries[at : at + ROWS_PER_PIECE])
            piece += [b"," if at else b"", orjson.dumps(some, option=orjson.OPT_NON_STR_KEYS)[1:-1]]
            rows += len(some)
            if rows >= ROWS_PER_PIECE:
                yield b"".join(piece)
                piece, rows = [], 0
        piece.append(b"}")
        rows += 1
    yield b"".join([*piece, b"\n}}\n"])


def changed_names(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the keys of a table whose entry was added, changed or removed, sorted."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
