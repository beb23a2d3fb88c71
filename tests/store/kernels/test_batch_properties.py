"""Properties of a batch's header on each of its messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.kernels.batch_properties import NAMES_MAX, with_properties
from store.store_errors import MessageInvalid
from tests.store.kernels.plain_batch import BatchElement, decode_batch, encode_element
from tests.store.kernels.plain_records import with_properties_plain

NO_LIMIT = 1 << 30

names = st.sampled_from(["a", "b", "ab", "axb", "ayb", "TAGS", "KEYS", "é"])
values = st.sampled_from(["", "1", "2\x01", "three"])
# Property strings as other clients may write them: without a last separator, with empty names and values.
texts = st.lists(st.tuples(st.one_of(names, st.just("")), values)).flatmap(
    lambda pairs: st.sampled_from(
        ["".join(f"{n}\x01{v}\x02" for n, v in pairs), "\x02".join(f"{n}\x01{v}" for n, v in pairs), "a\x02b"]
    )
)
elements = st.builds(BatchElement, st.integers(0, 9), st.binary(max_size=40), texts.map(str.encode))


@given(st.lists(elements, max_size=8), st.dictionaries(names, values.filter(bool), min_size=1))
def test_merge_equals_plain_python(messages: list[BatchElement], properties: dict[str, str]) -> None:
    batch = b"".join(map(encode_element, messages))
    assert decode_batch(batch) == messages
    assert bytes(with_properties(batch, properties, NO_LIMIT)) == with_properties_plain(batch, properties)


def test_messages_get_only_properties_that_they_lack() -> None:
    own = [b"", b"TAGS\x01own", b"TAGS\x01\x02KEYS\x01k\x02", b"XTAGS\x01x\x02"]
    batch = b"".join(encode_element(BatchElement(n, b"body", each)) for n, each in enumerate(own))
    merged = decode_batch(with_properties(batch, {"TAGS": "t", "sw8": "id"}, NO_LIMIT))
    assert [(each.flag, each.body) for each in merged] == [(n, b"body") for n in range(4)]
    assert [each.properties for each in merged] == [
        b"TAGS\x01t\x02sw8\x01id\x02",
        b"TAGS\x01own\x02sw8\x01id\x02",
        b"TAGS\x01\x02KEYS\x01k\x02TAGS\x01t\x02sw8\x01id\x02",
        b"XTAGS\x01x\x02TAGS\x01t\x02sw8\x01id\x02",
    ]


@pytest.mark.parametrize(
    ("own", "properties", "limit_bytes", "words"),
    [
        (b"a\x01" + b"x" * 32_000, {"b": "y" * 1_000}, NO_LIMIT, "over the limit of 32,767 bytes"),
        (b"", {str(n): "1" for n in range(NAMES_MAX + 1)}, NO_LIMIT, f"has {NAMES_MAX + 1} properties"),
        (b"", {"a": "1234567"}, 19, "add 20 bytes to 2 messages"),
    ],
)
def test_too_many_added_properties_are_refused(
    own: bytes, properties: dict[str, str], limit_bytes: int, words: str
) -> None:
    batch = encode_element(BatchElement(0, b"1", b"")) + encode_element(BatchElement(0, b"2", own))
    with pytest.raises(MessageInvalid, match=words):
        with_properties(batch, properties, limit_bytes)


def test_invalid_batch_is_refused() -> None:
    batch = encode_element(BatchElement(0, b"1", b"a\x011\x02"))
    with pytest.raises(MessageInvalid, match="the message at byte 0 of the batch"):
        with_properties(batch[:-1], {"a": "1"}, NO_LIMIT)
