"""Java's `.properties` format, in which RocketMQ stores and exchanges settings (java.util.Properties.load).

    # comment, or ! comment
    key=value          also key:value and key value; blanks around the key and before the value are ignored
    long=one,\\         a line that ends with an odd number of backslashes continues on the next line
        two
    path=C:\\\\dir       \\t \\n \\r \\f \\uXXXX and the backslash itself are escaped

If a key occurs more than once, the last value wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_KEY = re.compile(r"((?:[^\\:=\s]|\\.)*)\s*[=:]?\s*", re.DOTALL)
_MALFORMED = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})")


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings in `text`. Raises ValueError with the line number for an invalid `\\uXXXX`."""
    return {key: value for _, key, value in located_properties(text)}


def located_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, key, value) of each setting in `text`, in order.

    Raises ValueError with the line number for an invalid `\\uXXXX`.
    """
    for number, line in _logical_lines(text):
        if _MALFORMED.search(line):
            raise ValueError(
                f"line {number}: invalid escape: \\u must be followed by four hexadecimal digits"
            )
        match = _KEY.match(line)
        assert match is not None
        yield number, _plain(match[1]), _plain(line[match.end() :])


def encode_properties_text(values: Mapping[str, str]) -> str:
    """Return `key=value` lines as RocketMQ writes them: without escaping, as its parsers expect."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    begun, first = "", 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        first = first if begun else number
        begun += line
        trailing = len(begun) - len(begun.rstrip("\\"))
        if trailing % 2:
            begun = begun[:-1]
            continue
        yield first, begun
        begun = ""
    if begun:
        yield first, begun


def _plain(text: str) -> str:
    return _ESCAPED.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)
