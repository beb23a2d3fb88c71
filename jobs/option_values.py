"""Names and values of options by Spark's rules: text may be a number or a flag, and its case is ignored."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from jobs.job_errors import OptionInvalid

INTEGER = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
I32_MAX, I64_MAX = 2**31 - 1, 2**63 - 1
_FLAGS = {"true": True, "false": False}
# The characters by which Hadoop's FileSystem takes a path for a pattern, and its escape character.
_PATTERN = re.compile(r"[\\{}\[\]*?]")


def refuse_unknown(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `OptionInvalid` if a name in `given` is not one of `known`. The message has the nearest name."""
    names = {_plain(name): name for name in known}
    for name, value in given.items():
        if name not in names.values():
            similar = get_close_matches(_plain(name), names, 1)
            nearest = names[similar[0]] if similar else ""
            hint = f"did you mean {nearest}" if nearest else f"the options are {', '.join(names.values())}"
            raise OptionInvalid(f"unknown option {name}={value!r}: {hint}")


def as_integer(option: str, value: object, minimum: int, maximum: int = I64_MAX) -> int:
    """Return the integer that `value`, an integer or text, means. Raises `OptionInvalid`."""
    number = value
    if isinstance(value, str) and INTEGER.fullmatch(value):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise OptionInvalid(f"{option}={value!r} is invalid: give an integer")
    if not minimum <= number <= maximum:
        bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise OptionInvalid(f"{option}={value} must be {bound}")
    return number


def as_flag(option: str, value: object) -> bool:
    """Return the flag that `value`, a bool or the text true or false, means. Raises `OptionInvalid`."""
    flag = _FLAGS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise OptionInvalid(f"{option}={value!r} is invalid: give True or False")
    return flag


def as_choice(option: str, value: object, choices: Collection[str], remedy: str = "") -> str:
    """Return the element of `choices` that the text `value` equals, ignoring case. Raises `OptionInvalid`."""
    text = value.strip().lower() if isinstance(value, str) else None
    found = next((each for each in choices if each.lower() == text), None)
    if found is None:
        remedy = remedy or f"give one of {', '.join(choices)}"
        raise OptionInvalid(f"{option}={value!r} is unknown: {remedy}")
    return found


def as_path(option: str, value: str | Path) -> str:
    """Return a path or URI as text. Raises `OptionInvalid` if `value` is no path, or an empty one."""
    if not isinstance(value, str | os.PathLike) or not (text := os.fspath(value)).strip():
        raise OptionInvalid(f"{option}={value!r} is invalid: give a path")
    if not isinstance(text, str) or not text.isprintable():
        raise OptionInvalid(f"{option}={value!r} is invalid: give a path of printable characters")
    return text


def escaped_pattern(path: str) -> str:
    """Return `path` for an API of Spark that takes paths for patterns: their characters are escaped."""
    return _PATTERN.sub(r"\\\g<0>", path)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
