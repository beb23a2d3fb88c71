"""The roles of the replicas among the actors that run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cluster.control.plan import Running
from cluster.views.replicas import Replica, ReplicaRole, roles_of


def replica_roles(running: Iterable[Running]) -> dict[str, ReplicaRole]:
    """Return the roles of the brokers with replication, by actor name."""
    brokers = [actor for actor in running if actor.spec is not None and actor.spec.store is not None]
    roles = dict(zip((actor.name for actor in brokers), roles_of(map(_replica, brokers)), strict=True))
    return {
        actor.name: roles[actor.name]
        for actor in brokers
        if (actor.spec is not None and actor.spec.is_slave) or _setting(actor, "replication")
    }


def _replica(actor: Running) -> Replica:
    assert actor.spec is not None
    return Replica(
        _setting(actor, "broker_name"),
        int(_setting(actor, "replica") or 0),
        actor.details,
        actor.spec.is_slave,
        actor.spec.is_raft,
        int(_setting(actor, "group_epoch") or 0),
    )


def _setting(actor: Running, name: str) -> Any:
    return None if actor.spec is None else actor.spec.settings.get(name)
