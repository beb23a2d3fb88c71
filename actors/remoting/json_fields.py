"""Read JSON bodies that are not quite as RocketMQ's Java classes write them.

Numbers may be strings (librocketmq), strings numbers, truth values 0 and 1, enums numbers, and fields null.
What is of another type is an error that names field and value.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer
from actors.remoting.header import I64_MAX
from actors.remoting.remoting_errors import Refused
from store.message.json_text import parse_rocketmq_json

Conformed = TypeVar("Conformed")

_KEPT_DEPTH_MAX: Final = 32


def load_object(body: Buffer, what: str) -> dict[str, Any]:
    """Return the JSON object in `body`; raises Refused if it holds none."""
    try:
        return parse_rocketmq_json(body)
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is no {what}: {error}") from error


def load_kept_object(body: Buffer, what: str) -> dict[str, Any]:
    """As `load_object`, for an object that is kept in a table with all its fields: it must not be nested
    deeper than can be written again. Raises Refused.
    """
    found = load_object(body, what)
    level: list[Any] = [found]
    for _ in range(_KEPT_DEPTH_MAX):
        level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return found
    raise Refused(ResponseCode.INVALID_PARAMETER, f"the {what} is nested over {_KEPT_DEPTH_MAX} deep")


def conform(content: object, kind: type[Conformed], what: str) -> Conformed:
    """Return decoded JSON as `kind`. Raises Refused."""
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError):
        content = _coerce(content, _declared(cast(Hashable, kind)), what)
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is no {what}: {error}") from error


def get_str(fields: Mapping[str, Any], key: str, default: str = "") -> str:
    """Return a text; a number becomes text, null the default. Raises Refused."""
    value = fields.get(key)
    return default if value is None else _as_str(value, key)


def get_object(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object; null or absent is an empty one. Raises Refused."""
    value = fields.get(key)
    return {} if value is None else _as_object(value, key)


def get_objects(fields: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects; null or absent is an empty one. Raises Refused."""
    value = fields.get(key)
    return [] if value is None else [_as_object(each, key) for each in _as_list(value, key)]


@cache
def _declared(kind: Hashable) -> inspect.Type:
    return inspect.type_info(kind)


def _coerce(value: Any, kind: inspect.Type, key: str) -> Any:
    """Return `value` with the types that `kind` declares; `key` names it in an error. Raises Refused."""
    match kind:
        case inspect.StructType():
            found = _as_object(value, key)
            types = {each.encode_name: each.type for each in kind.fields}
            given = {name: each for name, each in found.items() if name in types and each is not None}
            coerced = {name: _coerce(each, types[name], name) for name, each in given.items()}
            return {name: each for name, each in coerced.items() if each is not None}
        case inspect.DictType():
            items = _as_object(value, key).items()
            return {name: _coerce(each, kind.value_type, name) for name, each in items if each is not None}
        case inspect.ListType() | inspect.VarTupleType():
            return [_coerce(each, kind.item_type, key) for each in _as_list(value, key)]
        case inspect.UnionType():  # of a type and None
            return _coerce(value, kind.types[0], key)
        case inspect.Metadata():  # an enum by name, which C++ writes as a number
            names: dict[int, str] = dict(enumerate((kind.extra or {})["names"]))
            return value if isinstance(value, str) else names.get(_as_int(value, key))
        case _:
            read = _SCALARS.get(type(kind))
            return value if read is None else read(value, key)


def _as_str(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise _wrong(key, value, "a text")


def _as_int(value: Any, key: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(key, value, "a whole number") from None
    if abs(number) > I64_MAX:
        raise _wrong(key, value, "a number of at most 63 bits")
    return number


def _as_float(value: object, key: str) -> float:
    if value == "NaN":  # as Java's writers have it
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _wrong(key, value, "a number")


def _as_list(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(key, value, "a list")
    return value


def _as_object(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def _wrong(key: str, value: object, wanted: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"`{key}` in the body is {str(value)[:60]!r}, not {wanted}")


_SCALARS: Final[dict[type[inspect.Type], Callable[[Any, str], Any]]] = {
    inspect.IntType: _as_int,
    inspect.FloatType: _as_float,
    inspect.StrType: _as_str,
    inspect.BoolType: lambda value, _: value in (True, 1, "true", "1"),
}
