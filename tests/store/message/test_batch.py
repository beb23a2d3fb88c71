"""Encoding and decoding the body of a batch request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.batch import encode_batch
from store.message.message import Message
from store.message.properties import encode_properties
from store.store_errors import MessageInvalid
from tests.store.kernels.plain_batch import decode_batch

GOLDEN = bytes.fromhex("000000290000000000000000000000070000000568656c6c6f000e6b01760257414954017472756502")

messages = st.lists(
    st.builds(
        Message,
        st.just("T"),
        st.binary(max_size=50),
        properties=st.dictionaries(st.text("ab", min_size=1), st.text("xyä", min_size=1), max_size=3),
        flag=st.integers(-5, 5),
    ),
    max_size=5,
)


def test_encode_batch_matches_rocketmqs_bytes() -> None:
    message = Message("T", b"hello", properties={"k": "v", "WAIT": "true"}, flag=7)

    assert encode_batch([message]) == GOLDEN


@given(messages)
def test_decoded_batch_equals_the_encoded_messages(batch: list[Message]) -> None:
    assert decode_batch(encode_batch(batch)) == [
        (message.flag, message.body, encode_properties(message.properties)) for message in batch
    ]


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_truncated_batch_is_refused(cut: int) -> None:
    with pytest.raises(MessageInvalid, match=f"byte {len(GOLDEN)}"):
        decode_batch(GOLDEN + GOLDEN[:cut])


@pytest.mark.parametrize("position", [0, 3, 16, 19, 25, 26])
def test_batch_with_inconsistent_lengths_is_refused(position: int) -> None:
    broken = bytearray(GOLDEN)
    broken[position] ^= 0x81

    with pytest.raises(MessageInvalid):
        decode_batch(broken)


def test_properties_over_the_limit_are_refused() -> None:
    with pytest.raises(MessageInvalid, match="32,767"):
        encode_batch([Message("T", b"", properties={"k": "v" * 32_766})])
