"""The record codec: RocketMQ's bytes for all kinds of hosts and topics, and detection of damage."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.kernels.resync import next_bad_crc_property
from store.kernels.walk import BEYOND_END, BLANK, check_record_at
from store.message.compression import decompress
from store.message.hosts import Host
from store.message.message import MessageExt
from store.message.properties import decode_properties, encode_properties
from store.message.record import (
    BODY_CRC,
    MAGIC_V1,
    MAGIC_V2,
    RecordDraft,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    record_size,
)
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from store.store_errors import RecordDamaged

# Encoded by RocketMQ 5.3.3, whose encoder leaves the CRC 0.
GOLDEN = bytes.fromhex(
    "00000066daa320a7000000000000000300000007000000000000002a00000000000003e8000000000000018bcfe568000a000001"
    "000004d20000018bcfe568010a00000200002a9f0000000100000000000000000000000568656c6c6f02543100046b017602"
)
HELLO_CRC = 907060870
HELLO_POSITION = 1000

hosts = st.sampled_from([Host("10.0.0.1", 1234), Host("fd00::2", 65535)])
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20
)
drafts = st.builds(
    RecordDraft,
    topic=st.sampled_from(["T", "%RETRY%" + "g" * 120, "%RETRY%" + "g" * 121, "%RETRY%" + "g" * 240]),
    queue_id=i32,
    body=st.binary(max_size=300),
    properties=st.dictionaries(texts, texts, max_size=4).map(encode_properties),
    flag=i32,
    sys_flag=st.sampled_from([0, 0x1, 0x301, TRANSACTION_COMMIT]),
    born_timestamp=i64,
    born_host=hosts.map(lambda host: host.packed),
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)


def hello(properties: bytes = b"k\x01v\x02") -> RecordDraft:
    return RecordDraft(
        "T1",
        3,
        b"hello",
        properties,
        flag=7,
        born_timestamp=1700000000000,
        born_host=Host("10.0.0.1", 1234).packed,
        reconsume_times=1,
    )


def encoded_hello(**options: Any) -> bytes:
    return encode_record(
        hello(), 42, HELLO_POSITION, 1700000000001, Host("10.0.0.2", 10911).packed, **options
    )


def test_encoded_record_matches_rocketmqs_bytes() -> None:
    record = encoded_hello()

    assert record[:BODY_CRC] == GOLDEN[:BODY_CRC]
    assert int.from_bytes(record[BODY_CRC : BODY_CRC + 4], "big") == HELLO_CRC
    assert record[BODY_CRC + 4 :] == GOLDEN[BODY_CRC + 4 :]
    assert decode_record(record).offset_msg_id == "0A00000200002A9F00000000000003E8"


@given(
    draft=drafts,
    store_host=hosts,
    queue_offset=i64,
    physical_offset=i64,
    timestamp=i64,
    append_crc=st.booleans(),
)
def test_decoded_record_equals_the_encoded_draft(
    draft: RecordDraft,
    store_host: Host,
    queue_offset: int,
    physical_offset: int,
    timestamp: int,
    append_crc: bool,
) -> None:
    record = encode_record(
        draft, queue_offset, physical_offset, timestamp, store_host.packed, append_crc=append_crc
    )
    message = decode_record(b"before" + record + b"after", len(b"before"))

    assert (
        len(record) == record_size(draft, len(store_host.packed), append_crc=append_crc) == message.store_size
    )
    assert int.from_bytes(record[4:8], "big", signed=True) == (
        MAGIC_V1 if len(draft.topic) <= 127 else MAGIC_V2
    )
    message.properties.pop("__CRC32#", None)
    assert message.properties == decode_properties(draft.properties)
    assert (message.topic, message.queue_id, message.body) == (draft.topic, draft.queue_id, draft.body)
    assert (message.flag, message.sys_flag & ~0x30) == (draft.flag, draft.sys_flag)
    assert (message.queue_offset, message.commit_log_offset) == (queue_offset, physical_offset)
    assert (message.born_timestamp, message.store_timestamp) == (draft.born_timestamp, timestamp)
    assert (message.born_host.packed, message.store_host) == (draft.born_host, store_host)
    assert message.reconsume_times == draft.reconsume_times
    assert message.prepared_transaction_offset == draft.prepared_transaction_offset


@pytest.mark.parametrize("transaction", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_record_of_unfinished_transaction_has_queue_offset_0(transaction: int) -> None:
    draft = RecordDraft("T", 0, b"body", sys_flag=transaction)

    assert decode_record(encode_record(draft, 42, 0, 0, bytes(8))).queue_offset == 0


@given(draft=drafts, data=st.data())
def test_truncated_record_is_damaged(draft: RecordDraft, data: st.DataObject) -> None:
    record = encode_record(draft, 1, 2, 3, bytes(8))
    cut = data.draw(st.integers(0, len(record) - 1))

    assert decode_record(record).store_size == len(record)
    with pytest.raises(RecordDamaged) as raised:
        decode_records(record + record[:cut]) if cut else decode_record(b"")
    assert raised.value.position in (0, len(record))


@given(draft=drafts, data=st.data())
def test_corrupted_record_is_decoded_with_its_size_or_damaged(
    draft: RecordDraft, data: st.DataObject
) -> None:
    record = bytearray(encode_record(draft, 1, 2, 3, bytes(8)))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(RecordDamaged):
        assert decode_record(record).store_size == len(record)


def test_record_with_changed_body_is_damaged() -> None:
    record = bytearray(encoded_hello())
    record[88] ^= 1

    with pytest.raises(RecordDamaged, match="CRC"):
        decode_record(record)
    assert decode_record(record, check_crc=False).store_size == len(record)


def is_accepted(record: bytes) -> bool:
    """Return True if the store accepts a record of `encoded_hello`, with the CRC of its property."""
    buffer, size = np.frombuffer(record, np.uint8), len(record)
    is_record = check_record_at(buffer, 0, size, HELLO_POSITION, True) == size
    return is_record and next_bad_crc_property(buffer, 0, size) == (size, 0)


@pytest.mark.parametrize("position", range(102))
def test_crc_property_detects_a_change_at_any_position(position: int) -> None:
    record = bytearray(encoded_hello(append_crc=True))
    assert is_accepted(bytes(record))

    record[position] ^= 0x10

    assert not is_accepted(bytes(record))


def test_crc_property_adds_a_missing_last_separator() -> None:
    record = encode_record(hello(b"k\x01v"), 0, 0, 0, bytes(8), append_crc=True)

    assert decode_record(record).properties.keys() == {"k", "__CRC32#"}


def test_crc_property_of_another_record_is_replaced() -> None:
    copied = hello(b"k\x01v\x02__CRC32#\x010123456789\x02z\x01w")

    record = encode_record(copied, 0, 0, 0, bytes(8), append_crc=True)

    assert record == encode_record(hello(b"k\x01v\x02z\x01w"), 0, 0, 0, bytes(8), append_crc=True)
    assert len(record) == record_size(copied, append_crc=True)


def test_blank_record_must_not_exceed_its_file() -> None:
    blank = encode_blank(100)

    for rest, code in ((92, BLANK), (91, BEYOND_END)):
        file = np.frombuffer(blank + bytes(rest), np.uint8)
        assert check_record_at(file, 0, len(file), 0, True) == code


def rocketmq_fields(message: MessageExt) -> dict[str, Any]:
    """Return the fields of a message under the names that RocketMQ's reader wrote for each fixture record."""
    fields: dict[str, Any] = {
        "msgTopic": message.topic,
        "msgQueueId": message.queue_id,
        "msgQueueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "msgId": message.offset_msg_id,
        "uniqKey": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "bodyLen": len(message.body),
        "bodySha1": hashlib.sha1(message.body).hexdigest(),
    }
    plain = decompress(message.body, message.sys_flag)
    if message.sys_flag & 1:
        fields |= {"plainBodyLen": len(plain), "plainBodySha1": hashlib.sha1(plain).hexdigest()}
    return fields


def read_log(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


@pytest.mark.parametrize("ending", ["clean_store", "crashed_store"])
def test_records_of_a_rocketmq_store_decode_as_in_rocketmq(
    ending: str, request: pytest.FixtureRequest
) -> None:
    unpack: Callable[[], Any] = request.getfixturevalue(ending)
    store = unpack()
    log = read_log(store.root)

    for line in store.expected.read_text().splitlines():
        expected = json.loads(line)
        message = decode_record(log, expected["commitLogOffset"])
        got = rocketmq_fields(message)
        assert got == {name: expected[name] for name in got}
