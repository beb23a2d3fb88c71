"""Properties: a map there and back, and RocketMQ's lenience towards strings that are not quite right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.properties import decode_properties, encode_properties, properties_text, properties_texts
from store.store_errors import MessageInvalid

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1)


@given(st.dictionaries(names, values))
def test_map_comes_back_as_it_was(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


odd = st.text(st.sampled_from("\x01k\ud800é"))  # what is left out, and what takes care


@given(
    st.lists(
        st.dictionaries(names, values) | st.dictionaries(odd.filter(lambda name: "\x01" not in name), odd)
    )
)
def test_maps_of_a_batch_are_written_as_each_alone(maps: list[dict[str, str]]) -> None:
    assert properties_texts(maps) == [properties_text(properties) for properties in maps]


@pytest.mark.parametrize("properties", [{"a\x01b": "c"}, {"a\x02b": "c"}, {"a": "b\x02c\x01d"}])
def test_a_map_among_others_that_would_be_read_as_another_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageInvalid, match="separator"):
        properties_texts([{"k": "v"}, properties])


def test_last_pair_ends_with_a_separator_too() -> None:
    assert encode_properties({"k": "v", "WAIT": "true"}) == b"k\x01v\x02WAIT\x01true\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"k\x01v", {"k": "v"}),
        (b"k\x01v\x02k\x01w\x02", {"k": "w"}),
        (b"\x01v\x02k\x01\x02no separator\x02\x02a\x01b\x02", {"a": "b"}),
        (b"k\x01v\x01w\x02", {"k": "v\x01w"}),
        (b"k\x01\xff\x02", {"k": "\ufffd"}),
        ("имя\x01значение\x02".encode(), {"имя": "значение"}),
    ],
)
def test_strings_are_read_leniently(encoded: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(encoded) == expected


@pytest.mark.parametrize("properties", [{"a\x01b": "c"}, {"a\x02b": "c"}, {"a": "b\x02c\x01d"}])
def test_property_that_would_be_read_as_another_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageInvalid, match="separator"):
        encode_properties(properties)


def test_empty_values_are_left_out_as_every_reader_drops_them() -> None:
    assert encode_properties({"": "v", "k": "", "a": "b"}) == b"a\x01b\x02"
