"""Driver: applies a topology to a Ray cluster.

It compares the topology with the running actors, removes, adjusts and creates actors, restarts others one at
a time, and checks that all of them serve.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from actors.host import ray_port
from actors.host.code_version import code_version
from actors.host.service_host import State
from cluster.control import bindings, fleet, pair_masters
from cluster.control.autoscaler import autoscaler
from cluster.control.exposure import exposed
from cluster.control.health import wait_until_healthy
from cluster.control.kinds import BROKER, NAMESERVER, is_live_setting, make_specs
from cluster.control.launch_errors import LaunchFailed, LaunchRefused, refuse
from cluster.control.launch_report import Reporter
from cluster.control.majorities import lost_majorities
from cluster.control.placement import place
from cluster.control.plan import Plan, PlannedAction, Running, Verb, make_plan, restarting
from cluster.control.preflight import PortAndStore, check_all, free_ports
from cluster.control.raft_groups import RaftGroups
from cluster.control.restart_spacing import REFRESH_DURATION_S, RestartSpacing
from cluster.control.scrape_targets import write_targets
from cluster.control.session.environment import AUTH_MODE_ENV
from cluster.control.session.ray_head import read_record, stop_head
from cluster.control.session.ray_session import SessionMode, Way, choose_way, is_connected, session
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import ElasticBroker, SingleBroker, Topology
from cluster.control.topology.topology_file import Source, TopologyError
from cluster.paths import home_of, only_one_driver
from cluster.waiting import SYSTEM_WAITING, Waiting
from store.compiling import compile_early
from store.ownership.identity import StoreIdentity

Result = TypeVar("Result")

SERVE_TIMEOUT_S = 120.0
HEALTH_TIMEOUT_S = 30.0
PLACEMENT_TIMEOUT_S = 30.0
CHECK_TIMEOUT_S = 120.0
"""Timeout of a preflight check on another node.

A node that has just joined starts its agents before its first task, and Ray replaces a worker that does not
register only after 60 s, so the timeout must be longer.
"""
PAUSE_S = 0.5


@dataclass(frozen=True)
class UpResult:
    """Result of `up` or `restart`.

    Attributes:
        plan: The plan that was applied, or with `dry_run` would be.
        specs: The settings of all actors, with the ports chosen for `listen_port: 0`.
        mode: How this process reached Ray.
    """

    plan: Plan
    specs: Sequence[ActorSpec]
    mode: SessionMode

    @property
    def nameservers(self) -> list[str]:
        """Return the nameserver addresses to configure in clients."""
        return [spec.address for spec in self.specs if spec.kind is NAMESERVER]


@dataclass
class Driver:
    """One run of the driver for one topology.

    Attributes:
        topology: The topology.
        source: The file and overrides from which it was read, for error messages.
        report: Output of the run.
        embedded: Start Ray in this process.
        dry_run: Print the plan without applying it.
        prune: Remove actors that are not in the topology.
        joining: Replicas of Raft groups that begin with an empty store, to be added to their group.
        migrating: The broker that is to become a Raft group, or a single broker again; empty: none.
        waits: Restart a broker only when all clients know that the previously restarted broker serves again.
        timeout_s: Maximum time for an actor to start.
        waiting: How the driver waits.
        home: Directory of the cluster.
    """

    topology: Topology
    source: Source
    report: Reporter = field(default_factory=Reporter)
    embedded: bool = False
    dry_run: bool = False
    prune: bool = False
    joining: Collection[str] = ()
    migrating: str = ""
    waits: bool = True
    timeout_s: float = SERVE_TIMEOUT_S
    waiting: Waiting = SYSTEM_WAITING
    home: Path = field(init=False)
    _serving: Sequence[ActorSpec] = field(init=False, default=())
    _spacing: RestartSpacing = field(init=False)
    raft: RaftGroups = field(init=False)

    def __post_init__(self) -> None:
        """Set `home`."""
        self.home = home_of(self.topology.cluster)

    def up(self) -> UpResult:
        """Apply the topology; start Ray first if none is running.

        Raises TopologyError, LaunchRefused, LaunchFailed, SessionFailed, HeadFailed.
        """
        if problems := exposed(self.topology):
            raise self.source.error(problems)
        with only_one_driver(self.home):
            way = choose_way(self.topology, self.home, os.environ, embedded=self.embedded)
            starts = way.mode in (SessionMode.STARTED, SessionMode.EMBEDDED) and not is_connected()
            if starts:
                plan, specs = self._plan_without_ray(way)
                if self.dry_run:
                    self.report.line(f"would start Ray ({way.mode}), and then:")
                    self.report.plan(plan)
                    return UpResult(plan, specs, way.mode)
            with self._undo_when_refused(way), self._ray(way, starts=starts):
                plan, specs = self.plan()
                self.report.plan(plan)
                if not self.dry_run:
                    self.apply(plan)
                    self._await_all_serving(specs)
                    write_targets(self.home, specs)
                return UpResult(plan, specs, way.mode)

    def restart(self, names: Collection[str] | None) -> UpResult:
        """Restart the named actors, or all, one at a time. Each must serve before the next is stopped.

        Raises as `up`, and LaunchRefused if no cluster or one of the named actors is not running.
        """
        with self.connected() as way:
            plan, specs = self.plan(lambda plan: restarting(plan, names))
            self.report.plan(plan)
            if not self.dry_run:
                self.apply(plan)
            return UpResult(plan, specs, way.mode)

    @contextmanager
    def connected(self) -> Iterator[Way]:
        """Connect to the running cluster as its only driver, and yield how it was reached.

        Raises SessionFailed, and LaunchRefused if the cluster is not running.
        """
        with only_one_driver(self.home):
            way = choose_way(self.topology, self.home, os.environ, embedded=self.embedded)
            if way.mode is SessionMode.STARTED and not is_connected():
                refuse([f"cluster {self.topology.cluster} is not running; `raymq up` starts it"])
            with self._ray(way, starts=False):
                yield way

    @contextmanager
    def _ray(self, way: Way, *, starts: bool) -> Iterator[None]:
        text = "starting Ray" if starts else f"connecting to Ray {way.address}"
        begin_s = self.waiting.now_s()
        if starts:
            compile_early()
        with ExitStack() as stack:
            with self.report.working(text):
                stack.enter_context(session(self.topology, self.home, way))
            if starts:
                self.report.line(f"started Ray in {self.waiting.now_s() - begin_s:.1f} s")
                if (head := read_record(self.home)) is not None and way.mode is SessionMode.STARTED:
                    self.report.line(f"Ray: {head.address}, dashboard and jobs {head.dashboard}")
                    if os.environ.get(AUTH_MODE_ENV) == "token":
                        self.report.line(
                            f"to use this Ray from `ray` or your programs: export {AUTH_MODE_ENV}=token"
                        )
            yield

    @contextmanager
    def _undo_when_refused(self, way: Way) -> Iterator[None]:
        """Stop the Ray that this run started if the run is refused or interrupted."""
        try:
            yield
        except (LaunchRefused, TopologyError, KeyboardInterrupt) as error:
            if way.mode is SessionMode.STARTED:
                with self.report.working("stopping Ray again"):
                    stop_head(self.home)
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(
                        "interrupted; Ray was stopped again, nothing is left running"
                    ) from None
            raise

    def _end_lost_head(self) -> None:
        """End what a killed `up` or a head without GCS has left: these processes use the ports and stores."""
        with self.report.working("ending the processes of the last head"):
            if count := stop_head(self.home):
                self.report.line(f"the last head does not run any more: ended {count} of its processes")

    def _plan_without_ray(self, way: Way) -> tuple[Plan, list[ActorSpec]]:
        specs = make_specs(self.topology, self.home, {}, self.source)
        plan = make_plan(specs, [], namespace=self.topology.namespace, code_version=code_version())
        if way.mode is SessionMode.STARTED and not self.dry_run:
            self._end_lost_head()
        refuse(check_all([demand_of(spec) for spec in specs]))
        return plan, specs

    def plan(
        self, narrow: Callable[[Plan], Plan] = lambda plan: plan, needed: Collection[str] | None = None
    ) -> tuple[Plan, list[ActorSpec]]:
        """Return the plan, after `narrow` has selected the wanted actions, and the specs of all actors.

        If `needed` names the actors of these actions, the others need no node.
        """
        with self.report.working("reading the running actors"):
            running = fleet.observe(self.topology.namespace)
            bindings.exchange(self.home, self.topology.namespace)
            here_names = [actor.name for actor in running if actor.namespace == self.topology.namespace]
            in_use = bindings.in_use(self.topology.namespace)
            self.topology = self.topology.with_running([*here_names, *in_use])
            records = pair_masters.exchange(self.home, self.topology.namespace)
            masters = {broker: (each.epoch, each.replica) for broker, each in records.items()}
            refuse(self.topology.without_master(masters))
            self.topology = self.topology.with_masters(masters)
            self.raft = RaftGroups(
                self.home, self.topology.namespace, run_on_node, self.joining, self.migrating
            )
            refuse(self.raft.problems(self.topology))
        resources = self._place(needed)
        settled = self._with_ports(resources, running, needed)
        settled = self.raft.settle(settled, resources, ray_port.nodes(), needed)
        specs = make_specs(settled, self.home, resources, self.source)
        plan = make_plan(
            specs,
            running,
            namespace=self.topology.namespace,
            code_version=code_version(),
            prune=self.prune,
            is_live=is_live_setting,
        )
        plan = narrow(plan)
        here = [actor for actor in running if actor.namespace == self.topology.namespace]
        self._spacing = RestartSpacing.of(
            here,
            route_refresh_s=self.topology.route_refresh_ms / 1000,
            wall_ms=self.waiting.clock.wall_ms(),
            now_s=self.waiting.now_s(),
        )
        self._serving = [actor.spec for actor in running if actor.state == State.SERVING and actor.spec]
        names = {each.name for each in self.topology.brokers if isinstance(each, SingleBroker)}
        majorities = lost_majorities(here, [each.name for each in plan.having(Verb.REMOVE)], names)
        refuse([*plan.refusals, *majorities, *self._check_new_actors(plan, running, specs)])
        return plan, specs

    def _place(self, needed: Collection[str] | None) -> Mapping[str, str]:
        """Bind actors to nodes. Wait up to PLACEMENT_TIMEOUT_S for missing nodes."""
        deadline, is_over = self.waiting.deadline(PLACEMENT_TIMEOUT_S, PAUSE_S), False
        while True:
            placement = place(self.topology, ray_port.nodes(), autoscaler())
            if needed is not None and not set(needed) & set(placement.unplaceable):
                return placement.resources
            if not placement.unplaceable or self.dry_run or is_over:
                break
            with self.report.working("waiting for a node with the resources of the topology"):
                is_over = not deadline.pause()
        if placement.problems:
            raise self.source.error(placement.problems)
        return placement.resources

    def _with_ports(
        self, resources: Mapping[str, str], running: Sequence[Running], needed: Collection[str] | None
    ) -> Topology:
        """Replace each port 0 of the topology by the port of the running actor, else by a free port."""
        here = {
            actor.name: actor.spec.listen[1]
            for actor in running
            if actor.namespace == self.topology.namespace and actor.spec is not None
        }
        here = self.raft.ports(self.topology, here) | here
        open_names: dict[str, list[tuple[str, str]]] = {}
        ports: dict[str, int] = {}
        for _path, name, entry in self.topology.listeners():
            if entry.listen_port == 0 and here.get(name):
                ports[name] = here[name]
            elif entry.listen_port == 0 and isinstance(entry, ElasticBroker):
                # Its node is not known yet; a port that is free here is probably free there too.
                (ports[name],) = free_ports(["0.0.0.0"])
            elif entry.listen_port == 0 and (needed is None or name in needed):
                open_names.setdefault(resources[name], []).append((name, self.topology.host_of(entry)))
        with self.report.working("choosing free ports"):
            for resource, wanted in open_names.items():
                chosen = run_on_node(resource, free_ports, [host for _, host in wanted])
                ports |= dict(zip([name for name, _ in wanted], chosen, strict=True))
        return self.topology.with_ports(ports)

    def _check_new_actors(
        self, plan: Plan, running: Sequence[Running], specs: Sequence[ActorSpec]
    ) -> list[str]:
        """Check the ports and stores of new actors; skip those that the actors to be replaced hold now."""
        here = {actor.name: actor for actor in running if actor.namespace == self.topology.namespace}
        wanted = {spec.name: spec for spec in specs}
        # An actor that does not respond may still hold its port and store: its successor waits for them.
        held = {name: actor.spec or wanted.get(name) for name, actor in here.items()}
        removed = [action.spec for action in plan.having(Verb.REMOVE) if action.spec is not None]
        freed = {at for spec in removed for at in (spec.listen, spec.ha_listen)}
        demands: dict[str, list[PortAndStore]] = {}
        for action in plan.having(Verb.CREATE, Verb.ROLL):
            # The node of an elastic broker is not known yet: the broker itself checks its port and store.
            if action.spec is not None and not action.spec.slots:
                demand = demand_of(action.spec, held.get(action.name), freed)
                demands.setdefault(action.spec.resource, []).append(demand)
        with self.report.working("checking ports and stores"):
            return [
                line
                for resource, group in demands.items()
                for line in run_on_node(resource, check_all, group)
            ]

    def apply(self, plan: Plan) -> None:
        """Execute the actions of a plan. Raises LaunchFailed, and LaunchRefused before the first one."""
        self.raft.form([each.spec for each in plan.having(Verb.CREATE, Verb.ROLL) if each.spec is not None])
        for action in plan.having(Verb.REMOVE):
            self.stop(action)
        for action in plan.having(Verb.ADJUST):
            self._adjust(action)
        created = [action.spec for action in plan.having(Verb.CREATE) if action.spec is not None]
        for spec in created:
            fleet.create(self.topology.namespace, spec)
        self.await_serving(created)
        for action in plan.having(Verb.ROLL):
            self._roll(action)
        if any(action.spec is not None and action.spec.kind is NAMESERVER for action in plan.changes):
            for action in plan.having(Verb.ADOPT):
                if action.spec is not None and action.spec.kind is BROKER:
                    fleet.announce(self.topology.namespace, action.name)

    def _roll(self, action: PlannedAction) -> None:
        assert action.spec is not None
        is_broker = action.spec.kind is BROKER
        if is_broker and self.waits:
            self._await_route_refresh(action.name)
            if action.spec.replica_kind.votes:
                self._hand_over(action.name)
        with self._restart_when_interrupted(action.spec):
            self.stop(action)
        self.await_serving([action.spec])
        # The next actor is stopped only when clients can find this one again.
        self._await_all_serving([action.spec, *self._registration_peers(action.spec)])
        must_follow = action.spec.replica_kind.follows and not action.is_demotion
        if must_follow and action.name not in self.joining:
            self._await_in_sync(action.spec)
        if is_broker:
            self._spacing.record_restart(action.name, self.waiting.now_s())

    def _await_route_refresh(self, broker: str) -> None:
        left_s = self._spacing.wait_s(broker, self.waiting.now_s())
        if left_s > 0:
            text = f"waiting {max(left_s, 1):.0f} s until all clients know that the last broker has restarted"
            self.report.line(text)
            with self.report.working(text):
                self.waiting.sleep(left_s)

    def _hand_over(self, replica: str) -> None:
        """Move the leadership away, and wait while the former leader forwards requests to the new one."""
        if not fleet.hand_over(self.topology.namespace, replica):
            return
        left_s = self.topology.route_refresh_ms / 1000 + REFRESH_DURATION_S
        text = f"{replica} has handed over the leadership; waiting {left_s:.0f} s until all clients know it"
        self.report.line(text)
        with self.report.working(text):
            self.waiting.sleep(left_s)

    @contextmanager
    def _restart_when_interrupted(self, spec: ActorSpec) -> Iterator[None]:
        """Create the actor again after the block that stops it, also on Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            with self.report.working(f"starting {spec.name} again"):
                fleet.stop(self.topology.namespace, spec.name)
                fleet.create(self.topology.namespace, spec)
            raise KeyboardInterrupt(
                f"interrupted; {spec.name} is starting again (see `raymq status`); "
                "repeat the command for the others"
            ) from None
        fleet.create(self.topology.namespace, spec)

    def _await_in_sync(self, replica: ActorSpec) -> None:
        others = replica.replica_kind.follows
        with self.report.working(f"waiting until {replica.name} is in sync with {others}"):
            problem = fleet.wait_in_sync(self.topology.namespace, replica, self.timeout_s, self.waiting)
        if problem:
            raise LaunchFailed(f"{replica.name} is not in sync with {others}: {problem}")
        self.report.line(f"{replica.name} is in sync with {others}")

    def _registration_peers(self, spec: ActorSpec) -> list[ActorSpec]:
        """Return the brokers that register with nameserver `spec`, or the nameservers of broker `spec`."""
        if spec.kind is NAMESERVER:
            return [broker for broker in self._serving if registers_with(broker, spec)]
        return [nameserver for nameserver in self._serving if registers_with(spec, nameserver)]

    def stop(self, action: PlannedAction, *, keeps_process: bool = False) -> None:
        """Stop the actor of an action, or with `keeps_process` only its service (`fleet.stop`)."""
        with self.report.working(f"stopping {action.name}"):
            stop_error = fleet.stop(self.topology.namespace, action.name, keeps_process=keeps_process)
        self.report.line(
            f"stopped {action.name}{f' (not stopped cleanly: {stop_error})' if stop_error else ''}"
        )

    def _adjust(self, action: PlannedAction) -> None:
        assert action.spec is not None
        error = fleet.change(self.topology.namespace, action.spec)
        if error:
            raise LaunchFailed(f"{action.name} did not accept {action.reason}: {error}")
        self.report.line(f"changed the settings of {action.name} without a restart")

    def await_serving(self, specs: Sequence[ActorSpec]) -> None:
        """Wait until actors serve. Raises LaunchFailed after `timeout_s` without progress."""
        if not specs:
            return
        begin_s = self.waiting.now_s()
        failed = []
        names = ", ".join(spec.name for spec in specs)
        with self.report.working(f"waiting for {names}") as progress:
            for start in fleet.wait_serving(
                self.topology.namespace, specs, self.timeout_s, self.waiting, progress
            ):
                if start.reason:
                    failed.append(f"{start.name}: {start.reason}")
                    continue
                self.report.line(f"{start.name} serves after {self.waiting.now_s() - begin_s:.1f} s")
                if start.code_version != code_version():
                    self.report.line(
                        f"{start.name} runs code version {start.code_version}, not {code_version()}: "
                        "Ray's workers import another copy of RayMQ than this command",
                        "yellow",
                    )
        if failed:
            raise LaunchFailed("\n".join([*failed, "`raymq logs` shows their log events"]))

    def _await_all_serving(self, specs: Sequence[ActorSpec]) -> None:
        with self.report.working("checking every actor over its socket"):
            located = fleet.located(self.topology.namespace, specs)
            failing = wait_until_healthy(located, HEALTH_TIMEOUT_S, self.waiting)
        bindings.exchange(self.home, self.topology.namespace)
        if failing:
            raise LaunchFailed(
                "\n".join(f"{name} failed its health check: {reason}" for name, reason in failing.items())
            )


def demand_of(
    spec: ActorSpec,
    held: ActorSpec | None = None,
    freed: Collection[tuple[str, int]] = (),
) -> PortAndStore:
    """Return the ports and store that must be free before the actor can start.

    Args:
        spec: The new actor.
        held: The running actor that it replaces; ports and a store that do not change are not checked.
        freed: Addresses of actors that are removed before, which are not checked either.
    """
    free = freed if held is None else {*freed, held.listen, held.ha_listen}
    port, ha_port = (0 if at in free else at[1] for at in (spec.listen, spec.ha_listen))
    store = "" if held is not None and held.store == spec.store else spec.store or ""
    replica = int(spec.settings.get("replica", 0))
    identity = StoreIdentity(spec.cluster, str(spec.settings.get("broker_name", "")), replica)
    return PortAndStore(spec.place, spec.listen[0], port, store, identity, ha_port)


def registers_with(broker: ActorSpec, nameserver: ActorSpec) -> bool:
    """Return True if `broker` is a broker that registers with `nameserver`."""
    kinds = (broker.kind, nameserver.kind)
    registered = broker.settings.get("nameservers", ())
    return kinds == (BROKER, NAMESERVER) and nameserver.address in registered


def run_on_node(resource: str, function: Callable[[Any], Result], argument: object) -> Result:
    """Return `function(argument)`, computed on the node that has `resource`."""
    own_ip = ray_port.own_node_ip()
    if any(node.ip == own_ip and node.resources.get(resource, 0) > 0 for node in ray_port.nodes()):
        return function(argument)
    result: Result = ray_port.run_on(resource, function, argument, timeout_s=CHECK_TIMEOUT_S)
    return result
