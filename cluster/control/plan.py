"""The plan: the difference between a topology and the running actors. Pure: no Ray, no sockets, no clock.

in the topology  running                               verb
yes              no                                    create
yes              same settings, same code              adopt   (no change)
yes              only live settings differ             adjust  (change them without a restart)
yes              settings or code differ, or failed    roll    (stop, then create under the same name)
no               yes                                   keep, or remove with --prune
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from actors.raft.state import Role
from cluster.control.specs import ActorSpec, ProcessKind, creation_order
from cluster.views.replicas import Replica, group_role, replica_of


class Verb(StrEnum):
    """What `up` does with an actor. The module docstring lists the cases."""

    CREATE = "create"
    ADOPT = "adopt"
    ADJUST = "adjust"
    ROLL = "roll"
    KEEP = "keep"
    REMOVE = "remove"


@dataclass(frozen=True)
class Running:
    """One running actor.

    Attributes:
        namespace: Its Ray namespace.
        name: Its name in Ray.
        spec: Its settings; None if it does not respond or runs another code version.
        state: State of its service, "silent" if it does not respond.
        reason: Why it does not serve.
        code_version: Version of the RayMQ code that it runs.
        pid: Process id.
        node_ip: Address of its node.
        started_ms: Time of the process start, in milliseconds since the epoch.
        serving_ms: Time since which it serves, in milliseconds since the epoch.
        details: Further status values of its service.
        is_ours: False if it belongs to another program.
    """

    namespace: str
    name: str
    spec: ActorSpec | None = None
    state: str = "silent"
    reason: str = ""
    code_version: str = ""
    pid: int = 0
    node_ip: str = ""
    started_ms: int = 0
    serving_ms: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = True

    @property
    def replica(self) -> Replica:
        """Return what is known of a broker as a replica; one of unknown settings follows no other."""
        settings = {} if self.spec is None else self.spec.settings
        return replica_of(str(settings.get("broker_name")), settings, self.details)


@dataclass(frozen=True)
class PlannedAction:
    """Action for one actor, with its reason.

    `running` are the present settings of the actor, if known. `is_leader`: it leads its Raft group now.
    """

    verb: Verb
    name: str
    reason: str
    spec: ActorSpec | None = None
    running: ActorSpec | None = field(default=None, compare=False)
    is_leader: bool = field(default=False, compare=False)

    @property
    def is_demotion(self) -> bool:
        """Return True if a master becomes a slave, because another replica was promoted."""
        return bool(self.spec and self.running and self.spec.is_slave and not self.running.is_slave)

    @property
    def is_promotion(self) -> bool:
        """Return True if a slave becomes the master of its group."""
        return bool(self.spec and self.running and self.running.is_slave and not self.spec.is_slave)


@dataclass(frozen=True)
class Plan:
    """Actions in the order of execution. If `refusals` is not empty, none of them may be executed."""

    actions: Sequence[PlannedAction]
    refusals: Sequence[str]

    @property
    def changes(self) -> list[PlannedAction]:
        """Return the actions that change an actor."""
        return [action for action in self.actions if action.verb not in (Verb.ADOPT, Verb.KEEP)]

    def having(self, *verbs: Verb) -> list[PlannedAction]:
        """Return the actions with one of `verbs`."""
        return [action for action in self.actions if action.verb in verbs]


def make_plan(
    wanted: Sequence[ActorSpec],
    running: Sequence[Running],
    *,
    namespace: str,
    code_version: str,
    prune: bool = False,
    is_live: Callable[[ProcessKind, str], bool] = lambda kind, key: False,
) -> Plan:
    """Compare the wanted specs with the running actors and return the plan.

    Args:
        wanted: The actors of the topology.
        running: The running actors. Actors of other namespaces are used only to find conflicts.
        namespace: Ray namespace of the topology.
        code_version: Version of the RayMQ code of this process; actors with another version are restarted.
        prune: Remove actors that are not in the topology.
        is_live: Returns True for a kind and a setting (key path) that can be changed without a restart.
    """
    here = {actor.name: actor for actor in running if actor.namespace == namespace}
    wanted_names = {spec.name for spec in wanted}
    removals = [_leftover(actor, prune) for name, actor in sorted(here.items()) if name not in wanted_names]
    ends = {action.name for action in removals if action.verb is Verb.REMOVE}
    leaders = {name for name, actor in here.items() if group_role(actor.details) == Role.LEADER}
    actions = [
        replace(_action(spec, here.get(spec.name), code_version, is_live), is_leader=spec.name in leaders)
        for spec in wanted
    ]
    others = [actor for actor in running if not (actor.namespace == namespace and actor.name in ends)]
    refusals = [text for spec in wanted for text in _refusals(spec, others, namespace)]
    order = [Verb.KEEP, Verb.REMOVE, Verb.ADOPT, Verb.ADJUST, Verb.CREATE, Verb.ROLL]
    rolled = sorted(actions, key=_restart_order)
    listed = sorted(
        [action for action in removals if action.reason]
        + [action for action in actions if action.verb is not Verb.ROLL]
        + [action for action in rolled if action.verb is Verb.ROLL],
        key=lambda action: order.index(action.verb),
    )
    return Plan(listed, refusals)


def restarting(plan: Plan, names: Collection[str] | None) -> Plan:
    """Return a plan that only restarts the named actors of `plan`, or all running actors if `names` is None.

    The replica number of a broker may be omitted: `broker-a` means `broker-a-0`.
    """
    by_name = {action.name: action for action in plan.actions if action.spec is not None}
    selected = list(by_name) if names is None else [full_name(name, by_name) for name in names]
    refusals = list(plan.refusals)
    for name in selected:
        action = by_name.get(name)
        if action is None:
            refusals.append(f"no actor {name!r}; known actors: {', '.join(sorted(by_name))}")
        elif action.verb is Verb.CREATE and names is not None:
            refusals.append(f"{name} is not running; `raymq up` starts it")
        elif action.verb is Verb.KEEP:
            refusals.append(f"{name} is not in the topology, so it could not be started again")
    requested = "restart requested"
    reasons = {Verb.ADOPT: requested, Verb.ADJUST: "{}; " + requested, Verb.ROLL: "{}"}
    rolled = [
        replace(action, verb=Verb.ROLL, reason=reasons[action.verb].format(action.reason))
        for action in by_name.values()
        if action.name in selected and action.verb in reasons
    ]
    rolled.sort(key=_restart_order)
    return Plan(rolled, refusals)


def _restart_order(action: PlannedAction) -> tuple[float, int]:
    """Return the place in a rolling restart: by kind, slaves before masters, and leaders last.

    If a promotion was interrupted, the former masters are the first, so that they acknowledge nothing more,
    and the promoted replicas the second: the other slaves cannot follow before.
    """
    is_slave = action.spec is not None and action.spec.is_slave
    step = 0 if action.is_demotion else 1 if action.is_promotion else 2 if is_slave else 3
    step += action.is_leader
    return creation_order(action.spec), step


def only(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan with the actions of the named actors of `plan`."""
    return Plan([action for action in plan.actions if action.name in names], plan.refusals)


def full_name(name: str, known: Collection[str]) -> str:
    """Return `name`, or `name-0` if only that is in `known`, as users may omit the replica number."""
    return f"{name}-0" if name not in known and f"{name}-0" in known else name


def _leftover(actor: Running, prune: bool) -> PlannedAction:
    if not actor.is_ours:
        return PlannedAction(Verb.KEEP, actor.name, "")
    if prune:
        return PlannedAction(Verb.REMOVE, actor.name, "not in the topology (--prune)", actor.spec)
    kept = ", its store is kept" if actor.spec is None or actor.spec.store is not None else ""
    return PlannedAction(Verb.KEEP, actor.name, f"not in the topology; --prune removes it{kept}", actor.spec)


def _action(
    spec: ActorSpec, actor: Running | None, code_version: str, is_live: Callable[[ProcessKind, str], bool]
) -> PlannedAction:
    if actor is None:
        return PlannedAction(Verb.CREATE, spec.name, "not running", spec)
    reasons: list[str] = []
    changed: dict[str, str] = {}
    if actor.spec is None:
        reasons.append(f"does not respond{': ' + actor.reason if actor.reason else ''}")
    else:
        changed = differences(actor.spec, spec)
    if actor.state == "not serving":
        reasons.append(f"is not serving: {actor.reason}")
    if actor.state == "stopped":
        reasons.append("is stopped")
    if actor.code_version and actor.code_version != code_version:
        reasons.append(f"code {actor.code_version} → {code_version}")
    if reasons or not all(is_live(spec.kind, key) for key in changed):
        return PlannedAction(Verb.ROLL, spec.name, "; ".join([*changed.values(), *reasons]), spec, actor.spec)
    if changed:
        return PlannedAction(Verb.ADJUST, spec.name, "; ".join(changed.values()), spec, actor.spec)
    return PlannedAction(Verb.ADOPT, spec.name, f"already running (process {actor.pid})", spec, actor.spec)


def differences(old: ActorSpec, new: ActorSpec) -> dict[str, str]:
    """Return the settings that differ: key path → "key: old → new"."""
    before, after = flatten(old.settings), flatten(new.settings)
    changed = {
        key: f"{key}: {before.get(key, 'unset')} → {after.get(key, 'unset')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
    if old.resource != new.resource:
        changed["resource"] = f"resource: {old.resource} → {new.resource}"
    return changed


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one mapping with dotted keys, such as `store.flush`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _refusals(spec: ActorSpec, running: Sequence[Running], namespace: str) -> list[str]:
    """Return the conflicts of `spec` with other running actors: name, port or store in use."""
    found = []
    for actor in running:
        is_same = actor.namespace == namespace and actor.name == spec.name
        if is_same and not actor.is_ours:
            found.append(
                f"{spec.place}: the name {spec.name!r} is used in namespace {namespace} by an actor of "
                "another program; give the topology another namespace"
            )
        elif is_same and actor.spec is not None and actor.spec.cluster != spec.cluster:
            found.append(
                f"{spec.place}: {spec.name} of namespace {namespace} belongs to cluster "
                f"{actor.spec.cluster}, not {spec.cluster}; give this topology another "
                "namespace, or stop that cluster"
            )
        elif not is_same and actor.spec is not None:
            found += _clashes(
                spec, actor.spec, f"{actor.name} of cluster {actor.spec.cluster} ({actor.namespace})"
            )
    return found


def _clashes(spec: ActorSpec, other: ActorSpec, owner: str) -> list[str]:
    found = []
    if spec.listen[1] and spec.listen == other.listen and spec.resource == other.resource:
        found.append(
            f"{spec.place}.listen_port: {spec.listen[0]}:{spec.listen[1]} is in use by {owner}; "
            "give it another port, or stop that actor"
        )
    if spec.store is not None and spec.store == other.store and spec.resource == other.resource:
        found.append(
            f"{spec.place}.store: {spec.store} is the store of {owner}; a store has one writer: "
            "give it another store_root, or stop that actor"
        )
    return found
