"""Lenient decoding of JSON bodies that differ from those of RocketMQ's Java classes.

Numbers may be strings (librocketmq), strings may be numbers, booleans 0 or 1, enums numbers, and fields null.
Any other type is an error that names the field and the value.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec
import orjson
from msgspec import inspect

from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.header import I64_MAX, too_long
from actors.wire.remoting_errors import Refused
from store.message.json_text import parse_rocketmq_json

Conformed = TypeVar("Conformed")

KEPT_BYTES_MAX: Final = 32 * 1024
"""Largest JSON text of one entry of a table that keeps also the fields that it does not know."""
KEPT_VALUES_MAX: Final = 200_000
_SHORT_BYTES: Final = 32 * 1024  # decoded in a few milliseconds, whatever it contains
_KEPT_DEPTH_MAX: Final = 32


def load_object(body: Buffer, what: str) -> dict[str, Any]:
    """Return the JSON object in `body`. Raises Refused if `body` is not a JSON object.

    `what` names the body in the error message.
    """
    try:
        return parse_rocketmq_json(body)
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is not a valid {what}: {error}") from error


def check_values(body: Buffer, what: str, values_max: int) -> None:
    """Raise Refused if the JSON `body` of a request has so many values that it would take long to decode."""
    if len(body) <= _SHORT_BYTES:
        return
    text = bytes(body)
    objects = text.count(b"{") + text.count(b"[")
    counts = (("values", text.count(b","), values_max), ("objects and lists", objects, values_max // 2))
    for kind, count, limit in counts:
        if count > limit:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the {what} has {count:,} {kind}, but the limit is {limit:,}: send several smaller requests",
            )


def load_request(
    body: Buffer, what: str, values_max: int, unquoted_bytes_max: int = _SHORT_BYTES
) -> dict[str, Any]:
    """Return the JSON object in the body of a request. Raises Refused as `check_values` and `load_object` do.

    In a long body, keys must be quoted: to find the others takes long, and no client sends them in requests.
    """
    check_values(body, what, values_max)
    if len(body) <= unquoted_bytes_max:
        return load_object(body, what)
    try:
        found = orjson.loads(body)
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is not a valid {what}: {error}") from error
    if not isinstance(found, dict):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is not a valid {what}: it is not an object")
    return found


def load_kept_object(body: Buffer, what: str, bytes_max: int = KEPT_BYTES_MAX) -> dict[str, Any]:
    """Return the JSON object in `body` for a table that stores it with all its fields.

    Raises Refused if `body` is not a JSON object, if it is longer than `bytes_max`, or if it is nested so
    deeply that it could not be encoded again.
    """
    if len(body) > bytes_max:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the {what} has {len(body):,} bytes, but the limit is {bytes_max:,}: shorten it",
        )
    found = load_request(body, what, KEPT_VALUES_MAX)
    level: list[Any] = [found]
    for _ in range(_KEPT_DEPTH_MAX):
        level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return found
    raise Refused(
        ResponseCode.INVALID_PARAMETER, f"the {what} is nested more than {_KEPT_DEPTH_MAX} levels deep"
    )


def conform(content: object, kind: type[Conformed], what: str) -> Conformed:
    """Convert decoded JSON to the type `kind`. Raises Refused if a field has the wrong type.

    `what` names the body in the error message.
    """
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError):
        content = _coerce(content, _declared(cast(Hashable, kind)), what)
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is not a valid {what}: {error}") from error


def get_str(fields: Mapping[str, Any], key: str, default: str = "") -> str:
    """Return the field `key` as a string; a number is converted, null or absent is `default`.

    Raises Refused for another type.
    """
    value = fields.get(key)
    return default if value is None else _as_str(value, key)


def get_object(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object in field `key`; null or absent is an empty object.

    Raises Refused for another type.
    """
    value = fields.get(key)
    return {} if value is None else _as_object(value, key)


def get_objects(fields: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects in field `key`; null or absent is an empty list.

    Raises Refused for another type.
    """
    value = fields.get(key)
    return [] if value is None else [_as_object(each, key) for each in _as_list(value, key)]


@cache
def _declared(kind: Hashable) -> inspect.Type:
    return inspect.type_info(kind)


def _coerce(value: Any, kind: inspect.Type, key: str) -> Any:
    """Convert `value` to the types that `kind` declares.

    Raises Refused for another type, and for a text or list that is longer than declared; `key` names the
    field in the message.
    """
    limit = getattr(kind, "max_length", None)
    if limit is not None and isinstance(value, str | list | dict) and len(value) > limit:
        raise too_long("field", key, value, limit)
    match kind:
        case inspect.StructType(array_like=True):
            row, fields = _as_list(value, key), kind.fields
            if len(row) < sum(field.required for field in fields):
                wanted = ", ".join(field.encode_name for field in fields)
                raise _wrong(key, value, f"a list of {wanted}")
            pairs = zip(row, fields, strict=False)
            return [_coerce(each, field.type, field.encode_name) for each, field in pairs]
        case inspect.StructType():
            found = _as_object(value, key)
            types = {each.encode_name: each.type for each in kind.fields}
            given = {name: each for name, each in found.items() if name in types and each is not None}
            coerced = {name: _coerce(each, types[name], name) for name, each in given.items()}
            return {name: each for name, each in coerced.items() if each is not None}
        case inspect.DictType():
            found = _as_object(value, key)
            for name in found:
                _coerce(name, kind.key_type, key)
            return {
                name: _coerce(each, kind.value_type, name) for name, each in found.items() if each is not None
            }
        case inspect.ListType() | inspect.VarTupleType():
            return [_coerce(each, kind.item_type, key) for each in _as_list(value, key)]
        case inspect.UnionType():  # a type and None
            return _coerce(value, kind.types[0], key)
        case inspect.Metadata():  # an enum: C++ clients send its number instead of its name
            names: dict[int, str] = dict(enumerate((kind.extra or {})["names"]))
            return (
                _coerce(value, kind.type, key) if isinstance(value, str) else names.get(_as_int(value, key))
            )
        case _:
            read = _SCALARS.get(type(kind))
            return value if read is None else read(value, key)


def _as_str(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    raise _wrong(key, value, "a string")


def _as_int(value: Any, key: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(key, value, "an integer") from None
    if abs(number) > I64_MAX:
        raise _wrong(key, value, "an integer of at most 63 bits")
    return number


def _as_float(value: object, key: str) -> float:
    if value == "NaN":  # as Java writes it
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
    return Refused(
        ResponseCode.SYSTEM_ERROR, f"field `{key}` of the body must be {wanted}: {str(value)[:60]!r}"
    )


_SCALARS: Final[dict[type[inspect.Type], Callable[[Any, str], Any]]] = {
    inspect.IntType: _as_int,
    inspect.FloatType: _as_float,
    inspect.StrType: _as_str,
    inspect.BoolType: lambda value, _: value in (True, 1, "true", "1"),
}
