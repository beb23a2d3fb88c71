"""The roles of replicas: master or slave, leader or follower, and how far a replica is behind.

`raymq status` and the console show them by what each replica reports of itself (DESCRIBE_BROKER).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from actors.raft.state import Role
from actors.wire.raymq_requests import FOLLOWING, IN_SYNC_BYTES

RAFT_STATE = "raft_state"
"""Field of DESCRIBE_BROKER: the role of a replica of a Raft group, or why it has none."""
RAFT_ROLES = frozenset(role.value for role in Role)
"""Values of `raft_state` of a replica that takes part in its group; others say why it does not."""
NO_MEMBER = "not a member"
"""Role of a replica that is not in its group: it was removed, or lost its store, or waits to be added."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a broker: what is known of it, and what it reports of itself.

    `epoch` is that of its pair: the master with the greatest one is the newest.
    """

    broker: str
    number: int
    details: Mapping[str, Any]
    is_slave: bool = False
    is_raft: bool = False
    epoch: int = 0

    @property
    def leads(self) -> bool:
        """True for a master, and for the leader of a Raft group."""
        return self.details.get(RAFT_STATE) == Role.LEADER.value if self.is_raft else not self.is_slave

    @property
    def age(self) -> int:
        """Its epoch or term: that of the newest master is the greatest."""
        return int(self.details.get("raft_term", 0)) if self.is_raft else self.epoch


@dataclass(frozen=True)
class ReplicaRole:
    """The role of one replica.

    Attributes:
        name: "master" or "slave"; of a Raft group "leader", "follower", "candidate", "failed", or NO_MEMBER.
        lag_bytes: How much of the master's log a slave lacks; None for a master, and without a master.
        is_in_sync: True for a slave that follows and lacks at most IN_SYNC_BYTES; None as for `lag_bytes`.
        term: Of a replica of a Raft group, its term.
        voters: Of a leader, the number of active voters, itself included, and of all voters.
    """

    name: str
    lag_bytes: int | None = None
    is_in_sync: bool | None = None
    term: int | None = None
    voters: tuple[int, int] | None = None

    @property
    def is_member(self) -> bool:
        """False for a replica that is not in its Raft group."""
        return self.name != NO_MEMBER

    @property
    def is_bare_majority(self) -> bool:
        """True for a leader that cannot lose another voter."""
        return self.voters is not None and self.voters[0] <= self.voters[1] // 2 + 1

    @property
    def text(self) -> str:
        """The role with its term and lag."""
        if self.name == "master":
            return self.name
        if not self.is_member:
            return f"{self.name} of its group"
        parts = [self.name]
        if self.term is not None:
            parts.append(f"term {self.term}")
        if self.is_bare_majority:
            parts.append("on a bare majority")
        if self.lag_bytes is not None:
            parts += [f"{self.lag_bytes:,} B behind", "in sync" if self.is_in_sync else "not in sync"]
        elif self.name in ("slave", "follower"):
            parts.append("lag unknown")
        return ", ".join(parts)


def roles_of(replicas: Iterable[Replica]) -> list[ReplicaRole]:
    """Return the role of each of the replicas, which may be of several brokers."""
    given = list(replicas)
    masters: dict[str, Replica] = {}
    for each in sorted(given, key=lambda each: each.age):
        if each.leads and "written" in each.details:
            masters[each.broker] = each
    return [_role(each, masters.get(each.broker)) for each in given]


def knows_its_group(details: Mapping[str, Any]) -> bool:
    """Return True unless a replica of a Raft group says that it knows no group that it belongs to."""
    return bool(details.get("raft_voters", True))


def _role(replica: Replica, master: Replica | None) -> ReplicaRole:
    if replica.is_raft:
        return _in_raft_group(replica, master)
    if not replica.is_slave:
        return ReplicaRole("master")
    follows = replica.details.get("replication_state") == FOLLOWING
    return _behind(ReplicaRole("slave"), replica, master, follows=follows)


def _in_raft_group(replica: Replica, leader: Replica | None) -> ReplicaRole:
    details = replica.details
    if RAFT_STATE not in details:
        return ReplicaRole("failed")
    state = str(details[RAFT_STATE])
    role = ReplicaRole(state if state in RAFT_ROLES else "failed", term=int(details["raft_term"]))
    if state in RAFT_ROLES and not (knows_its_group(details) and _is_known_to(leader, replica)):
        return replace(role, name=NO_MEMBER)
    if replica.leads:
        return replace(role, voters=(int(details["raft_active_voters"]), int(details["raft_voters"])))
    return _behind(role, replica, leader, follows=state == Role.FOLLOWER.value)


def _is_known_to(leader: Replica | None, replica: Replica) -> bool:
    """Return False if the leader names the others in its group, and `replica` is not among them."""
    if leader is None or leader is replica or "raft_match" not in leader.details:
        return True
    others = [each.partition(":")[0].strip() for each in str(leader.details["raft_match"]).split(",")]
    return str(replica.number) in others


def _behind(role: ReplicaRole, replica: Replica, master: Replica | None, *, follows: bool) -> ReplicaRole:
    """Return the role of a replica with what it lacks of the master's log."""
    if master is None or "written" not in replica.details:
        return role
    lag_bytes = max(0, int(master.details["written"]) - int(replica.details["written"]))
    return replace(role, lag_bytes=lag_bytes, is_in_sync=follows and lag_bytes <= IN_SYNC_BYTES)
