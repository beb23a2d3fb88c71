"""Promotion: makes a slave the master of its group. It knows the group, and what may be lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from actors.host import ray_port
from actors.host.service_host import State
from cluster.control import fleet, pair_masters
from cluster.control.autoscaler import autoscaler
from cluster.control.driver import Driver
from cluster.control.launch_errors import LaunchRefused, refusal
from cluster.control.pair_masters import PairMaster
from cluster.control.placement import place
from cluster.control.plan import PlannedAction, Running, Verb, full_name, only, restarting
from cluster.control.topology.topology import BrokerReplica, Topology
from cluster.control.topology.topology_file import TopologyError


def promote_replica(driver: Driver, name: str, confirm: Callable[[], None]) -> None:
    """Make a slave the master of its group: stop the old master, restart the slave, then the others.

    Args:
        driver: the driver of the cluster; with its `dry_run`, only the possible loss is reported.
        name: actor of the replica to promote.
        confirm: called when the possible loss was reported; raises an exception to end the promotion.

    Raises as `Driver.restart`, and LaunchRefused if the actor is not a serving slave, or another has more.
    """
    with driver.connected():
        promotion = Promotion(driver.topology, driver.home, name)
        for line in promotion.preview():
            driver.report.line(line)
        if driver.dry_run:
            return
        confirm()
        promotion.save()
        try:
            plan, _ = driver.plan(lambda plan: restarting(plan, [promotion.name]), [promotion.name])
        except (LaunchRefused, TopologyError):
            promotion.undo()
            raise
        for master in promotion.masters:
            driver.stop(PlannedAction(Verb.REMOVE, master.name, "no longer the master"))
        driver.apply(plan)
        driver.report.line(f"{promotion.name} is the master of {promotion.broker}")
        _follow(driver, promotion)


def _follow(driver: Driver, promotion: Promotion) -> None:
    """Start and restart the other replicas of a group whose master was promoted, if they have a node."""
    names = promotion.others(place(driver.topology, ray_port.nodes(), autoscaler()).unplaceable)
    plan, _ = driver.plan(lambda plan: only(plan, names), names)
    for action in plan.having(Verb.CREATE, Verb.ROLL):
        assert action.spec is not None
        if action.verb is Verb.ROLL:
            driver.stop(action)
        fleet.create(driver.topology.namespace, action.spec)
        driver.await_serving([action.spec])
        problem = fleet.wait_in_sync(driver.topology.namespace, action.spec, driver.timeout_s, driver.waiting)
        text = f"does not follow it: {problem}" if problem else "follows it"
        driver.report.line(f"{action.name} {text}", "yellow" if problem else "")


class Promotion:
    """One promotion: the replica `name` becomes the master of the group `broker`."""

    def __init__(self, topology: Topology, home: Path, name: str) -> None:
        """Read the state of the group.

        Args:
            topology: the topology with the group.
            home: directory of the cluster.
            name: actor of the replica to promote.

        Raises LaunchRefused if the promotion is not possible.
        """
        self._home, self._namespace = home, topology.namespace
        self._previous = PairMaster()
        replicas = {
            actor: entry for _, actor, entry in topology.listeners() if isinstance(entry, BrokerReplica)
        }
        self.name = full_name(name, replicas)
        entry = replicas.get(self.name)
        if entry is None or entry.replicas < 2:
            shown = ", ".join(actor for actor, each in replicas.items() if each.replicas > 1) or "none"
            text = f"{name!r} is not a replica of a group in the topology; replicas: {shown}"
            raise refusal([text])
        if entry.elects_master:
            text = (
                f"the replicas of {entry.name} elect their master (replication: raft); `raymq transfer "
                f"{entry.name} --to {entry.replica}` makes this one the leader"
            )
            raise refusal([text])
        self.broker, self._replica, self._is_sync = entry.name, entry.replica, entry.replication == "sync"
        self._others: Sequence[str] = [
            actor for actor, each in replicas.items() if each.name == entry.name and actor != self.name
        ]
        running = {
            actor.name: actor
            for actor in fleet.observe(topology.namespace)
            if actor.namespace == topology.namespace
        }
        self._group = [running[actor] for actor in self._others if actor in running]
        self.masters = [actor for actor in self._group if actor.spec is None or not actor.spec.is_slave]
        self._target = self._promotable(running.get(self.name))
        longer = [
            f"{actor.name} has more of the log than {self.name}: it ends at {_written(actor):,} "
            f"instead of {_written(self._target):,}; promote {actor.name}"
            for actor in self._group
            if actor.spec is not None and actor.spec.is_slave and _written(actor) > _written(self._target)
        ]
        if longer:
            raise refusal(longer)

    def _promotable(self, target: Running | None) -> Running:
        if target is None or target.state != State.SERVING or target.spec is None:
            raise refusal([f"{self.name} does not serve: `raymq status` shows why"])
        if not target.spec.is_slave:
            raise refusal([f"{self.name} is the master of {self.broker} already"])
        if missing := target.details.get("missing_tables"):
            text = (
                f"{self.name} has just joined, and has not copied {missing} of its master yet: queues and "
                "groups would continue at wrong offsets; try again in some seconds, while the master serves"
            )
            raise refusal([text])
        return target

    def preview(self) -> Iterator[str]:
        """Yield lines that say what may be lost."""
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
        found = pair_masters.exchange(self._home, self._namespace).get(self.broker, PairMaster())
        epoch = found.epoch if found.replica == self._replica and found.epoch else found.epoch + 1
        pair_masters.save(self._home, self._namespace, self.broker, PairMaster(epoch, self._replica))
        self._previous = found

    def undo(self) -> None:
        """Restore the record that `save` replaced, because no replica was restarted."""
        pair_masters.save(self._home, self._namespace, self.broker, self._previous)

    def others(self, unplaceable: Collection[str]) -> list[str]:
        """Return the names of the group's other replicas, without those in `unplaceable`."""
        return [actor for actor in self._others if actor not in unplaceable]


def _written(actor: Running) -> int:
    return int(actor.details.get("written", 0))
