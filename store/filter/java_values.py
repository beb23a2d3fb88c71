"""Java's conversions of property values to numbers, and its order of doubles.

RocketMQ compares a property, which is a string, with a number by converting the string with
`Integer.valueOf`, `Long.valueOf` or `Double.valueOf`, depending on the type of the number.
"""

from __future__ import annotations

import math
import re

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1

_BLANKS = "".join(map(chr, range(0x21)))  # what Java's String.trim removes
_DOUBLE = re.compile(
    r"([+-]?)(?:"
    r"(?P<word>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
    r")"
)


def parse_int(text: str) -> int:
    """Return Java's `Integer.valueOf(text)`. Raises ValueError if it is not an int of 32 bits."""
    return _parse_whole(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> int:
    """Return Java's `Long.valueOf(text)`. Raises ValueError if it is not an int of 64 bits."""
    return _parse_whole(text, LONG_MIN, LONG_MAX)


def _parse_whole(text: str, lowest: int, highest: int) -> int:
    # int() accepts blanks and underscores too; like Java, it accepts the decimal digits of every script, but
    # Java only those with a code unit of their own.
    digits = text[1:] if text.startswith(("+", "-")) else text
    if not digits.isdecimal() or (not digits.isascii() and max(digits) > "\uffff"):
        raise ValueError(f"{text!r} is not a whole number")
    number = int(text)
    if not lowest <= number <= highest:
        raise ValueError(f"{text!r} is not between {lowest} and {highest}")
    return number


def parse_double(text: str) -> float:
    """Return Java's `Double.valueOf(text)`. Raises ValueError if it is not a number."""
    found = _DOUBLE.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise ValueError(f"{text!r} is not a number")
    if found["hex"] is not None:
        try:
            number = float.fromhex(found["hex"])
        except OverflowError:
            number = math.inf
    else:
        number = float(found["decimal"] or found["word"])
    return -number if found[1] == "-" else number


def parse_boolean(text: str) -> bool:
    """Return Java's `Boolean.valueOf(text)`: False for all strings but "true" in any case."""
    return text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Return Java's `Double.compareTo`: -0.0 is less than 0.0, and NaN equals itself and is the greatest."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    if number != number:
        return 2
    return 0 if number == 0 and math.copysign(1, number) < 0 else 1
