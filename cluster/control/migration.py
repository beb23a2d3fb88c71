"""Migration: a single broker, or a master with slaves, becomes a Raft group; a group a single broker.

    to a group    stop the broker and its slaves → its store is the only member → start it: it leads
                  → create the stores of the others → start them → add them, one at a time
    back          remove the others from the group → stop all → the store is a single broker's → start it

Until the first replica leads, a failure starts the old broker again. After that the group serves, and the
same command continues what was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from actors.broker.broker_settings import raft_member
from actors.broker.broker_settings_text import STORE_KEY
from actors.host.code_version import code_version
from actors.host.service_host import State
from actors.raft.state import Role
from cluster.control import fleet, pair_masters
from cluster.control.driver import Driver, run_on_node
from cluster.control.kinds import NAMESERVER
from cluster.control.launch_errors import LaunchFailed, refusal, refuse
from cluster.control.new_stores import (
    NewStore,
    bootstrap_groups,
    check_first_members,
    create_joining_stores,
    leave_groups,
    read_users,
)
from cluster.control.plan import PlannedAction, Running, Verb, only
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import SingleBroker, Topology
from cluster.views.replicas import group_role
from store.ownership.identity import StoreIdentity

LEAD_TIMEOUT_S = 30.0
"""How long the first member of a group may take to lead; it needs no other, and elects itself."""

OUTAGE = (
    "its clients cannot send or receive meanwhile (a restart), and retry; keep other "
    "brokers of their topics running"
)


class MemberChanges(Protocol):
    """Changes the members of a running Raft group."""

    def add(self, nameservers: str, broker: str, addresses: Sequence[str]) -> None:
        """Add the replicas at these addresses that are no voters yet."""

    def remove_other_members(self, nameservers: str, broker: str, replica: int) -> None:
        """Remove all members but one."""


def migrate_broker(
    driver: Driver, name: str, changes: MemberChanges, confirm: Callable[[], None] = lambda: None
) -> None:
    """Make a broker what the topology says: a Raft group, or a single broker.

    Args:
        driver: the driver of the cluster, with `migrating`; with its `dry_run`, only the steps are reported.
        name: the broker.
        changes: changes the members of its group.
        confirm: called when the steps were reported; raises an exception to end the migration.

    Raises as `Driver.restart`; LaunchRefused if the broker cannot be migrated, LaunchFailed if a step fails.
    """
    entry = _entry(driver.topology, name)
    with driver.connected():
        migration = ToGroup(driver, entry) if entry.elects_master else ToSingle(driver, entry)
        for line in migration.preview():
            driver.report.line(line)
        if not driver.dry_run:
            confirm()
            migration.run(changes)


def _entry(topology: Topology, name: str) -> SingleBroker:
    entries = {each.name: each for each in topology.brokers if isinstance(each, SingleBroker)}
    entry = entries.get(name)
    if entry is None:
        shown = ", ".join(sorted(entries)) or "none"
        text = f"no broker {name!r} in the topology (names are without a replica's number); brokers: {shown}"
        raise refusal([text])
    if entry.is_replicated and not entry.elects_master:
        text = (
            f"{name} has replication: {entry.replication} in the topology: a pair and a single broker are "
            "exchanged by `raymq up`. From a Raft group, migrate to a single broker first: remove replicas, "
            "replication and resources"
        )
        raise refusal([text])
    return entry


class _Migration:
    """What both directions know."""

    def __init__(self, driver: Driver, entry: SingleBroker) -> None:
        self._driver, self._name = driver, entry.name
        self._namespace = driver.topology.namespace
        actors = [each.actor_name(0) for each in entry.members()]
        self._running = self._observed()
        refuse(
            [
                f"{actor.name} does not respond ({actor.reason}), so what it has is not known: `raymq status`"
                for actor in fleet.observe(self._namespace)
                if (actor.namespace, actor.spec) == (self._namespace, None) and actor.name in actors
            ]
        )
        _, specs = driver.plan(lambda plan: only(plan, actors), actors)
        found = {spec.name: spec for spec in specs}
        self._specs = [found[actor] for actor in actors]
        self._first = self._specs[0]
        self._nameservers = ";".join(spec.address for spec in specs if spec.kind is NAMESERVER)

    def _observed(self) -> Mapping[str, Running]:
        """Return the running replicas of the broker by name, replica 0 first."""
        return {
            actor.name: actor
            for actor in sorted(fleet.observe(self._namespace), key=lambda each: each.name)
            if actor.namespace == self._namespace
            and actor.spec is not None
            and actor.spec.settings.get("broker_name") == self._name
        }

    def _stop(self, actors: Sequence[str]) -> None:
        for actor in actors:
            action = PlannedAction(Verb.REMOVE, actor, "migration")
            self._driver.stop(action, keeps_process=actor == self._first.name and self._keeps_process)

    @property
    def _keeps_process(self) -> bool:
        """Return True if the process of replica 0 is to run it after the migration, too.

        The start of a new one takes seconds, in which no client can send.
        """
        actor = self._running.get(self._first.name)
        return (
            actor is not None
            and actor.spec is not None
            and (actor.state, actor.code_version) == (State.SERVING, code_version())
            and (actor.spec.resource, actor.spec.store) == (self._first.resource, self._first.store)
        )

    def _restore(self) -> None:
        """Start the former actors again."""
        specs = [actor.spec for actor in self._running.values() if actor.spec is not None]
        for spec in specs:
            fleet.stop(self._namespace, spec.name)
            fleet.create(self._namespace, spec)
        if specs:
            names = ", ".join(spec.name for spec in specs)
            self._driver.report.line(f"starting {names} again with the former settings", "yellow")

    def _on_first(self, function: Callable[[Sequence[NewStore]], Sequence[str]]) -> Sequence[str]:
        """Return the problems of a function on the store of replica 0, run on its node."""
        problems: Sequence[str] = run_on_node(self._first.resource, function, [_store(self._first)])
        return problems


class ToGroup(_Migration):
    """A broker becomes a Raft group, with the store of replica 0 as its first member."""

    def __init__(self, driver: Driver, entry: SingleBroker) -> None:
        """Read the state of the broker. Raises LaunchRefused if it cannot become a group."""
        super().__init__(driver, entry)
        self._is_new = driver.raft.record_of(self._name) is None
        if self._is_new:
            master = pair_masters.exchange(driver.home, self._namespace).get(self._name)
            first = self._running.get(self._first.name)
            if (master and master.replica) or (first and first.spec and first.spec.is_slave):
                text = (
                    f"{self._first.name} is a slave, but the log of replica 0 becomes that of the group: "
                    f"`raymq promote {self._first.name}` first, with the topology of the pair"
                )
                raise refusal([text])
            refuse(self._on_first(check_first_members))

    def preview(self) -> Sequence[str]:
        """Return lines that say what is done, and what is not available meanwhile."""
        first, others = self._first, ", ".join(spec.name for spec in self._specs[1:])
        if not self._is_new:
            return [f"{self._name} is a Raft group: replicas that are no voters yet are started and added"]
        actor = self._running.get(first.name)
        end = f", which ends at {int(actor.details.get('written', 0)):,}" if actor is not None else ""
        stopped = [*self._running]
        restart = f"{first.name} is restarted"
        if stopped not in ([], [first.name]):
            restart = f"{', '.join(stopped)} are stopped, and {first.name} is started again"
        lines = [
            f"{self._name} becomes a Raft group: {first.name} keeps its store and its log{end}",
            f"{others} begin with empty stores and copy it; until then messages are on one disk only",
            f"{restart}: {OUTAGE}",
        ]
        if len(self._running) > 1:
            lines.append("the stores of slaves are set aside as STORE.before-group-N, and not deleted")
        return lines

    def run(self, changes: MemberChanges) -> None:
        """Make the group. Raises LaunchFailed, ClientError."""
        if self._is_new:
            self._bootstrap()
        else:
            self._driver.raft.form(self._specs)  # addresses may have changed
        try:
            self._create_stores()
            self._start()
        except LaunchFailed as error:
            raise LaunchFailed(f"{error}\n{self._continue}") from error
        changes.add(self._nameservers, self._name, [spec.address for spec in self._specs])
        self._driver.report.line(f"{self._name} is a Raft group of {len(self._specs)} replicas")

    @property
    def _continue(self) -> str:
        return f"{self._name} serves as far as it has got: repeat `raymq migrate {self._name}` to continue"

    def _bootstrap(self) -> None:
        """Convert the store of replica 0, and start it as the only member of its group."""
        first, driver = self._first, self._driver
        is_converted = False
        try:
            self._stop(list(self._running))
            _fail(self._on_first(bootstrap_groups))
            is_converted = True
            driver.raft.bootstrap(self._name)
            fleet.start_again(self._namespace, first)
            driver.await_serving([first])
            with driver.report.working(f"waiting until {first.name} leads"):
                problem = fleet.wait_leading(self._namespace, first, LEAD_TIMEOUT_S, driver.waiting)
            _fail([f"{first.name} does not lead its group: {problem}"] if problem else [])
        except BaseException:
            if is_converted:
                self._undo()
            self._restore()
            raise
        driver.report.line(f"{first.name} leads the group, alone")

    def _undo(self) -> None:
        """Make the store that of a single broker again."""
        fleet.stop(self._namespace, self._first.name)
        for problem in self._on_first(leave_groups):
            self._driver.report.line(problem, "red")
        self._driver.raft.forget(self._name)

    def _create_stores(self) -> None:
        """Create the stores of the other replicas; each is created once in the life of the group."""
        raft = self._driver.raft
        group = raft.record_of(self._name)
        assert group is not None
        for number in group.without_store:
            spec = self._specs[number]
            store_id, _ = raft_member(group.members[number])
            users: bytes = run_on_node(self._first.resource, read_users, str(self._first.store))
            new = replace(_store(spec), store_id=store_id, users=users)
            problems: Sequence[str] = run_on_node(spec.resource, create_joining_stores, [new])
            if problems:
                raise LaunchFailed("\n".join(problems))
            group = replace(
                group, without_store=tuple(each for each in group.without_store if each != number)
            )
            raft.save(self._name, group)

    def _start(self) -> None:
        """Start the replicas that do not run, or that an interrupted migration has stopped."""
        running = {name for name, actor in self._observed().items() if actor.state != State.STOPPED}
        missing = [spec for spec in self._specs if spec.name not in running]
        for spec in missing:
            fleet.stop(self._namespace, spec.name)
            fleet.create(self._namespace, spec)
        self._driver.await_serving(missing)


class ToSingle(_Migration):
    """A Raft group becomes a single broker, with the store of replica 0."""

    def __init__(self, driver: Driver, entry: SingleBroker) -> None:
        """Read the state of the group. Raises LaunchRefused if it cannot become a single broker."""
        super().__init__(driver, entry)
        replicas = [each for each in self._running.values() if each.replica.votes]
        # An interrupted migration has stopped replicas, but not removed them from Ray.
        self._runs = any(each.state != State.STOPPED for each in replicas)
        # A store that an interrupted migration has converted keeps the former broker from serving.
        serves = any(each.state not in (State.STOPPED, State.NOT_SERVING) for each in self._running.values())
        if driver.raft.record_of(self._name) is None and not replicas and serves:
            raise refusal([f"{self._name} is a single broker already; `raymq up` applies other changes"])
        first = self._running.get(self._first.name)
        if self._runs and (first is None or group_role(first.details) != Role.LEADER):
            text = (
                f"{self._first.name} does not lead, but its log becomes that of the single broker: `raymq "
                f"transfer {self._name} --to 0` first (if it does not run, start it by `raymq up` with the "
                "topology of the group)"
            )
            raise refusal([text])

    def preview(self) -> Sequence[str]:
        """Return lines that say what is done, and what is not available meanwhile."""
        others = ", ".join(name for name in self._running if name != self._first.name)
        lines = [f"{self._name} becomes a single broker, with the store of {self._first.name}"]
        if others:
            lines.append(f"{others} leave the group and are stopped; their stores are kept, but not used")
        lines.append(f"then {self._first.name} is stopped and started again: {OUTAGE}")
        lines.append("from then on messages are on one disk only")
        return lines

    def run(self, changes: MemberChanges) -> None:
        """Leave the group. Raises LaunchFailed, ClientError."""
        driver, first = self._driver, self._first
        if self._runs:
            changes.remove_other_members(self._nameservers, self._name, 0)
        others = [name for name in self._running if name != first.name]
        try:
            self._stop([*others, *([first.name] if first.name in self._running else [])])
            _fail(self._on_first(leave_groups))
        except BaseException:
            self._restore()
            raise
        driver.raft.forget(self._name)
        fleet.start_again(self._namespace, first)
        driver.await_serving([first])
        driver.report.line(
            f"{self._name} is a single broker; `raymq up` applies other changes of the topology"
        )


def _fail(problems: Sequence[str]) -> None:
    """Raise LaunchFailed if there are problems."""
    if problems:
        raise LaunchFailed("\n".join(problems))


def _store(spec: ActorSpec) -> NewStore:
    """Return the store of a replica, without its id."""
    settings = spec.settings
    identity = StoreIdentity(spec.cluster, str(settings["broker_name"]), int(settings.get("replica", 0)))
    return NewStore(str(spec.store), identity, settings[STORE_KEY], "")
