"""Decoding fetched records up to the first damaged one."""

from __future__ import annotations

import pytest

from store.message.compression import compress
from store.message.fetched import decode_messages
from store.message.record import RecordDraft, encode_record
from store.store_errors import RecordDamaged

HOST = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x90])


def test_decode_messages_stops_before_damage_and_raises_if_it_comes_first() -> None:
    body, flag = compress(b"long " * 100)
    records = encode_record(RecordDraft("T", 0, body, sys_flag=flag, born_host=HOST), 0, 0, 7, HOST)
    damaged = records + records[:-1]
    [message], position = decode_messages(damaged, 0, 9, "b")
    assert (message.body, message.broker_name, position) == (b"long " * 100, "b", len(records))
    with pytest.raises(RecordDamaged):
        decode_messages(damaged, position, 9, "b")
