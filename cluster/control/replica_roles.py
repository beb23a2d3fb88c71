"""The roles of the replicas among the actors that run."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.control.plan import Running
from cluster.views.replicas import ReplicaRole, roles_of


def replica_roles(running: Iterable[Running]) -> dict[str, ReplicaRole]:
    """Return the roles of the brokers with replication, by actor name."""
    brokers = [actor for actor in running if actor.spec is not None and actor.spec.store is not None]
    roles = zip(brokers, roles_of(actor.replica for actor in brokers), strict=True)
    return {
        actor.name: role
        for actor, role in roles
        if actor.spec is not None and (actor.spec.is_slave or actor.spec.settings.get("replication"))
    }
