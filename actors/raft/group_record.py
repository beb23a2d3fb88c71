"""The body of a group record: a message of system topic `rmq_sys_raymq_group`, queue 0, in the log itself.

    {"group": "DefaultCluster/broker-a", "term": 7, "leader": [0, "store id"],
     "voters": [[0, "…"], [1, "…"], [2, "…"]], "learners": [], "addresses": {"…": "10.0.0.1:10911", …}}

The first record of each leader is one; another one changes the members.
"""

from typing import Any, NamedTuple

import orjson

from actors.raft.members import Member, Members
from actors.raft.term_file import decode_members, encode_members

GROUP_TOPIC = "rmq_sys_raymq_group"


class GroupRecordBody(NamedTuple):
    """The content of a group record."""

    group: str
    term: int
    leader: Member
    members: Members


def encode_group_record(body: GroupRecordBody) -> bytes:
    """Return the body of the message."""
    fields = {"group": body.group, "term": body.term, "leader": list(body.leader)}
    return orjson.dumps({**fields, **encode_members(body.members)})


def decode_group_record(body: bytes | memoryview) -> GroupRecordBody:
    """Return the content of the body of a message. Raises ValueError if it is not one of a group record."""
    try:
        fields: Any = orjson.loads(body)
        leader = Member(*fields["leader"])
        return GroupRecordBody(fields["group"], int(fields["term"]), leader, decode_members(fields))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the body of a group record: {error!r}") from error
