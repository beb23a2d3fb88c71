"""Encode a large table as JSON in pieces.

To encode 20,000 rows in one call would block the event loop, and hold the GIL.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

ROWS_PER_PIECE = 1_000


def table_pieces(
    head: Mapping[str, Any], name: str, table: Mapping[str, Mapping[int, int]]
) -> Iterator[bytes]:
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
