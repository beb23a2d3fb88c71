"""Tag expressions: what they match, and what they cannot be."""

from __future__ import annotations

import pytest

from actors.broker.group.subscriptions import require_tag_type, tags_codes_of
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.message.tags import tags_code


@pytest.mark.parametrize("expression", ["", "*", " * ", "a || *"])
def test_everything(expression: str) -> None:
    assert tags_codes_of(expression) is None


def test_tags_are_split_and_trimmed() -> None:
    assert tags_codes_of("TagA|| b ||") == {tags_code("TagA"), tags_code("b")}


def test_only_bars_are_refused() -> None:
    with pytest.raises(Refused) as refused:
        tags_codes_of(" || ")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_other_filters_are_refused_by_name() -> None:
    require_tag_type(None)
    require_tag_type("TAG")
    with pytest.raises(Refused, match="SQL92"):
        require_tag_type("SQL92")
