"""The kinds of replicas, and their roles: master or slave, leader or follower, and how far one is behind.

What differs between a master, a slave and a member of a Raft group is in three classes, chosen by `kind_of`.
`raymq status` and the console show the roles by what each replica reports of itself (DESCRIBE_BROKER).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from actors.raft.state import Role
from actors.wire.raymq_requests import FOLLOWING, IN_SYNC_BYTES, STOPPED

_RAFT_STATE = "raft_state"
"""Field of DESCRIBE_BROKER: the role of a replica of a Raft group, or why it has none."""
NOT_A_MEMBER = "not a member"
"""Role of a replica that is not in its group: it was removed, or lost its store, or waits to be added."""


@dataclass(frozen=True)
class ReplicaRole:
    """The role of one replica.

    Attributes:
        name: "master", "slave"; of a Raft group "leader", "follower", "candidate", "failed", NOT_A_MEMBER.
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
        return self.name != NOT_A_MEMBER

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


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that follows no other: a single broker, or the master of a pair.

    Attributes:
        broker: Its broker.
        number: Its number among the replicas of the broker.
        details: What it reports of itself.
        epoch: That of its pair: the master with the greatest one is the newest.
    """

    broker: str
    number: int
    details: Mapping[str, Any]
    epoch: int = 0

    follows: ClassVar[str] = ""
    """What it must be in sync with after a restart, and what serves its clients while it is stopped."""
    votes: ClassVar[bool] = False
    """True if the replicas elect their leader, and need a majority."""

    @property
    def leads(self) -> bool:
        """True for a master, and for the leader of a Raft group."""
        return True

    @property
    def age(self) -> int:
        """Its epoch or term: that of the newest master is the greatest."""
        return self.epoch

    @property
    def needed_end(self) -> int:
        """How much of the log another replica must have to be in sync with this one."""
        return self._number("written") if self.leads else 0

    def lack(self, end: int) -> tuple[str, bool]:
        """Return what it lacks to be in sync with a log that is needed up to `end`; empty if it is in sync.

        The second value is True if it will not get that by itself.
        """
        return "", False

    def role(self, master: Replica | None) -> ReplicaRole:
        """Return its role; `master` leads its broker."""
        return ReplicaRole("master")

    def _number(self, field: str) -> int:
        return int(self.details.get(field, 0))

    def _behind(self, role: ReplicaRole, master: Replica | None, *, follows: bool) -> ReplicaRole:
        """Return the role with what this replica lacks of the master's log."""
        if master is None or "written" not in self.details:
            return role
        lag_bytes = max(0, int(master.details["written"]) - self._number("written"))
        return replace(role, lag_bytes=lag_bytes, is_in_sync=follows and lag_bytes <= IN_SYNC_BYTES)


class Slave(Replica):
    """A replica that follows the master of its pair."""

    __slots__ = ()
    follows = "its master"

    @property
    def leads(self) -> bool:
        """False: it is promoted by a restart with other settings."""
        return False

    def lack(self, end: int) -> tuple[str, bool]:
        """Return what it lacks of the log and the tables of its master."""
        state, written = str(self.details.get("replication_state", "")), self._number("written")
        missing = str(self.details.get("missing_tables", ""))
        if state.startswith(STOPPED):
            return state, True
        if state == FOLLOWING and written >= end and not missing:
            return "", False
        lacks = f"it lacks {missing}" if missing else f"that of the master at {end:,} or later"
        return f"{state}, its log ends at {written:,}, {lacks}", False

    def role(self, master: Replica | None) -> ReplicaRole:
        """Return the role of a slave."""
        follows = self.details.get("replication_state") == FOLLOWING
        return self._behind(ReplicaRole("slave"), master, follows=follows)


class RaftGroupReplica(Replica):
    """A replica of a Raft group, which elects its leader."""

    __slots__ = ()
    follows = "its group"
    votes = True

    @property
    def leads(self) -> bool:
        """True for the leader."""
        return group_role(self.details) == Role.LEADER

    @property
    def age(self) -> int:
        """Its term."""
        return self._number("raft_term")

    @property
    def needed_end(self) -> int:
        """What its group has confirmed."""
        return self._number("confirmed")

    def lack(self, end: int) -> tuple[str, bool]:
        """Return what it lacks of what its group has confirmed, or its role if it knows no leader."""
        if failure := group_failure(self.details):
            return failure, True
        role, confirmed = group_role(self.details), self._number("confirmed")
        if self.details.get("raft_leader") and role and confirmed >= end:
            return "", False
        return f"{role}, it has confirmed {confirmed:,} of {end:,} bytes", False

    def role(self, master: Replica | None) -> ReplicaRole:
        """Return its role in the group; `master` is the leader."""
        if _RAFT_STATE not in self.details:
            return ReplicaRole("failed")
        name = group_role(self.details)
        role = ReplicaRole(name or "failed", term=self.age)
        if name and not (knows_its_group(self.details) and self._is_known_to(master)):
            return replace(role, name=NOT_A_MEMBER)
        if self.leads:
            return replace(
                role, voters=(int(self.details["raft_active_voters"]), int(self.details["raft_voters"]))
            )
        return self._behind(role, master, follows=name == Role.FOLLOWER)

    def _is_known_to(self, leader: Replica | None) -> bool:
        """Return False if the leader names the others in its group, and this one is not among them."""
        if leader is None or leader is self or "raft_match" not in leader.details:
            return True
        others = [each.partition(":")[0].strip() for each in str(leader.details["raft_match"]).split(",")]
        return str(self.number) in others


def kind_of(known: Mapping[str, Any]) -> type[Replica]:
    """Return the kind of a replica with these settings, or that reports this of itself."""
    if known.get("replication") == "raft" or _RAFT_STATE in known:
        return RaftGroupReplica
    return Slave if known.get("role") == "slave" else Replica


def replica_of(broker: str, known: Mapping[str, Any], details: Mapping[str, Any]) -> Replica:
    """Return a replica. `known` are its settings, or what it reports; `details` is what it reports."""
    number, epoch = (int(known.get(name) or 0) for name in ("replica", "group_epoch"))
    return kind_of(known)(broker, number, details, epoch)


def roles_of(replicas: Iterable[Replica]) -> list[ReplicaRole]:
    """Return the role of each of the replicas, which may be of several brokers."""
    given = list(replicas)
    masters: dict[str, Replica] = {}
    for each in sorted(given, key=lambda each: each.age):
        if each.leads and "written" in each.details:
            masters[each.broker] = each
    return [each.role(masters.get(each.broker)) for each in given]


def group_role(details: Mapping[str, Any]) -> str:
    """Return the role of a replica in its Raft group; an empty text if it takes no part in one."""
    state = str(details.get(_RAFT_STATE, ""))
    return state if state in tuple(Role) else ""


def group_failure(details: Mapping[str, Any]) -> str:
    """Return why a replica takes no part in its Raft group; else, and for other brokers, an empty text."""
    return "" if group_role(details) else str(details.get(_RAFT_STATE, ""))


def knows_its_group(details: Mapping[str, Any]) -> bool:
    """Return True unless a replica of a Raft group says that it knows no group that it belongs to."""
    return bool(details.get("raft_voters", True))
