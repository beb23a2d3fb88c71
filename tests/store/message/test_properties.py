"""Encoding properties, and decoding malformed property strings as leniently as RocketMQ does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.properties import decode_properties, encode_properties, properties_text, properties_texts
from store.store_errors import MessageInvalid

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1)


@given(st.dictionaries(names, values))
def test_decoded_properties_equal_the_encoded_map(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


odd = st.text(st.sampled_from("\x01k\ud800é"))  # empty texts, separators, lone surrogates, non-ASCII


@given(
    st.lists(
        st.dictionaries(names, values) | st.dictionaries(odd.filter(lambda name: "\x01" not in name), odd)
    )
)
def test_properties_texts_equals_properties_text_of_each_map(maps: list[dict[str, str]]) -> None:
    assert properties_texts(maps) == [properties_text(properties) for properties in maps]


@pytest.mark.parametrize("properties", [{"a\x01b": "c"}, {"a\x02b": "c"}, {"a": "b\x02c\x01d"}])
def test_properties_texts_refuses_separators_in_names_and_values(properties: dict[str, str]) -> None:
    with pytest.raises(MessageInvalid, match="separator"):
        properties_texts([{"k": "v"}, properties])


def test_property_string_ends_with_a_separator() -> None:
    assert encode_properties({"k": "v", "WAIT": "true"}) == b"k\x01v\x02WAIT\x01true\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"k\x01v", {"k": "v"}),
        (b"k\x01v\x02k\x01w\x02", {"k": "w"}),
        (b"\x01v\x02k\x01\x02no separator\x02\x02a\x01b\x02", {"a": "b"}),
        (b"k\x01v\x02k\x01\x02", {"k": "v"}),
        (b"k\x01v\x01w\x02", {"k": "v\x01w"}),
        (b"k\x01\xff\x02", {"k": "\ufffd"}),
        ("имя\x01значение\x02".encode(), {"имя": "значение"}),
    ],
)
def test_malformed_property_string_is_decoded_leniently(encoded: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(encoded) == expected


@pytest.mark.parametrize("properties", [{"a\x01b": "c"}, {"a\x02b": "c"}, {"a": "b\x02c\x01d"}])
def test_encode_properties_refuses_separators_in_names_and_values(properties: dict[str, str]) -> None:
    with pytest.raises(MessageInvalid, match="separator"):
        encode_properties(properties)


def test_properties_with_empty_names_or_values_are_left_out() -> None:
    assert encode_properties({"": "v", "k": "", "a": "b"}) == b"a\x01b\x02"
