"""Records of POP: bodies and keys as RocketMQ 5.3.3 wrote them, receipts, and invalid input."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.pop_records import (
    CheckPoint,
    ClaimAck,
    ClaimKey,
    Receipt,
    pop_retry_topic,
    real_topic,
)
from store.store_errors import MessageInvalid

# Written by a RocketMQ 5.3.3 broker: (body, UNIQ_KEY).
CHECK_POINT = (
    (
        b'{"bm":0,"bn":"broker-a","c":"PopG","d":[0,1,2],"it":3000,"n":3,"pt":1795678431943,"q":0,'
        b'"reviveTime":1795678434943,"ro":0,"so":0,"t":"PopT"}'
    ),
    "PopT@0@0@PopG@1795678431943@broker-a@ck",
)
CHANGED = (
    (
        b'{"bm":0,"bn":"broker-a","c":"PopG","d":[0],"it":6000,"n":1,"pt":1795678432098,"q":0,'
        b'"reviveTime":1795678438098,"ro":0,"so":1,"t":"PopT"}'
    ),
    "PopT@0@1@PopG@1795678432098@broker-a@ck",
)
ACK = (
    b'{"ao":1,"bn":"broker-a","c":"PopG","pt":1795678431943,"q":0,"so":0,"t":"PopT"}',
    "PopT@0@1@PopG@1795678431943@broker-a@ack",
)
BATCH_ACK = (
    b'{"ao":-1,"aol":[3,4],"bn":"broker-a","c":"PopG","pt":1795678432116,"q":0,"so":3,"t":"PopT"}',
    "PopT@0@-1@PopG@1795678432116@broker-a@ack",
)

NAMES = st.text("ABab%_-+", min_size=1, max_size=20)
NUMBERS = st.integers(0, 2**40)
KEYS = st.builds(ClaimKey, NAMES, NAMES, st.integers(0, 1000), NUMBERS, NUMBERS)


@pytest.mark.parametrize("written", [CHECK_POINT, CHANGED])
def test_check_point_has_rocketmqs_bytes(written: tuple[bytes, str]) -> None:
    body, key = written
    decoded = CheckPoint.decode(body, "broker-a")
    assert decoded is not None
    assert (decoded.encode("broker-a"), decoded.unique_key("broker-a")) == (body, key)
    assert decoded.revive_ms == orjson.loads(body)["reviveTime"]


@pytest.mark.parametrize(("written", "tag"), [(ACK, "ack"), (BATCH_ACK, "bAck")])
def test_ack_has_rocketmqs_bytes(written: tuple[bytes, str], tag: str) -> None:
    body, key = written
    decoded = ClaimAck.decode(body, "broker-a")
    assert decoded is not None
    assert (decoded.encode("broker-a"), decoded.unique_key("broker-a"), decoded.tag) == (body, key, tag)


@given(KEYS, NUMBERS, st.sets(st.integers(0, 200), min_size=1, max_size=32), st.data())
def test_check_point_survives_encoding(
    key: ClaimKey, invisible: int, deltas: set[int], data: st.DataObject
) -> None:
    offsets = tuple(key.start_offset + delta for delta in sorted(deltas))
    acked = frozenset(data.draw(st.sets(st.sampled_from(offsets))))
    point = CheckPoint(key, invisible, offsets, acked)
    assert CheckPoint.decode(point.encode("b"), "b") == point
    assert CheckPoint.decode(point.encode(""), "b") == point  # an empty name: this broker
    assert CheckPoint.decode(point.encode("other"), "b") is None
    ack = ClaimAck(key, offsets)
    assert ClaimAck.decode(ack.encode("b"), "b") == ack
    assert ClaimAck.decode(ack.encode("other"), "b") is None


def test_old_check_point_without_offsets_is_contiguous() -> None:
    content = orjson.loads(CHANGED[0]) | {"n": 3, "bm": 2}
    del content["d"]
    decoded = CheckPoint.decode(orjson.dumps(content), "broker-a")
    assert decoded is not None
    assert (decoded.offsets, decoded.acked) == ((1, 2, 3), {2})


@pytest.mark.parametrize(
    "change",
    [
        {"t": None}, {"c": 7}, {"q": -1}, {"so": "0"}, {"pt": None}, {"it": 1.5}, {"n": 33}, {"n": -1},
        {"d": []}, {"d": "0"}, {"d": [-1]}, {"d": list(range(33))}, {"bm": "1"},
    ],
)  # fmt: skip
def test_invalid_check_point_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MessageInvalid):
        CheckPoint.decode(orjson.dumps(orjson.loads(CHECK_POINT[0]) | change), "broker-a")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"t":"T"}', b"\xff", b'{"aol":[1],"t":"T","c":1}'])
def test_invalid_ack_is_refused(body: bytes) -> None:
    with pytest.raises(MessageInvalid):
        ClaimAck.decode(body, "broker-a")


RECEIPTS = st.builds(
    Receipt, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 999), st.sampled_from("012"), NAMES, NUMBERS, NUMBERS
)


@given(RECEIPTS)
def test_receipt_survives_encoding(receipt: Receipt) -> None:
    assert Receipt.decode(receipt.encode()) == receipt
    assert Receipt.decode(f"{receipt.encode()} 77") == receipt  # the gRPC proxy adds a CommitLog offset


@given(st.text(max_size=60))
def test_any_text_is_a_receipt_or_is_refused(text: str) -> None:
    try:
        receipt = Receipt.decode(text)
    except MessageInvalid:
        return
    assert receipt.encode().split(" ")[0].isdigit()


def test_rocketmqs_receipt_names_the_retry_topic() -> None:
    receipt = Receipt.decode("0 1795678446102 3000 6 1 broker-a 0 2")
    assert receipt == Receipt(0, 1795678446102, 3000, 6, "1", "broker-a", 0, 2)
    assert real_topic("PopT", "PopG", receipt.kind) == pop_retry_topic("PopG", "PopT") == "%RETRY%PopG_PopT"
    assert real_topic("PopT", "PopG", "2") == "%RETRY%PopG+PopT"
    assert real_topic("PopT", "PopG", "0") == "PopT"
