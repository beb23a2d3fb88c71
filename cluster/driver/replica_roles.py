"""The roles of replicas: master or slave, and how far a slave is behind its master."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from actors.broker.broker_settings import FOLLOWING
from actors.broker.replication.slave_stream import IN_SYNC_BYTES
from cluster.driver.plan import Running


@dataclass(frozen=True)
class ReplicaRole:
    """The role of one replica.

    Attributes:
        name: "master" or "slave".
        lag_bytes: How much of the master's log a slave lacks; None for a master, and without a master.
        is_in_sync: True for a slave that follows and lacks at most IN_SYNC_BYTES; None as for `lag_bytes`.
    """

    name: str
    lag_bytes: int | None = None
    is_in_sync: bool | None = None


def replica_roles(running: Iterable[Running]) -> dict[str, ReplicaRole]:
    """Return the roles of the brokers with replication, by actor name."""
    brokers = [actor for actor in running if actor.spec is not None and actor.spec.store is not None]
    masters: dict[Any, Running] = {}
    for actor in sorted(brokers, key=lambda actor: _setting(actor, "group_epoch") or 0):
        if not _is_slave(actor) and "written" in actor.details:
            masters[_setting(actor, "broker_name")] = actor
    return {
        actor.name: _slave(actor, masters.get(_setting(actor, "broker_name")))
        if _is_slave(actor)
        else ReplicaRole("master")
        for actor in brokers
        if _is_slave(actor) or _setting(actor, "replication") in ("async", "sync")
    }


def _slave(slave: Running, master: Running | None) -> ReplicaRole:
    if master is None or "written" not in slave.details:
        return ReplicaRole("slave")
    lag_bytes = max(0, int(master.details["written"]) - int(slave.details["written"]))
    follows = slave.details.get("replication_state") == FOLLOWING
    return ReplicaRole("slave", lag_bytes, follows and lag_bytes <= IN_SYNC_BYTES)


def _is_slave(actor: Running) -> bool:
    return actor.spec is not None and actor.spec.is_slave


def _setting(actor: Running, name: str) -> Any:
    return None if actor.spec is None else actor.spec.settings.get(name)
