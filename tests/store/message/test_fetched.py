"""Messages decoded in runs are what the record codec makes of them, one by one."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import MessageIllegal, RecordDamaged
from store.message.compression import compress, plain_body
from store.message.fetched import decode_messages
from store.message.message import MessageExt
from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_record, encode_record

V4, V6 = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x90]), bytes(19) + b"\x01"
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
drafts = st.builds(
    RecordDraft,
    st.sampled_from(["T", "other", "%RETRY%G"]),
    st.integers(0, 9),
    st.binary(max_size=40),
    st.dictionaries(texts, texts, max_size=4).map(encode_properties),
    flag=st.integers(-5, 5),
    born_timestamp=st.integers(0, 1 << 40),
    born_host=st.sampled_from([V4, V6]),
    reconsume_times=st.integers(0, 16),
)


def records_of(made: list[RecordDraft]) -> bytes:
    records = b""
    for number, draft in enumerate(made):
        records += encode_record(draft, number, len(records), 7 + number, V4)
    return records


def one_by_one(records: bytes) -> list[MessageExt]:
    messages: list[MessageExt] = []
    position = 0
    while position < len(records):
        message = decode_record(records, position, broker_name="b")
        position += message.store_size
        message.body = plain_body(message)
        messages.append(message)
    return messages


@given(st.lists(drafts, max_size=8), st.integers(1, 9))
def test_a_run_is_the_same_as_one_by_one(made: list[RecordDraft], count: int) -> None:
    records, position = records_of(made), 0
    found: list[MessageExt] = []
    while position < len(records):
        messages, position = decode_messages(records, position, count, "T", "b")
        assert 0 < len(messages) <= count
        found += messages
    assert found == one_by_one(records)


def in_runs(records: bytes) -> list[MessageExt]:
    found: list[MessageExt] = []
    position = 0
    while position < len(records):
        messages, position = decode_messages(records, position, 100, "T", "b")
        found += messages
    return found


@given(st.lists(drafts, min_size=1, max_size=4), st.data())
def test_no_damage_passes(made: list[RecordDraft], data: st.DataObject) -> None:
    records = bytearray(records_of(made))
    place = data.draw(st.integers(0, len(records) - 1))
    records[place] ^= data.draw(st.integers(1, 255))
    damaged = bytes(records)
    try:
        expected = one_by_one(damaged)
    except (RecordDamaged, MessageIllegal):
        with pytest.raises((RecordDamaged, MessageIllegal)):
            in_runs(damaged)
    else:
        assert in_runs(damaged) == expected


def test_a_truncated_run_ends_before_the_cut() -> None:
    records = records_of([RecordDraft("T", 0, b"1"), RecordDraft("T", 0, b"2")])
    for cut in range(1, len(records) // 2):
        messages, position = decode_messages(records[:-cut], 0, 9, "T", "b")
        assert [message.body for message in messages] == [b"1"]
        with pytest.raises(RecordDamaged):
            decode_messages(records[:-cut], position, 9, "T", "b")


def test_a_body_that_cannot_be_inflated_ends_the_run() -> None:
    body, flag = compress(b"long " * 100)
    good, bad = RecordDraft("T", 0, body, sys_flag=flag), RecordDraft("T", 0, b"nonsense", sys_flag=flag)
    records = records_of([good, bad])
    messages, position = decode_messages(records, 0, 9, "T", "b")
    assert [message.body for message in messages] == [b"long " * 100]
    with pytest.raises(MessageIllegal, match="cannot be inflated"):
        decode_messages(records, position, 9, "T", "b")


def test_a_message_can_be_changed_copied_and_pickled() -> None:
    records = records_of([RecordDraft("T", 0, b"1", encode_properties({"TAGS": "t", "k": "v"}))])
    [message], _ = decode_messages(records, 0, 1, "T", "b")
    twin = decode_record(records, broker_name="b")
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message == twin
    assert (message.tags, message.keys) == ("t", None)
    message.tags = "other"
    assert message != twin
    message.properties = {}
    assert message.tags is None
    with pytest.raises(TypeError):
        hash(message)
