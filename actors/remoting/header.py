"""Header: the fields of a command, typed.

A header declares each field once. `consumer_group: str` is `consumerGroup` on the wire unless the field names
another key; a field without a default is required; a number is a `Long`. On the wire all values are strings.

msgspec converts them: a header of four fields takes 0.3 µs, a loop over its fields takes 1.0 µs.
"""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, Final, Self, get_args

import msgspec

from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1

# A number of 64 bits, as in Java: a table with a larger one could not be saved.
Long = Annotated[int, msgspec.Meta(ge=-I64_MAX, le=I64_MAX)]
wire = msgspec.field

_TRUE: Final = frozenset({"true", "1", "True", "TRUE"})
_BOOLS: Final = ("false", "true")


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base of all headers: reads itself from the fields of a command and writes them."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header in these fields; raises Refused if one is missing or cannot be read."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError:
            return cls(**_read_each(cls, ext))

    def to_ext(self) -> dict[str, str]:
        """Return the fields of a command, without those that are None."""
        ext = {}
        values = msgspec.structs.astuple(self)
        for key, value in zip(self.__struct_encode_fields__, values):  # noqa: B905 - `strict` takes 0.2 µs
            if value is not None:
                ext[key] = _BOOLS[value] if value is True or value is False else str(value)
        return ext


def missing_field(key: str) -> Refused:
    """Return the error for a missing field: SYSTEM_ERROR, as RocketMQ responds."""
    return Refused(ResponseCode.SYSTEM_ERROR, f"the header has no field `{key}`, which this request needs")


def read_bool(text: str) -> bool:
    """Return the value of `true` (Java) or `1` (C++); anything else is False, as in Java."""
    return text in _TRUE


def _read_each(header_type: type[Header], ext: Mapping[str, str]) -> dict[str, Any]:
    """Read field by field: accept what msgspec does not (` 5 `, any truth value), and name what is wrong."""
    values = {}
    for item in msgspec.structs.fields(header_type):
        text = ext.get(item.encode_name)
        if text is None:
            if item.required:
                raise missing_field(item.encode_name)
            continue
        try:
            values[item.name] = _READERS[_plain_type(item.type)](text)
        except (ValueError, TypeError):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the header's field `{item.encode_name}` cannot be read: {text[:100]!r}",
            ) from None
    return values


def _plain_type(annotation: Any) -> Any:
    """Return the type inside `Annotated[...]` and `... | None`."""
    inner = [each for each in get_args(annotation) if each is not NoneType]
    return _plain_type(inner[0]) if inner else annotation


def _read_int(text: str) -> int:
    value = int(text)
    if abs(value) > I64_MAX:
        raise ValueError("more than 63 bits")
    return value


_READERS: Final[dict[type, Callable[[str], Any]]] = {int: _read_int, bool: read_bool, str: str}
