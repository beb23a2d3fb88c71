"""Large tables as JSON, in pieces: to encode 20,000 rows in one go would hold the loop, and the GIL."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

ROWS_A_PIECE = 1_000


def table_pieces(
    head: Mapping[str, Any], name: str, table: Mapping[str, Mapping[int, int]]
) -> Iterator[bytes]:
    """The JSON of `head` with `table` as its last member, called `name`, a thousand rows or so a piece.

    The table may change between two pieces: each row is as it was when its piece was made.
    """
    piece = [orjson.dumps(head)[:-1], b"," if head else b"", orjson.dumps(name), b":{"]
    rows = 0
    for number, key in enumerate(list(table)):
        piece += [b",\n" if number else b"\n", orjson.dumps(key), b":{"]
        entries = list(table.get(key, {}).items())
        for at in range(0, len(entries), ROWS_A_PIECE):
            some = dict(entries[at : at + ROWS_A_PIECE])
            piece += [b"," if at else b"", orjson.dumps(some, option=orjson.OPT_NON_STR_KEYS)[1:-1]]
            rows += len(some)
            if rows >= ROWS_A_PIECE:
                yield b"".join(piece)
                piece, rows = [], 0
        piece.append(b"}")
        rows += 1
    yield b"".join([*piece, b"\n}}\n"])
