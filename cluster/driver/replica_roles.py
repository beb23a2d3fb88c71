"""The roles of replicas: master or slave, leader or follower, and how far a replica is behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from actors.broker.broker_settings import FOLLOWING
from actors.broker.replication.slave_stream import IN_SYNC_BYTES
from actors.raft.state import Role
from cluster.driver.plan import RAFT_STATE, Running

RAFT_ROLES = frozenset(role.value for role in Role)
"""Values of `raft_state` of a replica that takes part in its group; others say why it does not."""
NO_MEMBER = "not a member"
"""Role of a replica that is not in its group: it was removed, or lost its store, or waits to be added."""


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


def replica_roles(running: Iterable[Running]) -> dict[str, ReplicaRole]:
    """Return the roles of the brokers with replication, by actor name."""
    brokers = [actor for actor in running if actor.spec is not None and actor.spec.store is not None]
    masters: dict[Any, Running] = {}
    for actor in sorted(brokers, key=_epoch):
        if _leads(actor) and "written" in actor.details:
            masters[_setting(actor, "broker_name")] = actor
    return {
        actor.name: _role(actor, masters.get(_setting(actor, "broker_name")))
        for actor in brokers
        if _is_slave(actor) or _setting(actor, "replication")
    }


def knows_its_group(details: Mapping[str, Any]) -> bool:
    """Return True unless a replica of a Raft group says that it knows no group that it belongs to."""
    return bool(details.get("raft_voters", True))


def _role(actor: Running, master: Running | None) -> ReplicaRole:
    if _is_raft(actor):
        return _in_raft_group(actor, master)
    return _slave(actor, master) if _is_slave(actor) else ReplicaRole("master")


def _slave(slave: Running, master: Running | None) -> ReplicaRole:
    follows = slave.details.get("replication_state") == FOLLOWING
    return _behind(ReplicaRole("slave"), slave, master, follows=follows)


def _in_raft_group(actor: Running, leader: Running | None) -> ReplicaRole:
    details = actor.details
    if RAFT_STATE not in details:
        return ReplicaRole("failed")
    state = str(details[RAFT_STATE])
    role = ReplicaRole(state if state in RAFT_ROLES else "failed", term=int(details["raft_term"]))
    if state in RAFT_ROLES and not (knows_its_group(details) and _is_known_to(leader, actor)):
        return replace(role, name=NO_MEMBER)
    if _leads(actor):
        return replace(role, voters=(int(details["raft_active_voters"]), int(details["raft_voters"])))
    return _behind(role, actor, leader, follows=state == Role.FOLLOWER.value)


def _is_known_to(leader: Running | None, actor: Running) -> bool:
    """Return False if the leader names the others in its group, and `actor` is not among them."""
    if leader is None or leader.name == actor.name or "raft_match" not in leader.details:
        return True
    others = [each.partition(":")[0].strip() for each in str(leader.details["raft_match"]).split(",")]
    return str(_setting(actor, "replica") or 0) in others


def _behind(role: ReplicaRole, actor: Running, master: Running | None, *, follows: bool) -> ReplicaRole:
    """Return the role of a replica with what it lacks of the master's log."""
    if master is None or "written" not in actor.details:
        return role
    lag_bytes = max(0, int(master.details["written"]) - int(actor.details["written"]))
    return replace(role, lag_bytes=lag_bytes, is_in_sync=follows and lag_bytes <= IN_SYNC_BYTES)


def _leads(actor: Running) -> bool:
    if _is_raft(actor):
        return actor.details.get(RAFT_STATE) == Role.LEADER.value
    return not _is_slave(actor)


def _epoch(actor: Running) -> int:
    """Return the epoch or term of a replica: the master with the greatest one is the newest."""
    return int(actor.details.get("raft_term", 0) if _is_raft(actor) else _setting(actor, "group_epoch") or 0)


def _is_slave(actor: Running) -> bool:
    return actor.spec is not None and actor.spec.is_slave


def _is_raft(actor: Running) -> bool:
    return actor.spec is not None and actor.spec.is_raft


def _setting(actor: Running, name: str) -> Any:
    return None if actor.spec is None else actor.spec.settings.get(name)
