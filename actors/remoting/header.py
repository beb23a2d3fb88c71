"""Header: a command's fields, typed.

A header is a plain dataclass: a field `consumer_group: str` is `consumerGroup` on the wire unless it says
otherwise, is required unless it has a default, and is an int, bool or str by its annotation.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final, NamedTuple, Self

from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1

_TRUE = frozenset({"true", "1", "True", "TRUE"})


class _Wire(NamedTuple):
    """One field: its name on the wire and here, and how it is read and written."""

    key: str
    name: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]
    is_required: bool


def wire(key: str, **options: Any) -> Any:
    """A header field whose name on the wire is not its own in camelCase."""
    return field(metadata={"key": key}, **options)


@dataclass(slots=True)
class Header:
    """What all headers can do: come from the fields of a command, and go back into them."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header that these fields are; raises Refused where one is missing or cannot be read."""
        values = {}
        for item in _wire_fields(cls):
            text = ext.get(item.key)
            if text is None:
                if item.is_required:
                    raise missing_field(item.key)
                continue
            try:
                values[item.name] = item.read(text)
            except (ValueError, TypeError):
                raise unreadable_field(item.key, text) from None
        return cls(**values)

    def to_ext(self) -> dict[str, str]:
        """The fields of a command; None is left out."""
        ext = {}
        for item in _wire_fields(type(self)):
            value = getattr(self, item.name)
            if value is not None:
                ext[item.key] = item.write(value)
        return ext


def missing_field(key: str) -> Refused:
    """RocketMQ answers a header it cannot read with SYSTEM_ERROR; so do we."""
    return Refused(ResponseCode.SYSTEM_ERROR, f"the header has no field `{key}`, which this request needs")


def unreadable_field(key: str, text: str) -> Refused:
    """The same for a field that is there."""
    return Refused(ResponseCode.SYSTEM_ERROR, f"the header's field `{key}` cannot be read: {text[:100]!r}")


def read_int(text: str) -> int:
    """A number of 64 bits, as Java's: tables with larger ones could not be saved. Raises ValueError."""
    value = int(text)
    if not -I64_MAX <= value <= I64_MAX:
        raise ValueError("more than 63 bits")
    return value


def read_bool(text: str) -> bool:
    """Java writes `true`, C++ writes `1`."""
    return text in _TRUE


def write_bool(value: bool) -> str:
    """As Java writes it."""
    return "true" if value else "false"


def _wire_fields(header_type: type[Header]) -> tuple[_Wire, ...]:
    known = _FIELDS.get(header_type)
    if known is None:
        known = _FIELDS[header_type] = tuple(_wire_field(item) for item in fields(header_type))
    return known


def _wire_field(item: "Field[Any]") -> _Wire:
    words = item.name.split("_")
    key = item.metadata.get("key") or words[0] + "".join(word.title() for word in words[1:])
    kind = str(item.type).removesuffix(" | None")
    kind = {"<class 'int'>": "int", "<class 'bool'>": "bool"}.get(kind, kind)
    read, write = _KINDS.get(kind, (str, str))
    is_required = item.default is MISSING and item.default_factory is MISSING
    return _Wire(key, item.name, read, write, is_required)


_FIELDS: dict[type[Header], tuple[_Wire, ...]] = {}
_KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "int": (read_int, str),
    "bool": (read_bool, write_bool),
}
