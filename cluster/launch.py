"""Bringing a topology up and down: the face of the driver, and what `ray job submit` runs.

    ray job submit --working-dir . -- python -m cluster.launch configs/local.yaml

The actors are detached, so that this process may end and be run again: by hand, by `raymq up`, as a job.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from actors.host import ray_port
from actors.host.ray_port import ActorMethodFailed, ActorNotFound, ActorUnavailable
from actors.host.service_host import State
from cluster.driver import fleet
from cluster.driver.draining import Draining, find_broker
from cluster.driver.driver import Driver, LaunchFailed, LaunchRefused, UpResult
from cluster.driver.health import probe
from cluster.driver.placement import place
from cluster.driver.plan import ActorSpec, Kind, Running
from cluster.launch_report import ConsoleReport, Report
from cluster.paths import home_of, only_one_driver
from cluster.session.environment import EnvironmentInvalid
from cluster.session.ray_head import HeadFailed, read_record, stop_head
from cluster.session.ray_session import Mode, SessionFailed, choose_way, disconnect, is_connected, session
from cluster.topology.topology import DEFAULT_NAMESPACE, Topology
from cluster.topology.topology_file import TopologyError, load_with_source

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
    report: Report | None = None,
    embedded: bool = False,
    dry_run: bool = False,
    prune: bool = False,
    broker_confs: Sequence[str | Path] = (),
) -> UpResult:
    """Make the cluster of a topology file be so, and give what serves.

    `embedded`: start Ray in this process, if it has none; it ends with the process or `leave_embedded`.
    `broker_confs`: RocketMQ's files, each a broker in the place of the topology's own.
    Raises TopologyError or LaunchRefused (nothing was started), LaunchFailed, SessionFailed, HeadFailed.
    """
    report = report or Report()
    topology, source = load_with_source(file, overrides, broker_confs)
    for warning in source.warnings:
        report.line(warning, "yellow")
    driver = Driver(topology, source, report, embedded=embedded, dry_run=dry_run, prune=prune)
    return driver.up()


def leave_embedded() -> None:
    """End an embedded Ray, and with it its actors; use `down` before to stop them in order."""
    disconnect()


def down(topology: Topology, report: Report | None = None) -> int:
    """Stop a cluster's actors in order and keep their stores; gives how many there were.

    Ray is ended too if `up` started it, unless another cluster of ours is on it.
    """
    report = report or Report()
    home = home_of(topology.cluster)
    with only_one_driver(home):
        way = choose_way(topology, home, os.environ)
        if way.mode is Mode.STARTED and not is_connected():
            # Nothing to attach to; what a broken or interrupted start left is cleared away.
            stop_head(home)
            report.line("nothing runs")
            return 0
        with report.working("connecting to Ray"), session(topology, home, way):
            running = [actor for actor in fleet.observe(topology.namespace) if actor.is_ours]
            mine, others = split_by_cluster(running, topology)
            for actor in mine:
                stop_error = fleet.stop(topology.namespace, actor.name)
                report.line(f"stopped {actor.name}{f' (not in order: {stop_error})' if stop_error else ''}")
        record = read_record(home)
        if record is None or way.mode is Mode.SUBMITTED:
            report.line("Ray goes on: `raymq up` did not start it")
        elif others:
            names = ", ".join(f"{actor.name} ({actor.namespace})" for actor in others)
            report.line(f"Ray goes on: it also has {names}")
        else:
            with report.working("ending Ray"):
                count = stop_head(home)
            report.line(f"ended Ray ({count} processes)")
        return len(mine)


def restart(
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    rolling: bool = False,
    waits: bool = True,
    report: Report | None = None,
    dry_run: bool = False,
) -> UpResult:
    """Restart the named actors, or with `rolling` all; each goes only when the one before serves again.

    `waits`: no broker goes while clients may not know that another is back (`route_refresh_ms`).

    Raises as `up` does; LaunchRefused also where nothing is named or nothing runs.
    """
    if not names and not rolling:
        raise LaunchRefused("name what to restart, or give --rolling for all of it, one after the other")
    topology, source = load_with_source(file, overrides)
    driver = Driver(topology, source, report or Report(), dry_run=dry_run, waits=waits)
    return driver.restart(names or None)


def drain(
    topology: Topology,
    broker: str,
    *,
    timeout_s: float = DRAIN_TIMEOUT_S,
    report: Report | None = None,
    dry_run: bool = False,
) -> None:
    """Let producers leave a broker and groups read to its end, then take it down; its store stays.

    Raises LaunchRefused where no such broker runs, LaunchFailed where that takes longer than `timeout_s`: it
    is then written again.
    """
    if timeout_s <= 0:
        raise LaunchRefused(f"--timeout {timeout_s:g} is no time: give seconds, such as {DRAIN_TIMEOUT_S:g}")
    report = report or Report()
    home = home_of(topology.cluster)
    with only_one_driver(home):
        way = choose_way(topology, home, os.environ)
        if way.mode is Mode.STARTED and not is_connected():
            raise LaunchRefused(f"nothing of cluster {topology.cluster} runs")
        with session(topology, home, way):
            mine, _ = split_by_cluster(fleet.observe(topology.namespace), topology)
            draining = Draining(topology.namespace, find_broker(mine, broker), report, timeout_s)
            if dry_run:
                draining.show()
            else:
                draining.run()


def split_by_cluster(running: Sequence[Running], topology: Topology) -> tuple[list[Running], list[Running]]:
    """This cluster's actors, in the order in which to stop them, and all others."""

    def is_mine(actor: Running) -> bool:
        return actor.namespace == topology.namespace and (
            actor.spec is None or actor.spec.cluster == topology.cluster
        )

    order = list(reversed(Kind))
    mine = [actor for actor in running if is_mine(actor)]
    mine.sort(key=lambda actor: order.index(actor.spec.kind) if actor.spec else 0)
    return mine, [actor for actor in running if not is_mine(actor)]


@dataclass(frozen=True)
class ActorStatus:
    """One actor as Ray has it, and whether it answers at its own address: `failing` says why not."""

    actor: Running
    failing: str


def status(topology: Topology) -> list[ActorStatus]:
    """The actors of a cluster; empty where no Ray runs."""
    home = home_of(topology.cluster)
    way = choose_way(topology, home, os.environ)
    if way.mode is Mode.STARTED and not is_connected():
        return []
    with session(topology, home, way):
        running = [a for a in fleet.observe(topology.namespace, STATUS_TIMEOUT_S) if a.is_ours]
        placement = place(topology, ray_port.nodes())
    mine, _ = split_by_cluster(running, topology)
    away = {name: placement.resources[name] for name in placement.unplaceable}
    mine = [with_node_away(actor, away) for actor in mine]
    brokers = [actor.spec for actor in mine if actor.spec is not None and actor.spec.kind is Kind.BROKER]
    order = list(Kind)
    mine.sort(key=lambda actor: (order.index(actor.spec.kind) if actor.spec else len(order), actor.name))
    return [ActorStatus(actor, why_failing(actor, brokers)) for actor in mine]


def with_node_away(actor: Running, away: Mapping[str, str]) -> Running:
    """An actor that does not answer, with the reason that its node is away where that is so."""
    if actor.spec is not None or actor.name not in away:
        return actor
    reason = f"its node is away: no living node has the resource {away[actor.name]!r}"
    return replace(actor, state="node away", reason=reason)


def why_failing(actor: Running, brokers: Sequence[ActorSpec]) -> str:
    """Why an actor does not serve, or an empty string."""
    if actor.spec is None or actor.state != State.SERVING:
        return actor.reason or actor.state
    if refusal := actor.details.get("write_refusal"):
        return f"refuses writes: {refusal}"
    if (drain := actor.details.get("drain_state", ACTIVE)) != ACTIVE:
        return f"is being drained ({drain})"
    return probe(actor.spec, brokers)


def find_nameservers(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """The nameservers of a cluster on the Ray cluster that this process is connected to, for clients.

    A client may be given this function itself: `Producer(nameservers=find_nameservers)`.
    """
    found = [actor.spec for actor in fleet.observe(namespace) if actor.namespace == namespace]
    return [spec.address for spec in found if spec is not None and spec.kind is Kind.NAMESERVER]


@contextmanager
def exiting_on_errors(errors: Console) -> Iterator[None]:
    """Run a command's work; print an error without a traceback, and exit with its code."""
    try:
        yield
    except (*Refusals, *Failures) as error:
        errors.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(EXIT_REFUSED if isinstance(error, Refusals) else EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        hint = str(error) or "interrupted; run it again to go on, or `raymq down` to take down what runs"
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
) -> None:
    """`up` on a console; its last line is `READY` with the nameservers' addresses."""
    report = ConsoleReport(console)
    result = up(file, overrides, report=report, dry_run=dry_run, prune=prune, broker_confs=broker_confs)
    if not dry_run:
        console.print(f"READY {';'.join(result.nameservers)}", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m cluster.launch TOPOLOGY`: what `raymq up` does."""
    parser = argparse.ArgumentParser(prog="python -m cluster.launch", description=main.__doc__)
    parser.add_argument("topology", nargs="?", help="a topology file; default configs/local.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--broker-conf", action="append", default=[], metavar="FILE", dest="broker_confs")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and change nothing")
    parser.add_argument("--prune", action="store_true", help="remove actors that the topology no longer has")
    given = parser.parse_args(arguments)
    with exiting_on_errors(Console(stderr=True)):
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
