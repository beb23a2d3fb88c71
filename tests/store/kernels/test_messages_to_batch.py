"""Batches encoded by the kernel equal those of the pure-Python `encode_elements`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.kernels.messages_to_batch import encode_message_batch
from store.message.batch import encode_elements
from store.message.message import Message, MessageExt
from store.message.properties import properties_texts

LIMIT, RESERVED = 4 << 20, 128
ordinary = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=300
).filter(lambda text: text not in ("UNIQ_KEY", "DELAY") and not text.startswith("TIMER_DE"))
messages = st.builds(
    Message,
    st.just("Töpic"),
    st.binary(min_size=1, max_size=400),
    properties=st.dictionaries(ordinary, ordinary, max_size=20),
    flag=st.integers(0, 127),
)


def ids_of(count: int, length: int = 32) -> list[str]:
    return [f"{number:0{length}X}" for number in range(count)]


def encode_plain(batch: list[Message], ids: list[str]) -> bytes:
    own = properties_texts([message.properties for message in batch])
    texts = [f"{text}UNIQ_KEY\x01{new_id}\x02" for text, new_id in zip(own, ids, strict=True)]
    return encode_elements(batch, texts, reserved_bytes=RESERVED)


@given(st.lists(messages, min_size=1, max_size=20), st.sampled_from([32, 56]))
def test_common_batches_equal_plain_python(batch: list[Message], id_length: int) -> None:
    ids = ids_of(len(batch), id_length)
    assert encode_message_batch(batch, ids, LIMIT, RESERVED) == encode_plain(batch, ids)


@pytest.mark.parametrize("count", [15, 16, 0xFFFF, 0x10000])
def test_batch_of_any_number_of_messages_equals_plain_python(count: int) -> None:
    batch = [Message("T", b"x", "tag")] * count
    assert encode_message_batch(batch, ids_of(count), LIMIT, RESERVED) == encode_plain(batch, ids_of(count))


@pytest.mark.parametrize("body_bytes", [255, 256, 0xFFFF, 0x10000])
def test_bodies_of_any_length_and_type_equal_plain_python(body_bytes: int) -> None:
    for kind in (bytes, bytearray, memoryview):
        batch = [Message("T", kind(b"x" * body_bytes), "tag") for _ in range(3)]  # type: ignore[arg-type]
        assert encode_message_batch(batch, ids_of(3), LIMIT, RESERVED) == encode_plain(batch, ids_of(3))


def unusual() -> dict[str, list[Any]]:
    plain = Message("T", b"x", "tag", "key")
    changed = Message("T", b"x")
    changed.properties = None  # type: ignore[assignment]
    numbers = Message("T", b"x")
    numbers.properties["n"] = 7  # type: ignore[assignment]
    return {
        "another topic": [plain, Message("U", b"x")],
        "no body": [plain, Message("T", b"")],
        "a large body": [plain, Message("T", bytes(LIMIT + 1))],
        "a text for a body": [plain, Message("T", "x")],  # type: ignore[arg-type]
        "no topic": [plain, Message(None, b"x")],  # type: ignore[arg-type]
        "delayed": [plain, Message("T", b"x", delay_level=3)],
        "delayed by ms": [plain, Message("T", b"x", delay_ms=3)],
        "with a time": [plain, Message("T", b"x", deliver_at_ms=3)],
        "an id of its own": [plain, Message("T", b"x", properties={"UNIQ_KEY": "A"})],
        "a separator in a name": [plain, Message("T", b"x", properties={"a\x01b": "v"})],
        "a separator in a value": [plain, Message("T", b"x", "a\x02b")],
        "an empty name": [plain, Message("T", b"x", properties={"": "v"})],
        "an empty value": [plain, Message("T", b"x", "")],
        "a lone surrogate": [plain, Message("T", b"x", "\ud800")],
        "long properties": [plain, Message("T", b"x", "t" * (32_767 - RESERVED - 47))],
        "no properties": [plain, changed],
        "a number for a value": [plain, numbers],
        "a large flag": [plain, Message("T", b"x", flag=128)],
        "a negative flag": [plain, Message("T", b"x", flag=-1)],
        "another kind of message": [plain, MessageExt("T", b"x")],
        "no message": [plain, {"topic": "T", "body": b"x", "properties": {}, "flag": 0}],
    }


@pytest.mark.parametrize("name", unusual())
def test_encode_batch_returns_none_for_unsupported_messages(name: str) -> None:
    for batch in (unusual()[name], unusual()[name][::-1]):
        assert encode_message_batch(batch, ids_of(2), LIMIT, RESERVED) is None


def test_longest_properties_are_encoded_and_longer_ones_not() -> None:
    # Names and separators of TAGS take 6 bytes, those of UNIQ_KEY 10, and the id 32.
    batch = [Message("T", b"x", "t" * (32_767 - RESERVED - 42 - 6))]
    assert encode_message_batch(batch, ids_of(1), LIMIT, RESERVED) == encode_plain(batch, ids_of(1))
    batch = [Message("T", b"x", "t" * (32_767 - RESERVED - 42 - 5))]
    assert encode_message_batch(batch, ids_of(1), LIMIT, RESERVED) is None
