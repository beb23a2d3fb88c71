"""SQL92 filter expressions: grammar, evaluation, and the positions of mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given

from store.message.filter.operands import DEPTH_MAX, ExpressionInvalid
from store.message.filter.sql92 import CHARACTERS_MAX, CONTAINS_MAX, compile_expression, compile_steps
from tests.store.message.filter.expressions import (
    Condition,
    Failed,
    Properties,
    conditions,
    encoded,
    properties,
)

FAILS = "fails"
"""The evaluation fails, as RocketMQ's does by an exception; the message does not match."""


def value(expression: str, **given: str) -> bool | str | None:
    try:
        return compile_expression(expression)(encoded(given))
    except ExpressionInvalid:
        raise
    except ValueError:
        return FAILS


@pytest.mark.parametrize(
    ("expression", "a", "expected"),
    [
        ("a > 10", "11", True),
        ("a > 10", "10", False),
        ("a > 10", None, None),
        ("a > 10", "eleven", FAILS),
        ("a > 10", "11.0", FAILS),  # an int is compared with ints
        ("a > 10", " 11", FAILS),
        ("a > 10", "1_1", FAILS),
        ("a > 10", "+11", True),
        ("a > 10", "3000000000", FAILS),
        ("a > 2147483648", "3000000000", True),  # a long is compared with longs
        ("a > 10L", "3000000000", FAILS),  # the suffix does not make a long
        ("a > -9223372036854775807", "-9223372036854775808", False),
        ("a > 10.5", "11", True),
        ("a > 10.5", " 11e0 ", True),
        ("a > 10.5", "0x1p4", True),
        ("a > .5E1", "5.1d", True),
        ("a > 5.", "NaN", True),  # Java's order: NaN is the greatest
        ("a >= 1.5", "Infinity", True),
        ("a = 1.0", "1", True),
        ("a = 1", "1", True),
        ("a = 1", "01", True),
        ("a = 1", None, None),
        ("1 = a", None, False),
        ("a <> 1", "2", True),
        ("a <> 1", None, None),
        ("10 < a", "11", True),
        ("a < - - 5", "4", True),
        ("a > + 5", "6", True),
        ("a > -'x'", "5", None),
        ("a = 'it''s'", "it's", True),
        ("a = '1'", "01", False),
        ("a = TRUE", "true", True),
        ("a = FALSE", "anything", True),
        ("TRUE = a", "true", FAILS),
        ("(a > 1) = TRUE", "2", True),
        ("(a > 1) = 5", "2", False),
        ("a", "x", False),  # a property alone is a string, not true
        ("a", None, None),
        ("NOT a", "x", True),
        ("NOT a = 5", "5", False),  # (NOT a) = 5
        ("NOT (a = 5)", "4", True),
        ("a IS NULL", None, True),
        ("a IS NOT NULL", "x", True),
        ("a IS NULL IS NOT NULL", "x", True),
        ("a > 1 IS NULL", None, True),
        ("a BETWEEN 1 AND 5", "5", True),
        ("a NOT BETWEEN 1 AND 5", "5", False),
        ("a NOT BETWEEN 5 AND 1", "5", True),
        ("a BETWEEN 1 AND 5 AND a <> 3", "3", False),
        ("a IN ('x', 'y')", "y", True),
        ("a IN ('x')", None, None),
        ("a NOT IN ('x', 'y')", "z", True),
        ("a NOT IN ('x')", None, None),
        ("a CONTAINS 'b'", "abc", True),
        ("a NOT CONTAINS 'b'", "abc", False),
        ("a NOT CONTAINS 'b'", None, False),
        ("a CONTAINS ''", "abc", False),
        ("a NOT CONTAINS ''", "abc", False),
        ("a STARTSWITH 'ab'", "abc", True),
        ("a NOT STARTSWITH 'b'", "abc", True),
        ("a ENDSWITH 'bc'", "abc", True),
        ("a NOT ENDSWITH 'c'", "abc", False),
        ("a > b", "2", None),
        ("b = b", "2", True),  # null = null
        ("TRUE", None, True),
        ("NULL OR TRUE", None, True),
        ("NULL AND TRUE", None, None),
        ("NULL AND FALSE", None, False),
        ("a = 1 OR a = 2 AND FALSE", "1", True),
        ("(a = 1 OR a = 2) AND FALSE", "1", False),
        ("a = 'x' OR a > 1", "x", True),  # the comparison that would fail is not evaluated
        ("a > 1 OR a = 'x'", "x", FAILS),
        ("a > 1 -- x", "2", True),
        ("a > 1 --", "2", True),
        ("-- x\na > 1 -- AND a > 5 -- y", "2", True),
        ("a > 1 /* x */ -- y", "2", True),
        ("a > 1 /* x */", "2", True),
        ("a > 1 \r\n", "2", True),
        ("a > --1", "2", True),
        ("a\t>\r\n/* more ** than */1 -- or less\n AND a\f< 5", "2", True),
        ("a iS nOt NuLl aNd NOT(a in('x'))", "y", True),
    ],
)
def test_expression_evaluates_as_in_rocketmq(
    expression: str, a: str | None, expected: bool | str | None
) -> None:
    assert value(expression, **({} if a is None else {"a": a})) is expected


@pytest.mark.parametrize("name", ["nota", "containsa", "_a", "$a", "IN1", "or$", "null_"])
def test_names_may_begin_with_a_keyword(name: str) -> None:
    assert value(f"{name} = 'x' and {name} CONTAINS 'x'", **{name: "x"}) is True


def test_names_are_case_sensitive() -> None:
    assert value("A = 'x'", a="x") is None


def test_last_value_of_a_property_counts_and_empty_values_do_not() -> None:
    evaluate = compile_expression("a = '2'")
    assert evaluate(b"\x02a\x011\x02ba\x013\x02a\x012\x02") is True
    assert evaluate(b"\x02a\x012\x02xa\x011") is True
    assert evaluate(b"\x02a\x012\x02a\x01\x02") is True
    assert evaluate(b"\x02a\x01\x02" * 1000) is None
    assert evaluate(b"\x02") is None


def test_last_value_counts_also_if_an_expression_has_many_properties() -> None:
    evaluate = compile_expression(" OR ".join(f"a{number} = '2'" for number in range(100)))
    assert evaluate(b"\x02a99\x011\x02a99\x012\x02a99\x01\x02") is True
    assert evaluate(b"\x02a99\x012\x02a99\x011\x02") is None
    assert evaluate(b"\x02a100\x012\x02") is None


def test_expression_with_too_many_slow_operators_is_refused() -> None:
    def expression(count: int) -> str:
        return " OR ".join(f"a Contains '{number}'" for number in range(count))

    assert value(expression(CONTAINS_MAX) + " AND b = 'contains contains'", a="63") is True
    with pytest.raises(ExpressionInvalid, match=f"65 CONTAINS operators, over the limit of {CONTAINS_MAX}"):
        compile_expression(expression(CONTAINS_MAX + 1))


@pytest.mark.parametrize("condition", ["a > 1", "a > 3000000000", "a > 1.5", "a > b"])
def test_string_of_thousands_of_digits_is_not_converted(condition: str) -> None:
    assert value(condition, a="9" * 2_000, b="1") == FAILS


def test_long_expression_is_compiled_in_steps() -> None:
    steps = compile_steps("a=1 OR " * 1000 + "a=2")
    others = [compile_expression("b = 'x'") for _ in steps]
    assert len(others) > 50
    assert all(each(encoded({"b": "x"})) for each in others)


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("", 0, "the expression is empty"),
        ("   ", 3, "the expression is empty"),
        ("a >", 3, "the expression is incomplete"),
        ("(a > 1", 6, "the expression is incomplete: expected ')'"),
        ("a > > 5", 4, "unexpected '> 5': expected '('"),
        ("a = 'x", 4, "a string is not closed: add '"),
        ("a != 5", 2, "unexpected '!= 5'"),
        ("a > 5 b", 6, "unexpected 'b'"),
        ("a > 00", 5, "unexpected '0'"),
        ("a = and", 4, "unexpected 'and'"),
        ("a IN (5)", 6, "expected a string"),
        ("a IN ()", 6, "expected a string"),
        ("(NOT a) IN ('x')", 1, "the left side of IN is a condition"),
        ("a LIKE 'x'", 2, "unexpected \"LIKE 'x'\""),
        ("5 AND a", 0, "a number is not a condition"),
        ("a = 1 OR 'x'", 9, "'x' is not a condition"),
        ("-a", 0, "a number is not a condition"),
        ("a > 'x'", 4, "'x' cannot be compared by >"),
        ("a > 1 > 2", 0, "a condition cannot be compared by >"),
        ("a > TRUE", 4, "True cannot be compared"),
        ("a <= NULL", 5, "NULL cannot be compared"),
        ("a = NULL", 4, "NULL cannot be compared by =: write IS NULL"),
        ("TRUE = 5", 0, "True cannot be compared with a number"),
        ("a BETWEEN 5 AND 1", 10, "BETWEEN 5 AND 1 matches nothing"),
        ("a > 9223372036854775808", 4, "exceeds 9223372036854775807"),
        ("a > " + "9" * 5000, 4, "exceeds 9223372036854775807"),
        ("a > 0.0", 4, "RocketMQ rejects: write 0 as an integer"),
        ("a > 1e999", 4, "exceeds 1.8e308"),
        ("a > 1 /* x", 6, "unexpected '/* x'"),
        ("a > 1; -- x", 5, "unexpected '; -- x'"),
        ("a ſ 1", 2, "unexpected"),
    ],
)
def test_mistake_is_reported_with_its_position(expression: str, position: int, reason: str) -> None:
    with pytest.raises(ExpressionInvalid) as error:
        compile_expression(expression)
    assert error.value.position == position
    assert reason in str(error.value)
    assert f"(at character {position + 1})" in str(error.value)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 1000 + "a > 1" + ")" * 1000,
        "NOT " * 1000 + "a",
        "a > " + "- " * 1000 + "1",
        "a" + " IS NULL" * 500,
        "a = b" + " = c" * 1000,
    ],
)
def test_deeply_nested_expression_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionInvalid, match=f"nested more than {DEPTH_MAX} deep"):
        compile_expression(expression)


def test_expression_over_the_length_limit_is_refused() -> None:
    expression = "a = 1 OR " * 12_000 + "a = 2"
    with pytest.raises(ExpressionInvalid, match=f"over the limit of {CHARACTERS_MAX:,}"):
        compile_expression(expression)


def test_long_chains_and_lists_are_not_nested() -> None:
    assert value("a=1 OR " * 1000 + "a=2", a="2") is True
    assert value("a<>1 AND " * 800 + "a<>2", a="3") is True
    assert value(f"a IN ({','.join(map(repr, map(str, range(1000))))})", a="999") is True
    assert value("(" * (DEPTH_MAX - 2) + "a = 1" + ")" * (DEPTH_MAX - 2), a="1") is True


@given(conditions, properties)
def test_evaluation_equals_a_naive_evaluator(condition: Condition, message: Properties) -> None:
    present = {name: text for name, text in message.items() if text}  # empty values are not stored
    try:
        expected: bool | str | None = condition.evaluate(present)
    except Failed:
        expected = FAILS
    assert value(condition.text, **message) is expected
