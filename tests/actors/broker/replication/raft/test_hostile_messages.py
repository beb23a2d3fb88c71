"""Messages of a Raft group that no replica sends: they are refused, and never cost what is confirmed."""

from __future__ import annotations

import random
from typing import Any, get_args

import orjson
import pytest

from actors.broker.replication.raft.message_codec import decode_message, encode_message
from actors.raft import effects as do
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.messages import LeaderNotice, Message
from actors.raft.node import RaftNode, Tick
from actors.wire.header import I64_MAX
from tests.actors.raft.test_node import RECORD_BYTES, A, B, D, a_node, elected, of, opened
from tests.fuzz.bodies import seeds_of_raft_messages

OTHER_STORE = Member(B.replica, "another store")
CONFIRMED, END = 1_000, 1_500
NUMBERS = (0, 1, RECORD_BYTES, CONFIRMED - 1, CONFIRMED, CONFIRMED + 1, END, END + 1, 1 << 40, I64_MAX)
TERMS = (0, 1, 2, 3, 4, 1 << 31)
WRONG: tuple[Any, ...] = (
    None, True, -2, 1 << 63, 1.5, "x", "x" * 513, [], {}, [[]], [0], [-1, "a"], ["a", 0], [[1, 1, [[], []]]],
    [[1, 1, [[[0, "a"]] * 2, []]]],
)  # fmt: skip


def head_of(body: bytes) -> tuple[list[Any], bytes]:
    length = int.from_bytes(body[:4], "big")
    return orjson.loads(body[4 : 4 + length]), body[4 + length :]


def body_of(fields: list[Any], records: bytes) -> bytes:
    head = orjson.dumps(fields)
    return len(head).to_bytes(4, "big") + head + records


@pytest.mark.parametrize("seed", seeds_of_raft_messages(), ids=lambda body: str(head_of(body)[0][0]))
def test_every_field_that_is_absent_or_of_another_form_is_refused(seed: bytes) -> None:
    """What is decoded nevertheless is a valid message: it can be encoded."""
    fields, records = head_of(seed)
    for place in range(len(fields)):
        for changed in (fields[:place], [*fields[:place], *fields[place + 1 :]]):
            with pytest.raises(ValueError, match=r"not a valid|no message of a group|follow the head"):
                decode_message(body_of(changed, records))
        for value in WRONG:
            try:
                found = decode_message(body_of([*fields[:place], value, *fields[place + 1 :]], records))
            except ValueError:
                continue
            encode_message(found)


def invented(kind: Any, sender: Member, rng: random.Random) -> Message:
    """Return a message of a kind with fields that are valid each, and fit to nothing."""
    values: dict[str, Any] = {"sender": sender}
    for name in kind._fields[1:]:
        if name in ("term", "asked_term", "term_before", "last_term"):
            values[name] = rng.choice(TERMS)
        elif name in ("is_pre", "is_granted", "is_electable"):
            values[name] = rng.random() < 0.5
        elif name == "leader":
            values[name] = rng.choice([None, A, B, D, OTHER_STORE])
        elif name == "reason":
            values[name] = "invented"
        elif name == "history":
            values[name] = (GroupRecord(rng.choice(NUMBERS), rng.choice(TERMS), Members((D,))),)
        elif name == "records":
            values[name] = bytes(rng.choice([0, 1, RECORD_BYTES]))
        else:
            values[name] = rng.choice(NUMBERS)
    made: Message = kind(**values)
    return made


def follower() -> tuple[RaftNode, int]:
    node = a_node(end=END, confirmed=CONFIRMED, term=2)
    node.on(LeaderNotice(B, 3), 10)
    return node, 20


def candidate() -> tuple[RaftNode, int]:
    node = a_node(end=END, confirmed=CONFIRMED, term=2)
    now = node.deadline_ms
    node.on(Tick(), now)
    return node, now


def new_leader() -> tuple[RaftNode, int]:
    node = a_node(end=END, confirmed=CONFIRMED, term=2)
    return node, elected(node)


def leader() -> tuple[RaftNode, int]:
    node = a_node(end=END, confirmed=CONFIRMED, term=2)
    return node, opened(node)


STATES = {"follower": follower, "candidate": candidate, "new leader": new_leader, "leader": leader}
CHANGES_LOG = (do.Truncate, do.Restart, do.Trim, do.Append, do.AppendGroupRecord)


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", STATES)
def test_invented_message_never_costs_what_is_confirmed(state: str, kind: Any) -> None:
    """A stranger, another store with a number of a member, and a lower term do not change the log at all."""
    rng = random.Random(f"{state} {kind.__name__}")
    for _ in range(60):
        node, now = STATES[state]()
        term, sender = node.term, rng.choice([B, D, OTHER_STORE])
        message = invented(kind, sender, rng)
        effects = node.on(message, now)
        for each in of(effects, do.Truncate):
            assert each.offset >= CONFIRMED, message
        for each in of(effects, do.Confirm):
            assert each.offset >= CONFIRMED, message
        if sender != B or message.term < term:
            assert not [each for each in effects if isinstance(each, CHANGES_LOG)], (message, effects)
