"""The driver's work: plan against what runs, then remove, create, roll one by one, and see that it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from actors.host import ray_port
from actors.host.code_version import code_version
from actors.host.service_host import State
from cluster.driver import fleet
from cluster.driver.health import wait_until_healthy
from cluster.driver.placement import place
from cluster.driver.plan import Action, ActorSpec, Kind, Plan, Running, Verb, make_plan, restarting
from cluster.driver.preflight import Demand, check_all, free_ports
from cluster.driver.returns import Returns
from cluster.driver.specs import is_live_setting, make_specs
from cluster.launch_report import Report
from cluster.paths import home_of, only_one_driver
from cluster.session.environment import AUTH_MODE_ENV
from cluster.session.ray_head import read_record, stop_head
from cluster.session.ray_session import Mode, Way, choose_way, is_connected, session
from cluster.topology.topology import Topology
from cluster.topology.topology_file import Source, TopologyError
from store.ownership.identity import StoreIdentity

Result = TypeVar("Result")

SERVE_TIMEOUT_S = 120.0
HEALTH_TIMEOUT_S = 30.0
PLACEMENT_TIMEOUT_S = 30.0
CHECK_TIMEOUT_S = 120.0
"""A node that has just joined starts its agents before its first task, and a worker that never registers is
replaced by Ray after 60 s: what asks it must be more patient than that."""
PAUSE_S = 0.5


class LaunchRefused(Exception):
    """Nothing was started or changed; a line for each reason."""


class LaunchFailed(Exception):
    """Something was begun and did not come up; a line for each actor."""


@dataclass(frozen=True)
class UpResult:
    """What `up` did, and what serves now. `specs` holds every actor's settings with its real ports."""

    plan: Plan
    specs: Sequence[ActorSpec]
    mode: Mode

    @property
    def nameservers(self) -> list[str]:
        """The addresses that clients are given."""
        return [spec.address for spec in self.specs if spec.kind is Kind.NAMESERVER]


@dataclass
class Driver:
    """One run over one topology. `waits`: no broker goes while clients may not know that another is back."""

    topology: Topology
    source: Source
    report: Report = field(default_factory=Report)
    embedded: bool = False
    dry_run: bool = False
    prune: bool = False
    waits: bool = True
    timeout_s: float = SERVE_TIMEOUT_S
    home: Path = field(init=False)
    _serving: Sequence[ActorSpec] = field(init=False, default=())
    _returns: Returns = field(init=False)

    def __post_init__(self) -> None:
        """Find the cluster's home."""
        self.home = home_of(self.topology.cluster)

    def up(self) -> UpResult:
        """Make it so; raises TopologyError, LaunchRefused, LaunchFailed, SessionFailed, HeadFailed."""
        with only_one_driver(self.home):
            way = choose_way(self.topology, self.home, os.environ, embedded=self.embedded)
            starts = way.mode in (Mode.STARTED, Mode.EMBEDDED) and not is_connected()
            if starts:
                plan, specs = self._plan_without_ray()
                if self.dry_run:
                    self.report.line(f"would start Ray ({way.mode}), and then:")
                    self.report.plan(plan)
                    return UpResult(plan, specs, way.mode)
            with self._undo_when_refused(way), self._ray(way, starts=starts):
                plan, specs = self._plan()
                self.report.plan(plan)
                if not self.dry_run:
                    self._apply(plan)
                    self._await_all_serving(specs)
                return UpResult(plan, specs, way.mode)

    def restart(self, names: Collection[str] | None) -> UpResult:
        """Restart the actors with these names, or all, one after the other: each serves before the next goes.

        Raises as `up` does; LaunchRefused also where nothing runs, or not what is named.
        """
        with only_one_driver(self.home):
            way = choose_way(self.topology, self.home, os.environ, embedded=self.embedded)
            if way.mode is Mode.STARTED and not is_connected():
                refuse([f"nothing of cluster {self.topology.cluster} runs; `raymq up` starts it"])
            with self._ray(way, starts=False):
                plan, specs = self._plan(lambda plan: restarting(plan, names))
                self.report.plan(plan)
                if not self.dry_run:
                    self._apply(plan)
                return UpResult(plan, specs, way.mode)

    @contextmanager
    def _ray(self, way: Way, *, starts: bool) -> Iterator[None]:
        text = "starting Ray" if starts else f"connecting to Ray {way.address}"
        begin_s = time.monotonic()
        with ExitStack() as stack:
            with self.report.working(text):
                stack.enter_context(session(self.topology, self.home, way))
            if starts:
                self.report.line(f"started Ray ({way.mode}) in {time.monotonic() - begin_s:.1f} s")
                if (head := read_record(self.home)) is not None and way.mode is Mode.STARTED:
                    self.report.line(f"Ray: {head.address}, dashboard and jobs {head.dashboard}")
                    if os.environ.get(AUTH_MODE_ENV) == "token":
                        self.report.line(
                            f"for `ray` and your own programs on this Ray: export {AUTH_MODE_ENV}=token"
                        )
            yield

    @contextmanager
    def _undo_when_refused(self, way: Way) -> Iterator[None]:
        """A Ray that was started for nothing, or by a run that was interrupted, does not stay."""
        try:
            yield
        except (LaunchRefused, TopologyError, KeyboardInterrupt) as error:
            if way.mode is Mode.STARTED:
                with self.report.working("ending Ray again"):
                    stop_head(self.home)
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(
                        "interrupted; Ray was ended again, nothing is left running"
                    ) from None
            raise

    def _plan_without_ray(self) -> tuple[Plan, list[ActorSpec]]:
        specs = make_specs(self.topology, self.home, {}, self.source)
        plan = make_plan(specs, [], namespace=self.topology.namespace, code_version=code_version())
        refuse(check_all([demand_of(spec) for spec in specs]))
        return plan, specs

    def _plan(self, narrow: Callable[[Plan], Plan] = lambda plan: plan) -> tuple[Plan, list[ActorSpec]]:
        """The plan, `narrow`ed to what is wanted of it, and all actors' specs."""
        with self.report.working("looking at what runs"):
            running = fleet.observe(self.topology.namespace)
        resources = self._place()
        settled = self._with_ports(resources, running)
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
        self._returns = Returns.of(
            here,
            route_refresh_s=self.topology.route_refresh_ms / 1000,
            wall_ms=int(time.time() * 1000),
            now_s=time.monotonic(),
        )
        self._serving = [actor.spec for actor in running if actor.state == State.SERVING and actor.spec]
        refuse([*plan.refusals, *self._check_what_is_new(plan, running, specs)])
        return plan, specs

    def _place(self) -> Mapping[str, str]:
        """Bind actors to nodes, and wait a while for a node that is missing."""
        deadline_s = time.monotonic() + PLACEMENT_TIMEOUT_S
        while True:
            placement = place(self.topology, ray_port.nodes())
            if not placement.unplaceable or self.dry_run or time.monotonic() > deadline_s:
                break
            with self.report.working("waiting for a node with the resources that the topology names"):
                time.sleep(PAUSE_S)
        if placement.problems:
            raise self.source.error(placement.problems)
        return placement.resources

    def _with_ports(self, resources: Mapping[str, str], running: Sequence[Running]) -> Topology:
        """Choose a port where the topology says 0: the one that the actor has, or a free one."""
        here = {
            actor.name: actor.spec.listen[1]
            for actor in running
            if actor.namespace == self.topology.namespace and actor.spec is not None
        }
        open_names: dict[str, list[tuple[str, str]]] = {}
        ports: dict[str, int] = {}
        for _path, name, entry in self.topology.listeners():
            if entry.listen_port == 0 and here.get(name):
                ports[name] = here[name]
            elif entry.listen_port == 0:
                open_names.setdefault(resources[name], []).append((name, self.topology.host_of(entry)))
        with self.report.working("choosing free ports"):
            for resource, wanted in open_names.items():
                chosen = on_node(resource, free_ports, [host for _, host in wanted])
                ports |= dict(zip([name for name, _ in wanted], chosen, strict=True))
        return self.topology.with_ports(ports)

    def _check_what_is_new(
        self, plan: Plan, running: Sequence[Running], specs: Sequence[ActorSpec]
    ) -> list[str]:
        """Look at ports and stores that the cluster's own actors do not hold already."""
        here = {actor.name: actor for actor in running if actor.namespace == self.topology.namespace}
        wanted = {spec.name: spec for spec in specs}
        # What gives no answer may still hold its own port and store: its successor waits for them.
        held = {name: actor.spec or wanted.get(name) for name, actor in here.items()}
        freed = {action.spec.listen for action in plan.having(Verb.REMOVE) if action.spec is not None}
        demands: dict[str, list[Demand]] = {}
        for action in plan.having(Verb.CREATE, Verb.ROLL):
            if action.spec is not None:
                demand = demand_of(action.spec, held.get(action.name), freed)
                demands.setdefault(action.spec.resource, []).append(demand)
        with self.report.working("looking at ports and stores"):
            return [
                line for resource, group in demands.items() for line in on_node(resource, check_all, group)
            ]

    def _apply(self, plan: Plan) -> None:
        for action in plan.having(Verb.REMOVE):
            self._stop(action)
        for action in plan.having(Verb.ADJUST):
            self._adjust(action)
        created = [action.spec for action in plan.having(Verb.CREATE) if action.spec is not None]
        for spec in created:
            fleet.create(self.topology.namespace, spec)
        self._wait(created)
        for action in plan.having(Verb.ROLL):
            self._roll(action)
        if any(action.spec is not None and action.spec.kind is Kind.NAMESERVER for action in plan.changes):
            for action in plan.having(Verb.ADOPT):
                if action.spec is not None and action.spec.kind is Kind.BROKER:
                    fleet.announce(self.topology.namespace, action.name)

    def _roll(self, action: Action) -> None:
        assert action.spec is not None
        is_broker = action.spec.kind is Kind.BROKER
        if is_broker and self.waits:
            self._await_route_refresh(action.name)
        with self._restart_when_interrupted(action.spec):
            self._stop(action)
        self._wait([action.spec])
        # The next one goes only when clients can find this one again.
        self._await_all_serving([action.spec, *self._introduced_to(action.spec)])
        if is_broker:
            self._returns.restarted(action.name, time.monotonic())

    def _await_route_refresh(self, broker: str) -> None:
        left_s = self._returns.wait_s(broker, time.monotonic())
        if left_s > 0:
            text = f"waiting {left_s:.0f} s, until all clients have seen that the last broker is back"
            self.report.line(text)
            with self.report.working(text):
                time.sleep(left_s)

    @contextmanager
    def _restart_when_interrupted(self, spec: ActorSpec) -> Iterator[None]:
        """Create the actor that is stopped within, on Ctrl-C too: a restart leaves nothing stopped."""
        try:
            yield
        except KeyboardInterrupt:
            with self.report.working(f"starting {spec.name} again"):
                fleet.stop(self.topology.namespace, spec.name)
                fleet.create(self.topology.namespace, spec)
            raise KeyboardInterrupt(
                f"interrupted; {spec.name} starts again, `raymq status` shows it; run it again for the others"
            ) from None
        fleet.create(self.topology.namespace, spec)

    def _introduced_to(self, spec: ActorSpec) -> list[ActorSpec]:
        """Who must know of an actor that was restarted, or be known by it, before the next one goes."""
        if spec.kind is Kind.NAMESERVER:
            return [broker for broker in self._serving if registers_with(broker, spec)]
        return [nameserver for nameserver in self._serving if registers_with(spec, nameserver)]

    def _stop(self, action: Action) -> None:
        with self.report.working(f"stopping {action.name}"):
            stop_error = fleet.stop(self.topology.namespace, action.name)
        self.report.line(
            f"stopped {action.name}{f' (not stopped cleanly: {stop_error})' if stop_error else ''}"
        )

    def _adjust(self, action: Action) -> None:
        assert action.spec is not None
        stop_error = fleet.change(self.topology.namespace, action.spec)
        if stop_error:
            raise LaunchFailed(f"{action.name} did not take over {action.reason}: {stop_error}")
        self.report.line(f"adjusted {action.name} while it runs")

    def _wait(self, specs: Sequence[ActorSpec]) -> None:
        if not specs:
            return
        begin_s = time.monotonic()
        failed = []
        with self.report.working(f"waiting for {', '.join(spec.name for spec in specs)}"):
            for arrival in fleet.wait_serving(self.topology.namespace, specs, self.timeout_s):
                if arrival.reason:
                    failed.append(f"{arrival.name}: {arrival.reason}")
                    continue
                self.report.line(f"{arrival.name} serves after {time.monotonic() - begin_s:.1f} s")
                if arrival.code_version != code_version():
                    self.report.line(
                        f"{arrival.name} runs code {arrival.code_version}, not {code_version()}: "
                        "Ray's workers import another copy of RayMQ than this one",
                        "yellow",
                    )
        if failed:
            raise LaunchFailed("\n".join([*failed, "`raymq logs` shows what they told before"]))

    def _await_all_serving(self, specs: Sequence[ActorSpec]) -> None:
        with self.report.working("asking every actor over its socket"):
            failing = wait_until_healthy(specs, HEALTH_TIMEOUT_S)
        if failing:
            raise LaunchFailed(
                "\n".join(
                    f"{name} does not answer as it should: {reason}" for name, reason in failing.items()
                )
            )


def refuse(reasons: Sequence[str]) -> None:
    """Raise LaunchRefused if there is a reason to."""
    if reasons:
        raise LaunchRefused("\n".join([*reasons, "nothing was started or changed"]))


def demand_of(
    spec: ActorSpec,
    held: ActorSpec | None = None,
    freed: frozenset[tuple[str, int]] | set[tuple[str, int]] = frozenset(),
) -> Demand:
    """What must be free for an actor, without what it `held` itself as it ran, and what is `freed` before."""
    port = 0 if (held is not None and held.listen == spec.listen) or spec.listen in freed else spec.listen[1]
    store = "" if held is not None and held.store == spec.store else spec.store or ""
    identity = StoreIdentity(spec.cluster, str(spec.settings.get("broker_name", "")))
    return Demand(spec.place, spec.listen[0], port, store, identity)


def registers_with(broker: ActorSpec, nameserver: ActorSpec) -> bool:
    """Whether the one is a broker that registers with the other."""
    kinds = (broker.kind, nameserver.kind)
    registered = broker.settings.get("nameservers", ())
    return kinds == (Kind.BROKER, Kind.NAMESERVER) and nameserver.address in registered


def on_node(resource: str, function: Callable[[Any], Result], argument: object) -> Result:
    """Run a function on the node that has `resource`: here, where this is that node."""
    own_ip = ray_port.own_node_ip()
    if any(node.ip == own_ip and node.resources.get(resource, 0) > 0 for node in ray_port.nodes()):
        return function(argument)
    result: Result = ray_port.run_on(resource, function, argument, timeout_s=CHECK_TIMEOUT_S)
    return result
