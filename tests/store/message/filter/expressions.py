"""Random SQL92 filter expressions with a naive evaluator, and random properties for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from store.message.properties import encode_properties


class Failed(Exception):
    """The evaluation of an expression fails, so that the message does not match."""


Properties = Mapping[str, str]


@dataclass(frozen=True)
class Condition:
    """An expression as text, and a function that evaluates it in the most obvious way."""

    text: str
    evaluate: Callable[[Properties], bool | None]


def encoded(properties: Properties) -> bytes:
    """Return properties as compiled expressions take them."""
    return b"\x02" + encode_properties(properties)


NAMES = ("a", "b", "_c$1", "nota")
NUMBERS = ("0", "1", "-1", "10", "007", "2147483648", "1.5", "-0.5", "1e2")
WORDS = ("", "x", "y", "it's", "TRUE", "false", "1x", " 1", "标签")

properties = st.dictionaries(st.sampled_from(NAMES), st.sampled_from((*NUMBERS, *WORDS)), max_size=4)
names = st.sampled_from(NAMES)
words = st.sampled_from(WORDS)
whole_numbers = st.sampled_from((0, 1, -1, 10, 2**31, -(2**31) - 1))
fractions = st.sampled_from((0.5, 1.5, -0.5, 100.0, 1e300))


def quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def as_number(text: str, like: float) -> float:
    try:
        if isinstance(like, float):
            return float(text)
        if text != text.strip():
            raise Failed
        number = int(text)
    except ValueError:
        raise Failed from None
    limit = 31 if -(2**31) < like < 2**31 else 63
    if not -(2**limit) <= number < 2**limit:
        raise Failed
    return number


def order(symbol: str, left: Any, right: Any) -> bool:
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
        "=": left == right,
        "<>": left != right,
    }[symbol]


def number_test(name: str, symbol: str, number: float) -> Condition:
    def evaluate(given: Properties) -> bool | None:
        if name not in given:
            return None
        return order(symbol, as_number(given[name], number), number)

    return Condition(f"{name}{symbol}{number}", evaluate)


def number_test_reversed(name: str, symbol: str, number: float) -> Condition:
    def evaluate(given: Properties) -> bool | None:
        if name not in given:
            return {"=": False, "<>": True}.get(symbol)
        return order(symbol, number, as_number(given[name], number))

    return Condition(f"{number} {symbol} {name}", evaluate)


def word_test(name: str, symbol: str, word: str) -> Condition:
    return Condition(
        f"{name} {symbol} {quoted(word)}",
        lambda given: order(symbol, given[name], word) if name in given else None,
    )


def property_test(left: str, symbol: str, right: str) -> Condition:
    def evaluate(given: Properties) -> bool | None:
        if left not in given:
            both_null = right not in given and symbol in ("=", "<>")
            return symbol == "=" if both_null else None
        if right not in given:
            return {"=": False, "<>": True}.get(symbol)
        if symbol in ("=", "<>"):
            return order(symbol, given[left], given[right])
        return order(symbol, as_number(given[left], 0.5), as_number(given[right], 0.5))

    return Condition(f"{left} {symbol} {right}", evaluate)


def boolean_test(name: str, symbol: str, wanted: bool) -> Condition:
    def evaluate(given: Properties) -> bool | None:
        return order(symbol, given[name].lower() == "true", wanted) if name in given else None

    return Condition(f"{name} {symbol} {wanted}", evaluate)


def null_test(name: str, is_negated: bool) -> Condition:
    return Condition(
        f"{name} IS {'NOT ' if is_negated else ''}NULL", lambda given: (name not in given) is not is_negated
    )


def string_test(name: str, test: str, word: str, is_negated: bool) -> Condition:
    tests = {"CONTAINS": str.__contains__, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith}
    return Condition(
        f"{name} {'NOT ' if is_negated else ''}{test} {quoted(word)}",
        lambda given: bool(name in given and word and tests[test](given[name], word) is not is_negated),
    )


def in_test(name: str, wanted: list[str], is_negated: bool) -> Condition:
    return Condition(
        f"{name} {'NOT ' if is_negated else ''}IN ({', '.join(map(quoted, wanted))})",
        lambda given: (given[name] in wanted) is not is_negated if name in given else None,
    )


def range_test(name: str, limits: list[int], is_negated: bool) -> Condition:
    low, high = sorted(limits)
    compared = ((number_test(name, "<", low), number_test(name, ">", high)) if is_negated else
                (number_test(name, ">=", low), number_test(name, "<=", high)))  # fmt: skip
    return Condition(
        f"{name} {'NOT ' if is_negated else ''}BETWEEN {low} AND {high}",
        lambda given: either(given, compared) if is_negated else both(given, compared),
    )


def both(given: Properties, conditions: Any) -> bool | None:
    return _first(given, conditions, decisive=False)


def either(given: Properties, conditions: Any) -> bool | None:
    return _first(given, conditions, decisive=True)


def _first(given: Properties, conditions: Any, *, decisive: bool) -> bool | None:
    left, right = conditions
    first = left.evaluate(given)
    if first is decisive:
        return decisive
    second = right.evaluate(given)
    if second is decisive:
        return decisive
    return None if first is None or second is None else not decisive


def conjunction(left: Condition, right: Condition) -> Condition:
    return Condition(f"{left.text} AND {right.text}", lambda given: both(given, (left, right)))


def disjunction(left: Condition, right: Condition) -> Condition:
    return Condition(f"({left.text} or {right.text})", lambda given: either(given, (left, right)))


def negated(inner: Condition) -> Condition:
    def evaluate(given: Properties) -> bool | None:
        value = inner.evaluate(given)
        return None if value is None else not value

    return Condition(f"NOT ({inner.text})", evaluate)


def _lone_property(name: str) -> Condition:
    return Condition(name, lambda given: False if name in given else None)


symbols = st.sampled_from(("<", "<=", ">", ">=", "=", "<>"))
equalities = st.sampled_from(("=", "<>"))
tests = st.sampled_from(("CONTAINS", "STARTSWITH", "ENDSWITH"))

simple_conditions = st.one_of(
    st.builds(number_test, names, symbols, whole_numbers | fractions),
    st.builds(number_test_reversed, names, symbols, whole_numbers | fractions),
    st.builds(word_test, names, equalities, words),
    st.builds(property_test, names, symbols, names),
    st.builds(boolean_test, names, equalities, st.booleans()),
    st.builds(null_test, names, st.booleans()),
    st.builds(string_test, names, tests, words, st.booleans()),
    st.builds(in_test, names, st.lists(words, min_size=1, max_size=7), st.booleans()),
    st.builds(range_test, names, st.lists(whole_numbers, min_size=2, max_size=2), st.booleans()),
    st.builds(_lone_property, names),
)
conditions = st.recursive(
    simple_conditions,
    lambda inner: st.one_of(
        st.builds(conjunction, inner, inner), st.builds(disjunction, inner, inner), st.builds(negated, inner)
    ),
    max_leaves=8,
)
