"""Conversion of the JSON objects in `config/*.json` to typed structs and back.

Each field is declared once. Fields that are not declared, such as those of a later RocketMQ, are kept.
msgspec converts 1,000 topics in 1.9 ms; a Python loop over their fields takes 2.7 ms.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Self, TypeVar, get_args, get_origin

import msgspec

from store.store_errors import StoreError

Typed = TypeVar("Typed")
Name = Annotated[str, msgspec.Meta(min_length=1)]

_UNKNOWN: Final = "?"  # a name that no field of RocketMQ has
_FAULT: Final = re.compile(r"(Object missing required field `(.*?)`|.*?)(?: - at `(?:key` in `)?\$(.*)`)?")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


class ConfigObject(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of the objects in RocketMQ's tables.

    A field `read_queue_nums` is named `readQueueNums` in JSON. `unknown` holds JSON fields that are not
    declared; `to_json` writes them back unchanged.
    """

    unknown: Mapping[str, Any] = msgspec.field(name=_UNKNOWN, default_factory=dict)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Decode the object from its JSON fields `content`; a null field counts as absent.

        Raises ValueError, with the field's name and value, if a value has a wrong type, or `content` is no
        object.
        """
        if not isinstance(content, Mapping):
            typed(content, dict[str, Any])  # raises
        fields = {name: value for name, value in content.items() if value is not None}
        unknown = content.keys() - cls.__struct_encode_fields__
        if unknown:
            fields[_UNKNOWN] = {name: content[name] for name in unknown}
        return typed(fields, cls)

    def to_json(self) -> dict[str, Any]:
        """Encode the object as RocketMQ's JSON object; fields that are UNSET are left out."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        unknown = fields.pop(_UNKNOWN)
        return {**unknown, **fields} if unknown else fields


class JsonOfTable:
    """The JSON objects of a table; each is encoded once, because few of 20,000 entries change."""

    def __init__(self) -> None:
        self._encoded: dict[str, tuple[ConfigObject, dict[str, Any]]] = {}

    def add(self, name: str, entry: ConfigObject) -> None:
        """Encode a new or changed entry now, not with thousands of others later."""
        self._encoded[name] = (entry, entry.to_json())

    def of(self, table: Mapping[str, ConfigObject]) -> dict[str, dict[str, Any]]:
        """Return the JSON objects by the keys of `table`. The caller must not change them."""
        known = self._encoded
        self._encoded = {
            name: found
            if (found := known.get(name)) is not None and found[0] is each
            else (each, each.to_json())
            for name, each in table.items()
        }
        return {name: content for name, (_, content) in self._encoded.items()}


def typed(value: Any, kind: type[Typed], name: str = "") -> Typed:
    """Convert `value` to the type `kind`; `name` is the field's name, for the error.

    Raises ValueError, with the field's name, value and type, if that is not possible.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        if get_origin(kind) is dict and isinstance(value, dict):  # msgspec's error does not contain the key
            for key, each in value.items():
                typed(each, get_args(kind)[1], f"{name}.{key}")
        raise ValueError(_fault(error, value, name)) from error


def _fault(error: msgspec.ValidationError, value: Any, name: str) -> str:
    """Convert an error of msgspec to an error text with the path and the value of the invalid field."""
    match = _FAULT.fullmatch(str(error))
    assert match is not None
    fault, missing, place = match[1], match[2], match[3] or ""
    if missing:
        return f"{f'{name}{place}.{missing}'.lstrip('.')} is missing"
    for key, index in _STEP.findall(place.partition("[...]")[0]):
        value = value[key or int(index)]
    return f"{f'{name}{place}'.lstrip('.')} is {repr(value)[:100]}: {fault}"


def entries(content: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the JSON objects in the field `name` of `content`, by their keys; empty if the field is absent.

    Raises ValueError if the field is not an object whose values are objects.
    """
    table = content.get(name)
    return {} if table is None else typed(table, dict[str, dict[str, Any]], name)


def table_entries(content: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the JSON objects in the main field `name` of a table file, by their keys.

    Raises ValueError if the field has a wrong type, or is absent although the file has other content.
    """
    if content and content.get(name) is None:
        raise ValueError(f"{name} is missing")
    return entries(content, name)


def fields_except(content: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields of `content` except those called `names`."""
    return {name: value for name, value in content.items() if name not in names}


@contextmanager
def store_errors_for(file_name: str) -> Iterator[None]:
    """Convert a ValueError raised in the `with` block to a StoreError whose text contains the file name."""
    try:
        yield
    except ValueError as error:
        raise StoreError(f"{file_name}: {error}") from error
