"""Reading JSON bodies of others: what is missing has a default, what is of another type is an error with a
name.
"""

from collections.abc import Mapping
from typing import Any, Final

from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer
from actors.remoting.header import I64_MAX
from actors.remoting.remoting_errors import Refused
from store.message.json_text import parse_rocketmq_json

_KEPT_DEPTH_MAX: Final = 32


def load_object(body: Buffer, what: str) -> dict[str, Any]:
    """The JSON object that this body is; raises Refused where it is none."""
    try:
        return parse_rocketmq_json(body)
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the body is no {what}: {error}") from error


def load_kept_object(body: Buffer, what: str) -> dict[str, Any]:
    """As `load_object`, for what is kept in a table with all its fields: it must not be nested deeper than
    can be written again. Raises Refused.
    """
    found = load_object(body, what)
    level: list[Any] = [found]
    for _ in range(_KEPT_DEPTH_MAX):
        level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return found
    raise Refused(ResponseCode.INVALID_PARAMETER, f"the {what} is nested over {_KEPT_DEPTH_MAX} deep")


def get_str(fields: Mapping[str, Any], key: str, default: str = "") -> str:
    """A text; numbers become text, null the default."""
    value = fields.get(key)
    if isinstance(value, str):
        return value
    if value is None:
        return default
    if isinstance(value, int | float):
        return str(value)
    raise _wrong(key, value, "a text")


def get_int(fields: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A number; text that is one is taken (librocketmq writes some so)."""
    value = fields.get(key)
    if value is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(key, value, "a whole number") from None
    if not -I64_MAX <= number <= I64_MAX:
        raise _wrong(key, value, "a number of at most 63 bits")
    return number


def get_float(fields: Mapping[str, Any], key: str) -> float:
    """A number; 0 where it is missing or, as Java's writers have it, "NaN"."""
    value = fields.get(key)
    if value is None or value == "NaN":
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _wrong(key, value, "a number")


def get_bool(fields: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """A truth value; librocketmq writes 0 and 1, or text."""
    value = fields.get(key)
    if value is None:
        return default
    return value in (True, 1, "true", "1")


def get_list(fields: Mapping[str, Any], key: str) -> list[Any]:
    """A list; null or absent is an empty one."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(key, value, "a list")
    return value


def get_object(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object; null or absent is an empty one."""
    value = fields.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def get_objects(fields: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects."""
    found = get_list(fields, key)
    for value in found:
        if not isinstance(value, dict):
            raise _wrong(key, value, "a list of objects")
    return found


def get_strings(fields: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts."""
    found = get_list(fields, key)
    for value in found:
        if not isinstance(value, str):
            raise _wrong(key, value, "a list of texts")
    return found


def _wrong(key: str, value: object, wanted: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"`{key}` in the body is {str(value)[:60]!r}, not {wanted}")
