"""Messages decoded by the kernel equal those of the record codec."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.kernels.records_to_messages import SCRATCH_BYTES, decode_message_records
from store.message import fetched
from store.message.buffers import Buffer
from store.message.compression import compress
from store.message.message import MessageExt
from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_record, encode_record
from store.store_errors import RecordDamaged

V4, V6 = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x90]), bytes(19) + b"\x01"
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
Decode = Callable[[Buffer, int, int, str], tuple[list[MessageExt], int]]
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


def decode_all(records: bytes, count: int = 100, decode: Decode = decode_message_records) -> list[MessageExt]:
    found: list[MessageExt] = []
    position = 0
    while position < len(records):
        messages, position = decode(records, position, count, "b")
        assert 0 < len(messages) <= count
        found += messages
    return found


def decode_plain(records: bytes) -> list[MessageExt]:
    return decode_all(records, decode=fetched.decode_messages)


@given(st.lists(drafts, max_size=8), st.integers(1, 9))
def test_decode_messages_equals_decoding_one_record_at_a_time(made: list[RecordDraft], count: int) -> None:
    records = records_of(made)
    one_by_one: list[MessageExt] = []
    while (position := sum(message.store_size for message in one_by_one)) < len(records):
        one_by_one.append(decode_record(records, position, broker_name="b"))
    assert decode_all(records, count) == one_by_one
    assert decode_all(records, count, fetched.decode_messages) == one_by_one


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.integers(0, 255))
@example([b"a\x01b\x02a\x01c", b"\x01v\x02n\x01\x02n\x02", b"n\x01v\x01w\x02"], 10)
@example([b"n\x01\xff\x02", b"\xff"], 10)
def test_malformed_properties_are_decoded_as_leniently_as_in_plain_python(
    properties: list[bytes], part: int
) -> None:
    host = bytes([part, 255 - part, part // 3, 7, 0xFF, 0xFF, 0xFF, 0xFE])
    records = records_of([RecordDraft("T", 0, b"x", each, born_host=host) for each in properties])
    assert decode_all(records) == decode_plain(records)


def test_invalid_utf8_is_replaced_and_other_messages_are_unchanged() -> None:
    made = [RecordDraft("T", 0, b"x", each) for each in (b"k\x01v\x02", b"k\x01\xff\x02", "k\x01ß".encode())]
    assert [message.properties["k"] for message in decode_all(records_of(made))] == ["v", "\ufffd", "ß"]


def test_record_with_magic_v2_and_empty_body_is_decoded() -> None:
    [message] = decode_all(records_of([RecordDraft("long" * 50, 0, b"")]))
    assert (message.topic, message.body) == ("long" * 50, b"")


def test_many_records_and_bodies_longer_than_the_buffer_are_decoded() -> None:
    bodies = [bytes([number]) * 2000 for number in range(250)]
    bodies[100:100] = [b"x" * SCRATCH_BYTES, b"y" * (SCRATCH_BYTES - 300)]
    found = decode_all(records_of([RecordDraft("T", 0, body) for body in bodies]), 1000)
    assert [message.body for message in found] == bodies


def test_threads_do_not_share_their_buffer() -> None:
    runs = [records_of([RecordDraft("T", number, b"%d" % number)] * 50) for number in range(4)]
    expected = [decode_plain(records) for records in runs]
    wrong: list[int] = []

    def decode(number: int) -> None:
        wrong.extend(number for _ in range(200) if decode_all(runs[number]) != expected[number])

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@given(st.lists(drafts, min_size=1, max_size=4), st.data())
def test_damage_is_detected_as_in_plain_python(made: list[RecordDraft], data: st.DataObject) -> None:
    records = bytearray(records_of(made))
    place = data.draw(st.integers(0, len(records) - 1))
    records[place] ^= data.draw(st.integers(1, 255))
    damaged = bytes(records)
    try:
        expected = decode_plain(damaged)
    except RecordDamaged:
        with pytest.raises(RecordDamaged):
            decode_all(damaged)
    else:
        assert decode_all(damaged) == expected


def test_decoding_stops_before_a_truncated_record() -> None:
    records = records_of([RecordDraft("T", 0, b"1"), RecordDraft("T", 0, b"2")])
    for cut in range(1, len(records) // 2):
        messages, position = decode_message_records(records[:-cut], 0, 9, "b")
        assert [message.body for message in messages] == [b"1"]
        with pytest.raises(RecordDamaged):
            decode_message_records(records[:-cut], position, 9, "b")


@pytest.mark.parametrize("decode", [decode_message_records, fetched.decode_messages])
def test_body_that_cannot_be_decompressed_is_returned_as_stored(decode: Decode) -> None:
    body, flag = compress(b"long " * 100)
    good, bad = RecordDraft("T", 0, body, sys_flag=flag), RecordDraft("T", 0, b"nonsense", sys_flag=flag)
    plain = RecordDraft("T", 0, b"plain")
    found = decode_all(records_of([plain, good, bad, plain]), decode=decode)
    assert [message.body for message in found] == [b"plain", b"long " * 100, b"nonsense", b"plain"]
    assert [bool(message.body_error) for message in found] == [False, False, True, False]
    assert "cannot be decompressed" in str(found[2].body_error)
