"""Header: typed fields of a command's header.

A subclass declares each field once. `consumer_group: str` is `consumerGroup` on the wire unless the field
names another key. A field without a default is required. Numbers are declared as `Long`. On the wire all
values are strings.

msgspec converts them: a header of four fields takes 0.3 µs, a Python loop over its fields 1.0 µs.
"""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, Final, Self, get_args

import msgspec

from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused

I32_MAX: Final = 2**31 - 1
I64_MAX: Final = 2**63 - 1

# A 64-bit number, as in Java: a configuration table that contained a larger one could not be saved.
Long = Annotated[int, msgspec.Meta(ge=-I64_MAX, le=I64_MAX)]
wire = msgspec.field

_TRUE: Final = frozenset({"true", "1", "True", "TRUE"})
_BOOLS: Final = ("false", "true")


class Header(msgspec.Struct, rename="camel", gc=False):
    """Base class of typed headers; converts from and to the string fields (`ext`) of a command."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header decoded from `ext`. Raises Refused if a field is missing or invalid."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError:
            return cls(**_read_each(cls, ext))

    def to_ext(self) -> dict[str, str]:
        """Return the header as string fields; a field whose value is `None` is omitted."""
        ext = {}
        values = msgspec.structs.astuple(self)
        for key, value in zip(self.__struct_encode_fields__, values):  # noqa: B905 - `strict` takes 0.2 µs
            if value is not None:
                ext[key] = _BOOLS[value] if value is True or value is False else str(value)
        return ext


def missing_field(key: str) -> Refused:
    """Return the error for a missing required field: SYSTEM_ERROR, as in RocketMQ."""
    return Refused(
        ResponseCode.SYSTEM_ERROR, f"the header field `{key}` is missing: this request requires it"
    )


def read_bool(text: str) -> bool:
    """Return True for `true` (Java) and `1` (C++), and False for any other text, as Java does."""
    return text in _TRUE


def _read_each(header_type: type[Header], ext: Mapping[str, str]) -> dict[str, Any]:
    """Decode the fields one by one, after msgspec has rejected them.

    Accepts integers with blanks (` 5 `) and any text for a boolean. An invalid field raises Refused, which
    names it.
    """
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
                f"the header field `{item.encode_name}` is not a 64-bit integer: {text[:100]!r}",
            ) from None
    return values


def _plain_type(annotation: Any) -> Any:
    """Return the type `T` of an annotation `Annotated[T, ...]` or `T | None`."""
    inner = [each for each in get_args(annotation) if each is not NoneType]
    return _plain_type(inner[0]) if inner else annotation


def _read_int(text: str) -> int:
    value = int(text)
    if abs(value) > I64_MAX:
        raise ValueError("the number exceeds 63 bits")
    return value


_READERS: Final[dict[type, Callable[[str], Any]]] = {int: _read_int, bool: read_bool, str: str}
