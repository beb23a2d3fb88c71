"""The encoding of the messages of a Raft group."""

from __future__ import annotations

import re
from typing import get_args

import orjson
import pytest

from actors.broker.replication.raft.message_codec import ITEMS_MAX, decode_message, encode_message
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.messages import JoinFrom, LeaderNotice, Message, NotServed, Records
from tests.fuzz.bodies import seeds_of_raft_messages

A, B = Member(0, "a"), Member(1, "b")
MEMBERS = Members((A, B))


def body_of(*fields: object, records: bytes = b"") -> bytes:
    head = orjson.dumps(fields)
    return len(head).to_bytes(4, "big") + head + records


def test_every_message_survives_encoding_and_decoding() -> None:
    decoded = [decode_message(body) for body in seeds_of_raft_messages()]
    assert {type(each) for each in decoded} == set(get_args(Message))
    assert [encode_message(each) for each in decoded] == seeds_of_raft_messages()


def test_records_keep_the_end_of_the_log_and_the_history_of_their_bytes() -> None:
    history = tuple(GroupRecord(start, start, MEMBERS) for start in (100, 103, 104, 900))
    sent = Records(A, 1_000, 7, 100, 50, 5_000, history, b"1234")
    found = decode_message(encode_message(sent))
    assert isinstance(found, Records)
    assert (found.offset, found.confirmed, found.end) == (100, 50, 5_000)
    assert [each.start for each in found.history] == [100, 103]
    assert isinstance(found.records, memoryview)
    assert bytes(found.records) == b"1234"


def test_long_reason_is_cut() -> None:
    found = decode_message(encode_message(NotServed(A, 1, -1, None, "x" * 10_000)))
    assert isinstance(found, NotServed)
    assert found.reason == "x" * 512


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"", "a head of 0 bytes", id="empty"),
        pytest.param(b"\x7f\xff\xff\xff[]", "a head of 2,147,483,647 bytes", id="long head"),
        pytest.param(b"\x00\x00\x00\x05{}", "in a body of 6", id="incomplete head"),
        pytest.param(b"\x00\x00\x00\x02{}", "not a JSON array", id="object"),
        pytest.param(b"\x00\x00\xff\xff" + b"[" * 65_535, "not a JSON array", id="deep"),
        pytest.param(body_of(), "no message of a group", id="no name"),
        pytest.param(body_of("Hello", [0, "a"], 1), "'Hello'", id="unknown name"),
        pytest.param(body_of("Ack", [0, "a"], 1), "not a valid Ack", id="missing field"),
        pytest.param(body_of("VoteRequest", [0, "a"], 3, True, 4, 9), "above the term 3", id="last term"),
        pytest.param(body_of("Mismatch", [0, "a"], 3, 7, 4, 9), "above the term 3", id="term of a mismatch"),
        pytest.param(
            body_of("FetchRequest", [0, "a"], 3, 7, 9, 4, 9, True), "above the term 3", id="term before"
        ),
        pytest.param(
            body_of("JoinFrom", [0, "a"], 3, 7, 9, [[5, 4, [[], []]]]), "above the term 3", id="group record"
        ),
        pytest.param(body_of("Ack", [0, "a"], 1, "9"), "not a valid Ack", id="text for number"),
        pytest.param(body_of("Ack", [0, "a"], 1, 2, records=b"x"), "1 bytes follow the head", id="records"),
        pytest.param(body_of("Ack", [0, "a"], -1, 2), "`term` is -1", id="negative"),
        pytest.param(body_of("Ack", [0, "a"], 1, 2**63), "`flushed` is", id="too large"),
        pytest.param(body_of("Ack", [0, "a" * 513], 1, 2), "513 characters", id="long store id"),
        pytest.param(
            body_of("FetchRequest", [0, "a"], 1, -2, 0, 0, 0, True), "`request_id`", id="request id"
        ),
        pytest.param(
            body_of("JoinFrom", [0, "a"], 1, 1, 1, [[1, 1, [[[0, "a"]] * (ITEMS_MAX + 1), []]]]),
            "4,097 entries",
            id="many members",
        ),
        pytest.param(
            body_of("Records", [0, "a"], 1, 1, 0, 0, 9, [[5, 1, [[], []]], [4, 1, [[], []]]], None),
            "cannot follow",
            id="history descends",
        ),
        pytest.param(
            body_of("Records", [0, "a"], 1, 1, 6, 0, 9, [[5, 1, [[], []]]], None),
            "begins before offset 6",
            id="history before records",
        ),
    ],
)
def test_invalid_body_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        decode_message(body)


def test_message_out_of_range_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="`term` is -5"):
        encode_message(LeaderNotice(A, -5))
    with pytest.raises(ValueError, match="4,097 entries"):
        encode_message(JoinFrom(A, 1, 1, 0, (GroupRecord(0, 1, Members((A,) * 4_097)),)))
