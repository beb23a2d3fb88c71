"""Bodies of task messages and of results: maps in JSON or MessagePack, which the first byte tells apart.

    <queue>          id  task  args  kwargs  unique
    <queue>_results  id  status  result  created_ms  recall_handle

The id of the task is the key of both messages. The first final result of a task counts.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
import orjson

from jobs.job_errors import BodyInvalid

SUCCESS, FAILURE, REVOKED = "SUCCESS", "FAILURE", "REVOKED"
PENDING, UNKNOWN = "PENDING", "UNKNOWN"
FINAL: Final = frozenset({SUCCESS, FAILURE, REVOKED})


class Task(msgspec.Struct):
    """A call of the handler `task`.

    With `unique`, the caller chose the id: of several messages with it, only the first one runs.
    """

    id: str
    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    unique: bool = False


class Outcome(msgspec.Struct):
    """A result of a task, or a PENDING one with the handle of its timer message."""

    id: str
    status: str
    result: Any = None
    created_ms: int | None = None
    recall_handle: str = ""


BodyT = TypeVar("BodyT", Task, Outcome)


def encode(content: Task | Outcome, serializer: str) -> bytes:
    """Return the body. Raises BodyInvalid if a value cannot be encoded."""
    try:
        if serializer == "msgpack":
            return msgspec.msgpack.encode(content)
        return orjson.dumps(msgspec.structs.asdict(content))  # unlike msgspec, it refuses bytes
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        hint = "; serializer='msgpack' takes bytes, too" if serializer == "json" else ""
        raise BodyInvalid(f"task {content.id} cannot be encoded as {serializer}: {error}{hint}") from error


def decode(body: bytes, kind: type[BodyT]) -> BodyT:
    """Return the content of a body. Raises BodyInvalid."""
    try:
        return (msgspec.json if body[:1] == b"{" else msgspec.msgpack).decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise BodyInvalid(
            f"the body is not a {kind.__name__.lower()} in JSON or MessagePack: {error}"
        ) from error
