"""Bodies about the members of a Raft group, as JSON.

GET_RAFT_MEMBERS (7214)     {"group": "DefaultCluster/broker-a", "term": 7, "confirmed": 4096,
                             "members": [{"replica": 0, "storeId": "…", "address": "10.0.0.1:10911",
                                          "isVoter": true, "isLeader": true, "match": 4096}, …]}
CHANGE_RAFT_MEMBERS (7213)  {"state": "changed", "text": "replica 3 (store …) gets the log"}
"""

from typing import Final

from actors.wire.bodies.body import Body, wire
from actors.wire.header import AnyListOf, Long, Name, Text

CHANGED: Final = "changed"
"""A step was made: its record is appended, and not yet confirmed."""
WAITING: Final = "waiting"
"""The next step cannot be made yet; the text says why."""
DONE: Final = "done"
"""The group has the requested members, and its record of them is confirmed."""


class RaftMember(Body):
    """One member of a Raft group.

    `match` is the CommitLog offset up to which it has the leader's log on disk; -1 if the broker that
    responds does not lead. A learner (`is_voter` False) gets the log, but counts for no majority.
    """

    replica: Long = 0
    store_id: Name = ""
    address: Name = ""
    is_voter: bool = False
    is_leader: bool = False
    match: Long = -1


class RaftMembers(Body):
    """Response body of GET_RAFT_MEMBERS: the members of the group as one replica knows them."""

    group: Name = ""
    term: Long = 0
    confirmed: Long = 0
    members: AnyListOf[RaftMember] = wire(default_factory=list)


class RaftChange(Body):
    """Response body of CHANGE_RAFT_MEMBERS: `state` is CHANGED, WAITING or DONE."""

    state: Name = DONE
    text: Text = ""
