"""Promotion: makes a slave the master of its group. It knows the group, and what may be lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from actors.host.service_host import State
from cluster.driver import fleet, group_masters
from cluster.driver.group_masters import GroupMaster
from cluster.driver.plan import Running, full_name
from cluster.topology.topology import BrokerReplica, Topology


class Promotion:
    """One promotion: the replica `name` becomes the master of the group `broker`."""

    def __init__(self, topology: Topology, home: Path, name: str) -> None:
        """Read the state of the group. `refusal` says why the promotion is not possible, else it is empty.

        Args:
            topology: the topology with the group.
            home: directory of the cluster.
            name: actor of the replica to promote.
        """
        self._home, self._namespace = home, topology.namespace
        replicas = {
            actor: entry for _, actor, entry in topology.listeners() if isinstance(entry, BrokerReplica)
        }
        self.name = full_name(name, replicas)
        self.broker, self.masters, self._group = "", [], []
        self._others: Sequence[str] = ()
        entry = replicas.get(self.name)
        if entry is None or entry.replicas < 2:
            shown = ", ".join(actor for actor, each in replicas.items() if each.replicas > 1) or "none"
            self.refusal = f"{name!r} is not a replica of a group in the topology; replicas: {shown}"
            return
        self.broker, self._replica, self._is_sync = entry.name, entry.replica, entry.replication == "sync"
        self._others = [
            actor for actor, each in replicas.items() if each.name == entry.name and actor != self.name
        ]
        running = {
            actor.name: actor
            for actor in fleet.observe(topology.namespace)
            if actor.namespace == topology.namespace
        }
        self._group = [running[actor] for actor in self._others if actor in running]
        self.masters = [actor for actor in self._group if actor.spec is None or not actor.spec.is_slave]
        self._target = running.get(self.name)
        self.refusal = next(self._refusals(), "")

    def _refusals(self) -> Iterator[str]:
        target = self._target
        if target is None or target.state != State.SERVING or target.spec is None:
            yield f"{self.name} does not serve: `raymq status` shows why"
            return
        if not target.spec.is_slave:
            yield f"{self.name} is the master of {self.broker} already"
        for actor in self._group:
            if actor.spec is not None and actor.spec.is_slave and _written(actor) > _written(target):
                yield (
                    f"{actor.name} has more of the log than {self.name}: it ends at {_written(actor):,} "
                    f"instead of {_written(target):,}; promote {actor.name}"
                )

    def outlook(self) -> Iterator[str]:
        """Yield lines that say what may be lost."""
        assert self._target is not None
        end = _written(self._target)
        yield f"{self.name} has the log of {self.broker} up to {end:,}"
        serving = [actor for actor in self.masters if actor.state == State.SERVING]
        for master in serving:
            yield f"{master.name} is the master: its log ends at {_written(master):,}; it will be stopped"
        if not serving:
            yield "the master does not respond: whether its log has more than that is not known"
        if self._is_sync:
            yield (
                "with replication: sync an acknowledged message is on in_sync_replicas replicas: with 2, none"
                " is lost if this replica has the longest log of the slaves"
            )
        else:
            yield "with replication: async all messages after that position are lost on the new master"

    def save(self) -> None:
        """Record the new master and its epoch; all later starts of the replicas take their roles from it."""
        found = group_masters.exchange(self._home, self._namespace).get(self.broker, GroupMaster())
        epoch = found.epoch if found.replica == self._replica and found.epoch else found.epoch + 1
        group_masters.save(self._home, self._namespace, self.broker, GroupMaster(epoch, self._replica))

    def others(self, unplaceable: Collection[str]) -> list[str]:
        """Return the names of the group's other replicas, without those in `unplaceable`."""
        return [actor for actor in self._others if actor not in unplaceable]


def _written(actor: Running) -> int:
    return int(actor.details.get("written", 0))
