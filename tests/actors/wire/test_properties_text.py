"""The `.properties` parser, compared with the results of java.util.Properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.wire.properties_text import encode_properties_text, located_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\n  c:3\r\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# comment\n! another\n\n   # and one\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("long=one,\\\n    two,\\\n  # no comment\nb=1", {"long": "one,two,# no comment", "b": "1"}),
        ("path=C:\\\\store\\ttab\\u0041\\:", {"path": "C:\\store\ttabA:"}),
        ("a\\=b=c=d", {"a=b": "c=d"}),
        ("ends=with\\\\\nb=1", {"ends": "with\\", "b": "1"}),
        ("empty=\nbare", {"empty": "", "bare": ""}),
        ("namesrvAddr=10.0.0.1:9876;10.0.0.2:9876", {"namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876"}),
    ],
)
def test_properties_are_parsed_as_in_java(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_invalid_escape_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 2: invalid escape"):
        parse_properties("a=1\nb=\\u12x4")


def test_settings_have_their_line_numbers() -> None:
    assert list(located_properties("#\na=1\nb=\\\n2")) == [(2, "a", "1"), (3, "b", "2")]


@given(st.text(alphabet="ab=:# !\\u0\n\r\t\f1", max_size=40))
def test_arbitrary_text_parses_or_raises_value_error(text: str) -> None:
    try:
        parse_properties(text)
    except ValueError:
        return


def test_settings_are_encoded_as_rocketmq_prints_them() -> None:
    text = encode_properties_text({"brokerName": "broker-a", "namesrvAddr": "a:1;b:2"})
    assert text == "brokerName=broker-a\nnamesrvAddr=a:1;b:2\n"
    assert parse_properties(text) == {"brokerName": "broker-a", "namesrvAddr": "a:1;b:2"}
