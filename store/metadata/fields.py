"""JSON objects by lists of their fields: nothing unknown is lost, and nothing mistyped is taken."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Field(NamedTuple):
    """A field of a JSON object: RocketMQ's name of it, the attribute that holds it, and its type."""

    name: str
    attribute: str
    kind: type


def read_fields(
    content: Mapping[str, Any], fields: tuple[Field, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The known fields by attribute, and the others as they are; null counts as absent. Raises ValueError."""
    known: dict[str, Any] = {}
    unknown = dict(content)
    for field in fields:
        value = unknown.pop(field.name, None)
        if value is not None:
            known[field.attribute] = typed(value, field.kind, field.name)
    return known, unknown


def write_fields(source: object, fields: tuple[Field, ...], unknown: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `read_fields`; fields that are None are left out."""
    values = ((field.name, getattr(source, field.attribute)) for field in fields)
    return {**unknown, **{name: value for name, value in values if value is not None}}


def typed(value: Any, kind: type, name: str) -> Any:
    """`value`, which must be of this type. Raises ValueError."""
    # bool is an int to Python, but not to RocketMQ
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {value!r}, which is not of type {kind.__name__}")
    return value


def entries(content: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The table of objects in a field; empty where it is absent. Raises ValueError."""
    table = content.get(name)
    if table is None:
        return {}
    return {key: typed(value, dict, f"{name}.{key}") for key, value in typed(table, dict, name).items()}


def table_entries(content: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The same for the table that the file is there for: only a file without any content may lack it.

    Raises ValueError.
    """
    if content and content.get(name) is None:
        raise ValueError(f"{name} is missing")
    return entries(content, name)
