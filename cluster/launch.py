"""Starts, stops, restarts and drains clusters: the public API of the driver, and the main module of Ray jobs.

    ray job submit --working-dir . -- python -m cluster.launch configs/local.yaml

Actors are detached: they keep running after this process ends, and the command can be run again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from actors.host import ray_port
from actors.host.ray_port import ActorMethodFailed, ActorNotFound, ActorUnavailable
from actors.host.service_host import State
from actors.wire.raymq_requests import STOPPED
from cluster.control import fleet
from cluster.control.autoscaler import autoscaler, why_pending
from cluster.control.draining import Draining, find_broker
from cluster.control.driver import Driver, UpResult
from cluster.control.health import probe
from cluster.control.kinds import NAMESERVER
from cluster.control.launch_errors import LaunchFailed, LaunchRefused, refuse
from cluster.control.launch_report import ConsoleReport, Reporter
from cluster.control.majorities import lost_majorities
from cluster.control.migration import MemberChanges, migrate_broker
from cluster.control.placement import place
from cluster.control.plan import Running
from cluster.control.promotion import promote_replica
from cluster.control.scrape_targets import remove_target, write_targets
from cluster.control.session.environment import EnvironmentInvalid
from cluster.control.session.ray_head import HeadFailed, read_record, stop_head
from cluster.control.session.ray_session import (
    SessionFailed,
    SessionMode,
    choose_way,
    disconnect,
    is_connected,
    session,
)
from cluster.control.specs import ActorSpec, creation_order
from cluster.control.topology.topology import DEFAULT_NAMESPACE, Topology
from cluster.control.topology.topology_file import TopologyError, load_with_source
from cluster.paths import home_of, only_one_driver
from cluster.views.replicas import group_failure

ACTIVE = "active"
EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130
DRAIN_TIMEOUT_S = 300.0
STATUS_TIMEOUT_S = 1.0
Refusals = (TopologyError, LaunchRefused, EnvironmentInvalid)
Failures = (LaunchFailed, SessionFailed, HeadFailed, ActorMethodFailed, ActorNotFound, ActorUnavailable)


def up(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    report: Reporter | None = None,
    embedded: bool = False,
    dry_run: bool = False,
    prune: bool = False,
    broker_confs: Sequence[str | Path] = (),
    joining: Sequence[str] = (),
) -> UpResult:
    """Start the cluster of a topology file, or update the running one to match it.

    Args:
        file: the topology file, by default `configs/local.yaml`.
        overrides: `KEY=VALUE` texts that replace keys of the file.
        report: receives progress.
        embedded: start Ray in this process if none is running; it stops with the process or `leave_embedded`.
        dry_run: only report the plan.
        prune: remove actors that are no longer in the topology.
        broker_confs: RocketMQ's `broker.conf` files, which replace the topology's brokers.
        joining: replicas of Raft groups that begin with an empty store, to be added to their group.

    Raises TopologyError or LaunchRefused before anything is started, and LaunchFailed, SessionFailed or
    HeadFailed after that.
    """
    report = report or Reporter()
    topology, source = load_with_source(file, overrides, broker_confs)
    for warning in source.warnings:
        report.line(warning, "yellow")
    driver = Driver(
        topology, source, report, embedded=embedded, dry_run=dry_run, prune=prune, joining=joining
    )
    return driver.up()


def leave_embedded() -> None:
    """Stop an embedded Ray and its actors; call `down` first to stop the actors cleanly."""
    disconnect()


def down(topology: Topology, report: Reporter | None = None) -> int:
    """Stop the actors of a cluster, keep their stores, and return the number of stopped actors.

    Ray is stopped too if `up` started it and no other RayMQ cluster uses it.
    """
    report = report or Reporter()
    home = home_of(topology.cluster)
    with only_one_driver(home):
        way = choose_way(topology, home, os.environ)
        if way.mode is SessionMode.STARTED and not is_connected():
            # There is no Ray to connect to; stop processes left by a failed or interrupted start.
            stop_head(home)
            report.line(f"cluster {topology.cluster} is not running")
            return 0
        with report.working("connecting to Ray"), session(topology, home, way):
            running = [actor for actor in fleet.observe(topology.namespace) if actor.is_ours]
            mine, others = split_by_cluster(running, topology)
            write_targets(home, [])
            for actor in mine:
                stop_error = fleet.stop(topology.namespace, actor.name)
                report.line(
                    f"stopped {actor.name}{f' (not stopped cleanly: {stop_error})' if stop_error else ''}"
                )
        if not mine:
            report.line(f"cluster {topology.cluster} is not running")
        record = read_record(home)
        if others:
            names = ", ".join(f"{actor.name} ({actor.namespace})" for actor in others)
            report.line(f"Ray keeps running: it also runs {names}")
        elif record is None or way.mode is SessionMode.SUBMITTED:
            report.line("Ray keeps running: it was not started by `raymq up` of this cluster")
        else:
            with report.working("stopping Ray"):
                count = stop_head(home)
            report.line(f"stopped Ray ({count} processes)")
        return len(mine)


def restart(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    rolling: bool = False,
    waits: bool = True,
    report: Reporter | None = None,
    dry_run: bool = False,
) -> UpResult:
    """Restart the named actors, or all with `rolling`, one at a time.

    With `waits`, `route_refresh_ms` pass between two brokers, so that clients know the restarted one. Raises
    as `up` does, and LaunchRefused if no actor is named or the cluster is not running.
    """
    if not names and not rolling:
        raise LaunchRefused("name the actors to restart, or use --rolling to restart all of them")
    topology, source = load_with_source(file, overrides)
    driver = Driver(topology, source, report or Reporter(), dry_run=dry_run, waits=waits)
    return driver.restart(names or None)


def promote(
    file: str | Path | None,
    overrides: Sequence[str],
    replica: str,
    *,
    confirm: Callable[[], None] = lambda: None,
    report: Reporter | None = None,
    dry_run: bool = False,
) -> None:
    """Make a slave the master of its group, and its old master a slave.

    `confirm` is called when the possible loss was reported; an exception that it raises ends the promotion.
    Raises as `up` does, and LaunchRefused if `replica` is not a serving slave.
    """
    topology, source = load_with_source(file, overrides)
    driver = Driver(topology, source, report or Reporter(), dry_run=dry_run, waits=False)
    promote_replica(driver, replica, confirm)


def migrate(
    file: str | Path | None,
    overrides: Sequence[str],
    broker: str,
    changes: MemberChanges,
    *,
    confirm: Callable[[], None] = lambda: None,
    report: Reporter | None = None,
    dry_run: bool = False,
) -> None:
    """Make a running broker a Raft group, or a group a single broker, as the topology says.

    `confirm` is called when the steps were reported; an exception that it raises ends the migration. Raises
    as `up` does, and LaunchRefused if the broker cannot be migrated.
    """
    topology, source = load_with_source(file, overrides)
    driver = Driver(topology, source, report or Reporter(), dry_run=dry_run, waits=False, migrating=broker)
    migrate_broker(driver, broker, changes, confirm)


def drain(
    topology: Topology,
    broker: str,
    *,
    timeout_s: float = DRAIN_TIMEOUT_S,
    report: Reporter | None = None,
    dry_run: bool = False,
) -> None:
    """Drain a broker and stop it: disable writes, wait until all groups have consumed its messages, stop.

    The store is kept. Raises LaunchRefused if the broker is not running, or its Raft group would lose its
    majority, and LaunchFailed after `timeout_s`; the broker then keeps running and accepts writes again.
    """
    if timeout_s <= 0:
        raise LaunchRefused(f"--timeout {timeout_s:g} is invalid: use a positive number of seconds")
    report = report or Reporter()
    home = home_of(topology.cluster)
    with only_one_driver(home):
        way = choose_way(topology, home, os.environ)
        if way.mode is SessionMode.STARTED and not is_connected():
            raise LaunchRefused(f"cluster {topology.cluster} is not running")
        with session(topology, home, way):
            mine, _ = split_by_cluster(fleet.observe(topology.namespace), topology)
            draining = Draining(topology.namespace, find_broker(mine, broker), report, timeout_s)
            refuse(list(lost_majorities(mine, [draining.actor.name])))
            if dry_run:
                draining.show()
            else:
                draining.run()
                remove_target(home, draining.actor.name)


def split_by_cluster(running: Sequence[Running], topology: Topology) -> tuple[list[Running], list[Running]]:
    """Return the cluster's actors in the order in which they are stopped, and all other actors."""

    def is_mine(actor: Running) -> bool:
        return actor.namespace == topology.namespace and (
            actor.spec is None or actor.spec.cluster == topology.cluster
        )

    mine = [actor for actor in running if is_mine(actor)]
    mine.sort(key=lambda actor: -creation_order(actor.spec))
    return mine, [actor for actor in running if not is_mine(actor)]


@contextmanager
def session_if_running(topology: Topology) -> Iterator[bool]:
    """Connect to the cluster's Ray; the value is False, without a connection, if no Ray is running."""
    home = home_of(topology.cluster)
    way = choose_way(topology, home, os.environ)
    if way.mode is SessionMode.STARTED and not is_connected():
        yield False
    else:
        with session(topology, home, way):
            yield True


@dataclass(frozen=True)
class ActorStatus:
    """The state of one actor; `failing` is the reason why it does not serve, or empty."""

    actor: Running
    failing: str


def status(topology: Topology) -> list[ActorStatus]:
    """Return the status of a cluster's actors; an empty list if no Ray is running."""
    with session_if_running(topology) as is_running:
        if not is_running:
            return []
        running = [a for a in fleet.observe(topology.namespace, STATUS_TIMEOUT_S) if a.is_ours]
        placement = place(topology, ray_port.nodes(), autoscaler())
        mine, _ = split_by_cluster(running, topology)
        mine = [with_reason_of_wait(actor, topology) for actor in mine]
    without_node = {name: placement.resources[name] for name in placement.unplaceable}
    mine = [with_missing_node(actor, without_node) for actor in mine]
    mine.sort(key=lambda actor: (creation_order(actor.spec), actor.name))
    specs = [actor.spec for actor in mine if actor.spec is not None]
    return [ActorStatus(actor, why_failing(actor, specs)) for actor in mine]


def other_clusters(topology: Topology) -> list[str]:
    """Return the names of the other clusters on this Ray; an empty list if no Ray is running."""
    with session_if_running(topology) as is_running:
        if not is_running:
            return []
        _, others = split_by_cluster(fleet.observe(topology.namespace), topology)
    return sorted({actor.spec.cluster for actor in others if actor.spec is not None})


def with_missing_node(actor: Running, without_node: Mapping[str, str]) -> Running:
    """Return the actor, with a missing node as its reason if no live node has its resource.

    `without_node`: the resource of each actor that cannot be placed, by actor name.
    """
    if actor.spec is not None or actor.name not in without_node:
        return actor
    reason = f"no live node has the resource {without_node[actor.name]!r}"
    return replace(actor, state="node missing", reason=reason)


def with_reason_of_wait(actor: Running, topology: Topology) -> Running:
    """Return the actor, with the reason if it is an elastic broker that waits for a node."""
    resource = next(
        (entry.resource for _, entry in topology.elastic() if entry.number_of(actor.name) is not None), None
    )
    if actor.spec is not None or resource is None or not (reason := why_pending(resource)):
        return actor
    return replace(actor, state="pending", reason=reason)


def why_failing(actor: Running, specs: Sequence[ActorSpec]) -> str:
    """Return the reason why an actor does not serve, or an empty text."""
    if actor.spec is None or actor.state != State.SERVING:
        return actor.reason or actor.state
    if refusal := actor.details.get("write_refusal"):
        return f"refuses writes: {refusal}"
    if (replication := actor.details.get("replication_state", "")).startswith(STOPPED):
        return f"replication has {replication}"
    if failure := group_failure(actor.details):
        return f"takes no part in its Raft group: {failure}"
    if (drain := actor.details.get("drain_state", ACTIVE)) != ACTIVE:
        return f"is being drained ({drain})"
    return actor.details.get("problem") or probe(actor.spec, specs)


def find_nameservers(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """Return the nameserver addresses of a cluster on the Ray that this process is connected to.

    Clients accept the function itself: `Producer(nameservers=find_nameservers)`.
    """
    found = [actor.spec for actor in fleet.observe(namespace) if actor.namespace == namespace]
    return [spec.address for spec in found if spec is not None and spec.kind is NAMESERVER]


@contextmanager
def exiting_on_failures(errors: Console) -> Iterator[None]:
    """Print an error raised inside without a traceback, and exit with its code."""
    try:
        yield
    except (*Refusals, *Failures) as error:
        errors.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(EXIT_REFUSED if isinstance(error, Refusals) else EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        hint = (
            str(error)
            or "interrupted; run the command again to continue, or `raymq down` to stop the cluster"
        )
        errors.print(hint, style="yellow", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(EXIT_INTERRUPTED) from None


def run_up(
    file: str | None,
    overrides: Sequence[str],
    console: Console,
    *,
    dry_run: bool = False,
    prune: bool = False,
    broker_confs: Sequence[str] = (),
    joining: Sequence[str] = (),
    report: Reporter | None = None,
) -> None:
    """Run `up` with a console; the last line is `READY` with the nameservers' addresses."""
    report = report or ConsoleReport(console)
    result = up(
        file, overrides, report=report, dry_run=dry_run, prune=prune, broker_confs=broker_confs,
        joining=joining,
    )  # fmt: skip
    if not dry_run:
        console.print(f"READY {';'.join(result.nameservers)}", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start or update a cluster, as `raymq up` does."""
    parser = argparse.ArgumentParser(prog="python -m cluster.launch", description=main.__doc__)
    parser.add_argument("topology", nargs="?", help="a topology file; default configs/local.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--broker-conf", action="append", default=[], metavar="FILE", dest="broker_confs")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and change nothing")
    parser.add_argument(
        "--prune", action="store_true", help="remove actors that are no longer in the topology"
    )
    given = parser.parse_args(arguments)
    with exiting_on_failures(Console(stderr=True)):
        run_up(
            given.topology,
            given.overrides,
            Console(),
            dry_run=given.dry_run,
            prune=given.prune,
            broker_confs=given.broker_confs,
        )


if __name__ == "__main__":
    main()
