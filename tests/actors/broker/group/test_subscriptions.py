"""Tag expressions: the filters compiled from them, and invalid expressions."""

from __future__ import annotations

import pytest

from actors.broker.group.subscriptions import compile_filter, require_tag_type
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.reading.message_filter import MATCH_ALL, TagFilter


@pytest.mark.parametrize("expression", ["", "*", " * ", "a || *"])
def test_expressions_that_match_all_messages(expression: str) -> None:
    assert compile_filter(expression) is MATCH_ALL


def test_tags_are_split_and_trimmed() -> None:
    assert compile_filter("TagA|| b ||") == TagFilter(["b", "TagA"])


def test_expression_without_tags_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        compile_filter(" || ")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_unsupported_expression_type_is_refused_by_name() -> None:
    require_tag_type(None)
    require_tag_type("TAG")
    with pytest.raises(Refused, match="SQL92"):
        require_tag_type("SQL92")
