"""The body of a record of system topic `rmq_sys_raymq_meta`, queue 0: changed entries of a group's tables.

    {"entries": [["topic", "orders", {"topicName": "orders", ...}], ["group", "audit", null]]}
    {"full": "begin", "entries": [...]}  {"full": "more", ...}  {"full": "end", ...}
    {"full": "more", "entries": [], "queueEnds": {"orders": [[0, 1000], [1, 998]]}}

An entry is [kind, name, value]; null deletes it. The records from "begin" to "end" together have all entries,
and the ends of all queues, with which the dispatcher deals (`store.dispatch.queue_changes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from store.dispatch.queue_changes import ENDS_FIELD, ENDS_PROPERTIES

RECORD_BYTES: Final = 256 * 1024
"""Size at which the entries of one change continue in the next record; less with small log files."""

Key = tuple[str, str]
"""The kind and the name of an entry."""
QueueEnds = Sequence[tuple[int, int]]
"""Queue id and end of each queue of a topic."""
Row = TypeVar("Row", bound=tuple[Any, ...])
BEGIN, MORE, END = "begin", "more", "end"


class Entry(NamedTuple):
    """A changed entry of a table."""

    kind: str
    name: str
    value: Any
    """A JSON value; None deletes the entry."""


class MetaRecord(NamedTuple):
    """The content of one record."""

    entries: Sequence[Entry]
    part: str = ""
    """Which part of a full set it is; empty for changes."""


def encode_changes(
    entries: Sequence[Entry], record_bytes: int = RECORD_BYTES
) -> Iterator[tuple[bytes, Sequence[Entry]]]:
    """Yield the bodies of the records with these changes, and the entries in each."""
    for piece in _pieces(entries, record_bytes):
        yield orjson.dumps({"entries": list(map(list, piece))}), piece


def encode_full(
    entries: Sequence[Entry], ends: Mapping[str, QueueEnds] | None = None, record_bytes: int = RECORD_BYTES
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bodies and the properties of the records of a full set; `ends` are by topic."""
    pieces = [[], *_pieces(entries, record_bytes)]
    for number, piece in enumerate(pieces):
        yield orjson.dumps({"full": MORE if number else BEGIN, "entries": list(map(list, piece))}), b""
    for rows in _pieces(list((ends or {}).items()), record_bytes):
        yield orjson.dumps({"full": MORE, "entries": [], ENDS_FIELD: dict(rows)}), ENDS_PROPERTIES
    yield orjson.dumps({"full": END, "entries": []}), b""


def decode_meta(body: bytes | memoryview) -> MetaRecord:
    """Return the content of a body. Raises ValueError if it is not one of a meta record."""
    try:
        fields: Any = orjson.loads(body)
        part = fields.get("full", "")
        entries = [Entry(str(kind), str(name), value) for kind, name, value in fields["entries"]]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the body of a meta record: {error!r}") from error
    if part not in ("", BEGIN, MORE, END):
        raise ValueError(f"not the body of a meta record: full is {part!r}")
    return MetaRecord(entries, part)


def _pieces(entries: Sequence[Row], record_bytes: int) -> Iterator[Sequence[Row]]:
    piece: list[Row] = []
    size_bytes = 0
    for entry in entries:
        piece.append(entry)
        size_bytes += len(orjson.dumps(list(entry)))
        if size_bytes >= record_bytes:
            yield piece
            piece, size_bytes = [], 0
    if piece:
        yield piece
