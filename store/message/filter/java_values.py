"""Conversions of strings to numbers and booleans, and the comparison of doubles, as Java defines them.

RocketMQ compares a property, which is a string, with a number by converting the string with
`Integer.valueOf`, `Long.valueOf` or `Double.valueOf`, depending on the type of the number.
"""

from __future__ import annotations

import math
import re

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1

_NUMBER_CHARS_MAX = 1_000
"""Longer strings are not converted to numbers, because Python takes up to a millisecond for one."""

_QUOTED_MAX = 30  # error messages quote at most this many characters of a string
_BLANKS = "".join(map(chr, range(0x21)))  # what Java's String.trim removes
_DOUBLE = re.compile(
    r"([+-]?)(?:"
    r"(?P<word>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
    r")"
)


def parse_int(text: str) -> int:
    """Convert a string as Java's `Integer.valueOf` does. Raises ValueError if it is not a 32-bit integer."""
    return _parse_whole(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> int:
    """Convert a string as Java's `Long.valueOf` does. Raises ValueError if it is not a 64-bit integer."""
    return _parse_whole(text, LONG_MIN, LONG_MAX)


def _parse_whole(text: str, lowest: int, highest: int) -> int:
    # int() alone is too lenient: it accepts blanks and underscores. Java accepts the decimal digits of every
    # script, as int() does, but only those that are one UTF-16 code unit.
    digits = text[1:] if text.startswith(("+", "-")) else text
    if (
        len(text) > _NUMBER_CHARS_MAX
        or not digits.isdecimal()
        or (not digits.isascii() and max(digits) > "\uffff")
    ):
        raise ValueError(f"{_short(text)} is not a whole number")
    number = int(text)
    if not lowest <= number <= highest:
        raise ValueError(f"{text!r} is not between {lowest} and {highest}")
    return number


def parse_double(text: str) -> float:
    """Convert a string as Java's `Double.valueOf` does. Raises ValueError if it is not a number."""
    found = _DOUBLE.fullmatch(text.strip(_BLANKS)) if len(text) <= _NUMBER_CHARS_MAX else None
    if found is None:
        raise ValueError(f"{_short(text)} is not a number")
    if found["hex"] is not None:
        try:
            number = float.fromhex(found["hex"])
        except OverflowError:
            number = math.inf
    else:
        number = float(found["decimal"] or found["word"])
    return -number if found[1] == "-" else number


def parse_boolean(text: str) -> bool:
    """Convert a string as Java's `Boolean.valueOf` does: True if it is "true", ignoring case, else False."""
    return len(text) == len("true") and text.lower() == "true"


def _short(text: str) -> str:
    return repr(text[:_QUOTED_MAX])


def compare_doubles(left: float, right: float) -> int:
    """Return a negative number, 0 or a positive number if `left` is less than, equal to or above `right`.

    The order is that of Java's `Double.compareTo`: -0.0 is less than 0.0; NaN is equal to NaN and greater
    than all other numbers.
    """
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    """Return the order of numbers that Python does not distinguish: -0.0, then equal numbers, then NaN."""
    if number != number:
        return 2
    return 0 if number == 0 and math.copysign(1, number) < 0 else 1
