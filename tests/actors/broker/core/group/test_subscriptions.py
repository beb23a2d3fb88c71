"""Tag and SQL92 expressions: the filters compiled from them, and invalid expressions."""

from __future__ import annotations

import weakref

import pytest

from actors.broker.core.group.compiled_filters import CompiledFilters
from actors.broker.core.group.subscriptions import compile_filter, compile_in_steps, takes_long
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.reading.message_filter import MATCH_ALL, MessageFilter, TagFilter
from store.reading.sql_filter import SqlFilter


@pytest.mark.parametrize("expression", ["", "*", " * ", "a || *"])
def test_expressions_that_match_all_messages(expression: str) -> None:
    assert compile_filter(expression) is MATCH_ALL


def test_tags_are_split_and_trimmed() -> None:
    assert compile_filter("TagA|| b ||") == TagFilter(["b", "TagA"])


def test_expression_without_tags_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        compile_filter(" || ")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_sql_expression_is_compiled_once() -> None:
    compiled = compile_filter("a > 10", "SQL92")
    assert compiled == SqlFilter("a > 10")
    assert compile_filter("a > 10", "SQL92") is compiled
    assert compile_filter("a > 10", "TAG") == TagFilter(["a > 10"])


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("", "the expression is empty"),
        ("a > ", "the SQL92 expression 'a > ' is invalid: the expression is incomplete"),
        ("a > > 5", "(at character 5)"),
        ("a = 1 OR " * 12_000 + "a = 2", "108,005 characters, over the limit of 8,192"),
        ("(" * 1000 + "a = 1" + ")" * 1000, "nested more than 100 deep"),
    ],
)
def test_invalid_sql_expression_is_refused_with_the_position(expression: str, remark: str) -> None:
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            compile_filter(expression, "SQL92")
        assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert remark in refused.value.remark
        assert len(refused.value.remark) < 500


def test_unsupported_expression_type_is_refused_by_name() -> None:
    assert compile_filter("a", None) == compile_filter("a", "") == compile_filter("a", "TAG")
    with pytest.raises(Refused, match=r"by XPATH: use expression type TAG or SQL92") as refused:
        compile_filter("a", "XPATH")
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("expression_type", ["TAG", "SQL92"])
def test_compiled_filters_are_kept_up_to_a_number_of_bytes(expression_type: str) -> None:
    def compiled(number: int) -> MessageFilter:
        return compile_filter(f"{'a' * 8000}{number} = 1", expression_type)

    first = weakref.ref(compiled(0))
    assert compiled(0) is first()
    for number in range(1, 100):
        compiled(number)
    assert first() is None


def test_long_sql_expression_is_compiled_in_steps() -> None:
    expression = " OR ".join(f"a = {number}" for number in range(100))
    assert takes_long(expression, "SQL92")
    assert not takes_long(expression, "TAG")
    steps = list(compile_in_steps(expression, "SQL92"))
    assert len(steps) > 5
    assert not takes_long(expression, "SQL92")
    assert compile_filter(expression, "SQL92") == SqlFilter(expression)
    assert list(compile_in_steps(f"{expression} OR", "SQL92"))
    with pytest.raises(Refused, match="the expression is incomplete"):
        compile_filter(f"{expression} OR", "SQL92")


def test_filters_in_use_are_compiled_once_and_bounded_by_bytes() -> None:
    filters = CompiledFilters(cache_bytes=3_000, live_bytes_max=12_000)
    held = [TagFilter([f"t{number}"]) for number in range(10)]
    for number, each in enumerate(held[:9]):
        filters.put(f"t{number}", each)
    assert filters.get("t0") is held[0]  # in use, no longer in the cache
    with pytest.raises(Refused, match=r"the filters in use take 11,556 bytes, .* over the limit of 12,000"):
        filters.put("t9", held[9])
    held[:5] = []
    del each
    assert filters.get("t0") is None
    filters.put("t9", held[-1])


def test_expression_that_is_far_too_long_is_refused_each_time() -> None:
    expression = "a = 1 OR " * 100_000
    for _ in range(2):
        assert not takes_long(expression, "SQL92")
        assert not list(compile_in_steps(expression, "SQL92"))
        with pytest.raises(Refused, match="has 900,000 characters, over the limit of 8,192"):
            compile_filter(expression, "SQL92")
