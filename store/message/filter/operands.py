"""Operands: the parts of a SQL92 filter expression, each compiled to a Python function.

The rules are those of RocketMQ's filter module:

- A property is a string, or null if the message does not have it. A comparison with a number converts the
  string to the type of the number: 10 is an int, 3000000000 a long and 1.5 a double.
- A comparison with null is null, except `value = null`, which is false, and `null = null`, which is true.
  AND, OR and NOT follow three-valued logic. A message matches if the whole expression is true.
- If a string cannot be converted, the evaluation raises ValueError, and the message does not match. AND and
  OR evaluate their operands from left to right and stop when the result is known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from store.message.filter.java_values import (
    compare_doubles,
    parse_boolean,
    parse_double,
    parse_int,
    parse_long,
)
from store.message.properties import decode_properties

DEPTH_MAX = 100
"""Maximum nesting of operators and parentheses. A chain of ANDs or of ORs counts as one operator."""

_SEARCHED_MAX = 32
"""If an expression uses more properties, they are all decoded instead of searched one by one."""

Value = str | int | float | bool | None
Evaluate = Callable[[bytes], Value]
"""Function that returns the value of an operand for one message.

Its argument is the message's encoded property string, preceded by one 0x02 byte (see `PropertyReaders`).
"""
Truth = Callable[[bytes], bool | None]
"""Function like `Evaluate` whose result is True, False or None (null, neither true nor false)."""


class ExpressionInvalid(ValueError):
    """A filter expression is invalid. `position` is the index of the first invalid character."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        return f"{self.reason} (at character {self.position + 1})"


class ValueKind(Enum):
    """The static type of an operand."""

    PROPERTY = auto()
    STRING = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NULL = auto()
    """A minus sign before an operand that is not a number: the value is always null."""


_TEXTS = frozenset({ValueKind.PROPERTY, ValueKind.STRING})
_NUMBERS = frozenset({ValueKind.INT, ValueKind.LONG, ValueKind.DOUBLE})
_PARSE: dict[ValueKind, Callable[[str], int | float]] = {
    ValueKind.INT: parse_int,
    ValueKind.LONG: parse_long,
    ValueKind.DOUBLE: parse_double,
}


@dataclass(frozen=True, slots=True)
class Operand:
    """A compiled part of an expression.

    Attributes:
        kind: the static type.
        evaluate: returns the value of the operand for one message.
        position: index of the operand's first character in the expression.
        depth: nesting depth of operators and parentheses, see `DEPTH_MAX`.
        value: the value of a number or literal; None for other operands.
        is_literal: True for a string, number, TRUE, FALSE or NULL without a minus sign. As in RocketMQ, only
            the types of these are checked at compile time.
    """

    kind: ValueKind
    evaluate: Evaluate
    position: int
    depth: int = 1
    value: Value = None
    is_literal: bool = False

    @property
    def name(self) -> str:
        """Return a description of the operand for error messages, such as `a property`."""
        if self.is_literal and self.kind in (ValueKind.STRING, ValueKind.BOOLEAN):
            return "NULL" if self.value is None else repr(self.value)
        return {
            ValueKind.PROPERTY: "a property",
            ValueKind.STRING: "a string",
            ValueKind.BOOLEAN: "a condition",
        }.get(self.kind, "a number")


def nested(position: int, *operands: Operand) -> int:
    """Return the nesting depth of an operator on `operands`. Raises ExpressionInvalid above DEPTH_MAX."""
    depth = 1 + max(each.depth for each in operands)
    if depth > DEPTH_MAX:
        raise ExpressionInvalid(
            f"operators and parentheses are nested more than {DEPTH_MAX} deep: simplify the expression",
            position,
        )
    return depth


def literal(kind: ValueKind, value: Value, position: int) -> Operand:
    """Return the operand for a string, a number, TRUE, FALSE or NULL in the expression."""
    return Operand(kind, lambda _: value, position, value=value, is_literal=True)


class PropertyReaders:
    """The functions that find the properties of one expression in a message; each reads its property once.

    An expression may use a property, or different ones, hundreds of times.
    """

    def __init__(self) -> None:
        self._readers: dict[str, Callable[[bytes], str | None]] = {}
        self._decoded: tuple[bytes, dict[str, str]] = (b"", {})

    def of(self, name: str) -> Callable[[bytes], str | None]:
        """Return a function that finds the property `name` of a message and returns its value, or None.

        Its argument is the message's encoded property string, preceded by one 0x02 byte: so 0x02 precedes
        every property name, also the first. If a property occurs several times, the last value that is not
        empty is returned, as by `decode_properties`.
        """
        read = self._readers.get(name)
        return self._readers.setdefault(name, self._reader(name)) if read is None else read

    def _reader(self, name: str) -> Callable[[bytes], str | None]:
        prefix = b"\x02" + name.encode() + b"\x01"
        last: tuple[bytes, str | None] = (b"", None)  # the last message's properties, and the value in them

        def read(properties: bytes) -> str | None:
            nonlocal last
            known, text = last
            if properties is not known:
                many = len(self._readers) > _SEARCHED_MAX
                text = self._decode(properties).get(name) if many else _last_value(properties, prefix)
                last = (properties, text)
            return text

        return read

    def _decode(self, properties: bytes) -> dict[str, str]:
        known, values = self._decoded
        if properties is not known:
            values = decode_properties(properties)
            self._decoded = (properties, values)
        return values


def _last_value(properties: bytes, prefix: bytes) -> str | None:
    """Return the last value after `prefix` that is not empty, or None."""
    size, found = len(prefix), len(properties)
    while (found := properties.rfind(prefix, 0, found)) >= 0:
        begin = found + size
        end = properties.find(b"\x02", begin)
        value = properties[begin:end] if end >= 0 else properties[begin:]
        if value:
            return value.decode("utf-8", "replace")
    return None


def property_of(read: Evaluate, position: int) -> Operand:
    """Return the operand for a message property; see `PropertyReaders`."""
    return Operand(ValueKind.PROPERTY, read, position)


def parenthesized(inner: Operand, position: int) -> Operand:
    """Return the operand for `(inner)`: its nesting depth is greater by one."""
    depth = nested(position, inner)
    return Operand(inner.kind, inner.evaluate, inner.position, depth, inner.value, inner.is_literal)


def negation(inner: Operand, position: int) -> Operand:
    """Return the operand for `-inner`, whose value is null unless `inner` is a number."""
    depth = nested(position, inner)
    if inner.kind in _NUMBERS:
        assert isinstance(inner.value, int | float)
        value = -inner.value
        return Operand(inner.kind, lambda _: value, position, depth, value)
    evaluate = inner.evaluate

    def null(properties: bytes) -> None:
        evaluate(properties)  # only for its ValueError: then the message does not match

    return Operand(ValueKind.NULL, null, position, depth)


# ---- conditions


def truth_of(value: Operand) -> Truth:
    """Return the function that evaluates an operand as a condition.

    Used for operands of AND, OR and NOT, and for the whole expression. A property alone is a string, so it is
    never true: it is null if the message does not have it, else false.

    Raises:
        ExpressionInvalid: The operand is neither a condition nor a property.
    """
    evaluate = value.evaluate
    if value.kind is ValueKind.BOOLEAN:
        return evaluate  # type: ignore[return-value]  # a BOOLEAN evaluates to a bool or None
    if value.kind is not ValueKind.PROPERTY:
        raise ExpressionInvalid(f"{value.name} is not a condition: compare it with a value", value.position)
    return lambda properties: None if evaluate(properties) is None else False


def not_(inner: Operand, position: int) -> Operand:
    """Return the operand for `NOT inner`, which is null if `inner` is null."""
    truth = truth_of(inner)

    def evaluate(properties: bytes) -> bool | None:
        value = truth(properties)
        return None if value is None else not value

    return Operand(ValueKind.BOOLEAN, evaluate, position, nested(position, inner))


def all_of(operands: Sequence[Operand]) -> Operand:
    """Return the operand that joins two or more operands with AND."""
    return _chain(operands, decisive=False)


def any_of(operands: Sequence[Operand]) -> Operand:
    """Return the operand that joins two or more operands with OR."""
    return _chain(operands, decisive=True)


def _chain(operands: Sequence[Operand], *, decisive: bool) -> Operand:
    """Join operands with AND or OR; `decisive` is the value of one operand that decides the result."""
    truths = tuple(map(truth_of, operands))
    position = operands[0].position

    def evaluate(properties: bytes) -> bool | None:
        result: bool | None = not decisive
        for truth in truths:
            value = truth(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return Operand(ValueKind.BOOLEAN, evaluate, position, nested(position, *operands))


# ---- comparisons


def ordered(left: Operand, symbol: str, right: Operand) -> Operand:
    """Return the operand for the comparison `left symbol right`; `symbol` is `<`, `<=`, `>` or `>=`.

    Raises ExpressionInvalid if one side is a string or a condition.
    """
    for each in (left, right):
        if each.kind is ValueKind.BOOLEAN or each.kind is ValueKind.STRING:
            raise ExpressionInvalid(
                f"{each.name} cannot be compared by {symbol}: only numbers and properties can", each.position
            )
    compare = _ORDERS[symbol]
    depth = nested(left.position, left, right)
    if left.kind is ValueKind.PROPERTY and right.kind in (ValueKind.INT, ValueKind.LONG):
        evaluate = _against_whole(left.evaluate, compare, _PARSE[right.kind], right.value)
    else:
        evaluate = _unless_null(left.evaluate, right.evaluate, _order(left.kind, compare, right.kind))
    return Operand(ValueKind.BOOLEAN, evaluate, left.position, depth)


_Compare = Callable[[float, float], bool]
_ORDERS: dict[str, _Compare] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _against_whole(
    read: Evaluate, compare: _Compare, parse: Callable[[str], int | float], number: Value
) -> Evaluate:
    """Return the function that compares a property with a whole number.

    This is the most frequent comparison; it has its own function to make it faster.
    """

    def evaluate(properties: bytes) -> bool | None:
        text = read(properties)
        return None if text is None else compare(parse(text), number)  # type: ignore[arg-type]

    return evaluate


def _unless_null(left: Evaluate, right: Evaluate, compare: Callable[..., bool]) -> Evaluate:
    def evaluate(properties: bytes) -> bool | None:
        first = left(properties)
        if first is None:
            return None
        second = right(properties)
        return None if second is None else compare(first, second)

    return evaluate


def _order(left: ValueKind, compare: _Compare, right: ValueKind) -> Callable[..., bool]:
    """Return the function that applies `compare` to two values of these kinds; neither value is null."""
    if left in _TEXTS and right in _TEXTS:
        return lambda first, second: compare(compare_doubles(parse_double(first), parse_double(second)), 0)
    convert_left, convert_right = _PARSE.get(right), _PARSE.get(left)
    if left in _TEXTS and convert_left is not None:
        inner = _order(right, compare, right)
        return lambda first, second: inner(convert_left(first), second)
    if right in _TEXTS and convert_right is not None:
        inner = _order(left, compare, left)
        return lambda first, second: inner(first, convert_right(second))
    if ValueKind.DOUBLE in (left, right):
        return lambda first, second: compare(compare_doubles(float(first), float(second)), 0)
    return compare


def equal(left: Operand, right: Operand) -> Operand:
    """Return the operand for `left = right`.

    Raises ExpressionInvalid if one side is the literal NULL, or if the left side is TRUE or FALSE and the
    right side is a literal of another type.
    """
    for each in (left, right):
        if each.is_literal and each.value is None:
            raise ExpressionInvalid("NULL cannot be compared by =: write IS NULL", each.position)
    if (
        left.is_literal
        and left.kind is ValueKind.BOOLEAN
        and right.is_literal
        and right.kind is not ValueKind.BOOLEAN
    ):
        raise ExpressionInvalid(f"{left.name} cannot be compared with {right.name}", left.position)
    compare = _equality(left.kind, right.kind)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(properties: bytes) -> bool | None:
        first, second = evaluate_left(properties), evaluate_right(properties)
        if first is None:
            return True if second is None else None
        return False if second is None else compare(first, second)

    return Operand(ValueKind.BOOLEAN, evaluate, left.position, nested(left.position, left, right))


def _equality(left: ValueKind, right: ValueKind) -> Callable[..., bool]:
    """Return the function that tests if two values of these kinds are equal; neither value is null."""
    if left is ValueKind.BOOLEAN and right in _TEXTS:
        return _fail  # RocketMQ casts the boolean to a string, which fails
    if left in _TEXTS and right is ValueKind.BOOLEAN:
        return lambda first, second: parse_boolean(first) is second
    if (left in _TEXTS) == (right in _TEXTS) and ValueKind.DOUBLE not in (left, right):
        return lambda first, second: type(first) is type(second) and first == second
    if ValueKind.BOOLEAN in (left, right):
        return lambda first, second: False
    return _order(left, operator.eq, right)


def _fail(first: Value, second: Value) -> bool:
    raise ValueError(f"the boolean {first!r} cannot be compared with the string {second!r}")


def is_null(inner: Operand) -> Operand:
    """Return the operand for `inner IS NULL`."""
    evaluate = inner.evaluate
    depth = nested(inner.position, inner)
    return Operand(ValueKind.BOOLEAN, lambda properties: evaluate(properties) is None, inner.position, depth)


def between(value: Operand, low: Operand, high: Operand) -> Operand:
    """Return the operand for `value BETWEEN low AND high`; both limits are included.

    Raises ExpressionInvalid if both limits are numbers and `low` exceeds `high`, or as `ordered` does.
    """
    limits = (low, high)
    are_numbers = all(each.is_literal and each.kind in _NUMBERS for each in limits)
    if are_numbers and not _order(low.kind, operator.le, high.kind)(low.value, high.value):
        raise ExpressionInvalid(
            f"BETWEEN {low.value} AND {high.value} matches nothing: write the lower limit first",
            low.position,
        )
    return all_of([ordered(value, ">=", low), ordered(value, "<=", high)])


def not_between(value: Operand, low: Operand, high: Operand) -> Operand:
    """Return the operand for `value NOT BETWEEN low AND high`. Raises ExpressionInvalid as `ordered` does."""
    return any_of([ordered(value, "<", low), ordered(value, ">", high)])


def in_strings(value: Operand, strings: Sequence[str], *, is_negated: bool) -> Operand:
    """Return the operand for `value [NOT] IN (strings)`.

    Raises ExpressionInvalid if `value` is not a property.
    """
    if value.kind is not ValueKind.PROPERTY:
        raise ExpressionInvalid(f"the left side of IN is {value.name}: it must be a property", value.position)
    read, wanted = value.evaluate, frozenset(strings)

    def evaluate(properties: bytes) -> bool | None:
        text = read(properties)
        return None if text is None else (text in wanted) is not is_negated

    return Operand(ValueKind.BOOLEAN, evaluate, value.position, nested(value.position, value))


_STRING_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def string_test(value: Operand, name: str, part: str, *, is_negated: bool) -> Operand:
    """Return the operand for `value [NOT] CONTAINS 'part'`, or for STARTSWITH or ENDSWITH.

    `name` is the operator in upper case. With and without NOT, the result is false if `value` is null or not
    a string, or if `part` is empty.
    """
    test, evaluate_value = _STRING_TESTS[name], value.evaluate

    def evaluate(properties: bytes) -> bool:
        if not part:
            return False
        text = evaluate_value(properties)
        return isinstance(text, str) and test(text, part) is not is_negated

    return Operand(ValueKind.BOOLEAN, evaluate, value.position, nested(value.position, value))
