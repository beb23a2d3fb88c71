"""Message and MessageExt, MessageQueue, the hash of tags, and encoded addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.hosts import Host, unpack_host
from store.message.message import Message, MessageExt
from store.message.message_queue import MessageQueue
from store.message.tags import java_hash, tags_code


def test_tags_keys_and_delay_level_are_stored_as_properties() -> None:
    message = Message("T", b"body", "TagA", ["k1", "k2"], {"own": "property"}, delay_level=3)

    assert message.properties == {"own": "property", "TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "3"}
    assert (message.tags, message.keys, message.delay_level) == ("TagA", "k1 k2", 3)


def test_message_copies_the_properties_map() -> None:
    given_properties = {"a": "b"}
    Message("T", b"", "TagA", properties=given_properties)

    assert given_properties == {"a": "b"}


def test_message_without_properties_has_no_tags_keys_or_delay() -> None:
    message = Message("T", b"")

    assert (message.tags, message.keys, message.uniq_key, message.delay_level) == (None, None, None, 0)


def test_empty_delay_is_no_delay() -> None:
    message = Message("T", b"", properties={"DELAY": "", "TIMER_DELAY_MS": "", "TIMER_DELIVER_MS": ""})

    assert (message.delay_level, message.delay_ms, message.deliver_at_ms) == (0, 0, 0)


def test_msg_id_is_uniq_key_or_else_offset_msg_id() -> None:
    stored = MessageExt("T", b"", store_host=Host("10.0.0.2", 10911), commit_log_offset=1000)
    assert stored.msg_id == stored.offset_msg_id == "0A00000200002A9F00000000000003E8"

    stored.properties["UNIQ_KEY"] = "0123"

    assert stored.msg_id == "0123"


def test_message_queues_sort_and_print_as_in_rocketmq() -> None:
    queues = [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 10),
        MessageQueue("T", "a", 9),
        MessageQueue("S", "z", 1),
    ]

    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
    assert str(queues[0]) == "MessageQueue [topic=T, brokerName=b, queueId=0]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TagA", 2598919),
        ("\u4e2d\u6587", 646394),
        ("\U0001f600", 1772899),
        ("", 0),
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_java_hash_equals_javas_string_hash_code(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_tags_code_without_tags_is_0() -> None:
    assert (tags_code(None), tags_code(""), tags_code("TagA")) == (0, 0, 2598919)


@given(ip=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), port=st.integers(0, 65535))
def test_decoded_host_equals_the_encoded_host(ip: object, port: int) -> None:
    packed = Host(str(ip), port).packed

    assert len(packed) == (20 if ":" in str(ip) else 8)
    assert unpack_host(packed).packed == packed
    assert unpack_host(packed).port == port


def test_host_name_or_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="localhost"):
        Host("localhost", 1).packed  # noqa: B018
    with pytest.raises(ValueError, match="8 or 20"):
        unpack_host(b"1234567")
