"""The body of a batch request: the client encodes it, and the broker makes its records from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.kernels.encode import check_batch, encode_batch_records
from store.message.batch import encode_batch
from store.message.hosts import Host
from store.message.message import Message, MessageExt
from store.message.record import RecordDraft, decode_records
from store.store_errors import MessageInvalid

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


def stored(batch: bytes) -> list[MessageExt]:
    """Return the messages of the records that the broker makes from a batch."""
    host = Host("10.0.0.1", 10911).packed
    return decode_records(encode_batch_records(batch, RecordDraft("T", 0, b""), 0, 0, 0, host).records)


def test_encode_batch_matches_rocketmqs_bytes() -> None:
    message = Message("T", b"hello", properties={"k": "v", "WAIT": "true"}, flag=7)

    assert encode_batch([message]) == GOLDEN


@given(messages)
def test_records_of_a_batch_have_the_encoded_messages(batch: list[Message]) -> None:
    encoded = encode_batch(batch)
    assert check_batch(encoded) == len(batch)
    assert [(each.flag, each.body, each.properties) for each in stored(encoded)] == [
        (each.flag, each.body, each.properties) for each in batch
    ]


@pytest.mark.parametrize("cut", range(1, len(GOLDEN)))
def test_truncated_batch_is_refused(cut: int) -> None:
    for read in (check_batch, stored):
        with pytest.raises(MessageInvalid, match=f"byte {len(GOLDEN)}"):
            read(GOLDEN + GOLDEN[:cut])


@pytest.mark.parametrize("position", [0, 3, 16, 19, 25, 26])
def test_batch_with_inconsistent_lengths_is_refused(position: int) -> None:
    broken = bytearray(GOLDEN)
    broken[position] ^= 0x81

    for read in (check_batch, stored):
        with pytest.raises(MessageInvalid, match="byte 0"):
            read(bytes(broken))


def test_properties_over_the_limit_are_refused() -> None:
    with pytest.raises(MessageInvalid, match="32,767"):
        encode_batch([Message("T", b"", properties={"k": "v" * 32_766})])
