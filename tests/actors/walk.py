"""Walks over the texts and lists of headers and bodies, for tests that send too long ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from actors.wire.header import FrameText
from actors.wire.hot_headers import LONG_NAMES, SendMessageHeader, SendMessageHeaderV1
from tests.actors.header_names import least_fields

LONG_TEXT = "x" * 1_000_000
ENTRIES = 100_000


def long_headers(header_type: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield, for each text field of a header type, its key and header fields in which it is too long.

    The key is empty if the handler checks the length itself.
    """
    if not hasattr(header_type, "__struct_fields__"):
        return
    least = least_fields(header_type)
    if issubclass(header_type, SendMessageHeader):  # the properties are checked after topic and queue
        least |= {"b": "T", "topic": "T", "queueId": "0", "e": "0"}
    for field in msgspec.structs.fields(header_type):
        kind = inspect.type_info(field.type)
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        if any(isinstance(each, inspect.StrType) for each in kinds):
            key = LONG_NAMES[field.encode_name] if header_type is SendMessageHeaderV1 else field.encode_name
            is_checked_later = field.type == FrameText or field.type == FrameText | None
            yield "" if is_checked_later else field.encode_name, {**least, key: LONG_TEXT}


def long_bodies(body_type: Any, more: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield, for each text and list in a body type, its path and a JSON value in which it is too long."""
    for path, value in _long_values(inspect.type_info(body_type)):
        yield path, {**more, **value}


def _long_values(kind: inspect.Type) -> Iterator[tuple[str, Any]]:
    match kind:
        case inspect.StructType():
            for field in kind.fields:
                for path, value in _long_values(field.type):
                    yield f"{field.encode_name}{path}", {field.encode_name: value}
        case inspect.StrType():
            yield "", LONG_TEXT
        case inspect.ListType() | inspect.VarTupleType():
            yield "[]", [_least(kind.item_type)] * ENTRIES
            for path, value in _long_values(kind.item_type):
                yield f"[0]{path}", [value]
        case inspect.DictType():
            yield "{}", {str(index): _least(kind.value_type) for index in range(ENTRIES)}
            yield "{key}", {LONG_TEXT: _least(kind.value_type)}
            for path, value in _long_values(kind.value_type):
                yield f"{{0}}{path}", {"0": value}
        case inspect.UnionType():
            yield from _long_values(kind.types[0])
        case inspect.Metadata():
            yield from _long_values(kind.type)


def _least(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StrType():
            return "1"
        case inspect.IntType():
            return 1
        case inspect.StructType() | inspect.DictType():
            return {}
        case inspect.AnyType():
            return ["T", "b", 0, 1]
        case _:
            return []
