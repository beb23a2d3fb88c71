"""The plan: what is wanted, compared with what runs. Pure: no Ray, no sockets, no clock.

wanted   running                        verb
yes      no                             create
yes      same settings, same code       adopt
yes      other settings, all live       adjust    (told to the running actor)
yes      other settings, code, or dead  roll      (stop in order, end, create under the same name)
no       yes                            keep, or remove with --prune
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What an actor is; in the order in which they are made."""

    NAMESERVER = "nameserver"
    REBALANCER = "rebalancer"
    BROKER = "broker"


class Verb(StrEnum):
    """What is to be done with an actor."""

    CREATE = "create"
    ADOPT = "adopt"
    ADJUST = "adjust"
    ROLL = "roll"
    KEEP = "keep"
    REMOVE = "remove"


@dataclass(frozen=True)
class ActorSpec:
    """One actor as wanted: `settings` is what its service is told, as JSON values."""

    kind: Kind
    name: str
    cluster: str
    settings: Mapping[str, Any]
    listen: tuple[str, int]
    advertised: tuple[str, int]
    resource: str
    store: str | None = None
    place: str = ""
    """The key path of its entry in the topology, for messages."""

    @property
    def address(self) -> str:
        """The advertised address as `host:port`."""
        return f"{self.advertised[0]}:{self.advertised[1]}"

    def to_json(self) -> dict[str, Any]:
        """As the actor is given it, and gives it back in `status`."""
        return {
            "kind": str(self.kind), "name": self.name, "cluster": self.cluster,
            "settings": dict(self.settings), "listen": list(self.listen), "advertised": list(self.advertised),
            "resource": self.resource,             "store": self.store,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ActorSpec:
        """The opposite of `to_json`."""
        listen, advertised = data["listen"], data["advertised"]
        return cls(
            Kind(data["kind"]), data["name"], data["cluster"], data["settings"], (listen[0], listen[1]),
            (advertised[0], advertised[1]), data["resource"], data["store"],
        )  # fmt: skip


@dataclass(frozen=True)
class Running:
    """One actor as it runs; `spec` is None when it does not answer; `is_ours`: not another program's."""

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


@dataclass(frozen=True)
class Action:
    """What is to be done with one actor, and why."""

    verb: Verb
    name: str
    reason: str
    spec: ActorSpec | None = None


@dataclass(frozen=True)
class Plan:
    """All actions, in the order in which they are done, and what forbids to do any."""

    actions: Sequence[Action]
    refusals: Sequence[str]

    @property
    def changes(self) -> list[Action]:
        """The actions that change something."""
        return [action for action in self.actions if action.verb not in (Verb.ADOPT, Verb.KEEP)]

    def having(self, *verbs: Verb) -> list[Action]:
        """The actions of some kinds."""
        return [action for action in self.actions if action.verb in verbs]


def make_plan(
    wanted: Sequence[ActorSpec],
    running: Sequence[Running],
    *,
    namespace: str,
    code_version: str,
    prune: bool = False,
    is_live: Callable[[Kind, str], bool] = lambda kind, key: False,
) -> Plan:
    """Compare, and say for every actor what to do. Actors of other namespaces only make refusals.

    `is_live` tells of which settings (by key path) a change needs no restart.
    """
    here = {actor.name: actor for actor in running if actor.namespace == namespace}
    wanted_names = {spec.name for spec in wanted}
    removals = [_leftover(actor, prune) for name, actor in sorted(here.items()) if name not in wanted_names]
    ends = {action.name for action in removals if action.verb is Verb.REMOVE}
    actions = [_action(spec, here.get(spec.name), code_version, is_live) for spec in wanted]
    others = [actor for actor in running if not (actor.namespace == namespace and actor.name in ends)]
    refusals = [text for spec in wanted for text in _refusals(spec, others, namespace)]
    order = [Verb.KEEP, Verb.REMOVE, Verb.ADOPT, Verb.ADJUST, Verb.CREATE, Verb.ROLL]
    listed = sorted(
        [action for action in removals if action.reason] + actions, key=lambda a: order.index(a.verb)
    )
    return Plan(listed, refusals)


def restarting(plan: Plan, names: Collection[str] | None) -> Plan:
    """Of a plan only this: the actors with these names (None: all that run) are rolled, all others left.

    A name may be a broker's without its replica: `broker-a` is `broker-a-0`.
    """
    by_name = {action.name: action for action in plan.actions if action.spec is not None}
    meant = list(by_name) if names is None else [full_name(name, by_name) for name in names]
    refusals = list(plan.refusals)
    for name in meant:
        action = by_name.get(name)
        if action is None:
            refusals.append(f"there is no actor {name!r}; there are {', '.join(sorted(by_name))}")
        elif action.verb is Verb.CREATE and names is not None:
            refusals.append(f"{name} does not run; `raymq up` starts it")
        elif action.verb is Verb.KEEP:
            refusals.append(f"{name} is not in the topology: nobody would start it again")
    asked = "a restart is asked for"
    reasons = {Verb.ADOPT: asked, Verb.ADJUST: "{}; " + asked, Verb.ROLL: "{}"}
    rolled = [
        replace(action, verb=Verb.ROLL, reason=reasons[action.verb].format(action.reason))
        for action in by_name.values()
        if action.name in meant and action.verb in reasons
    ]
    order = list(Kind)
    rolled.sort(key=lambda action: order.index(action.spec.kind) if action.spec else len(order))
    return Plan(rolled, refusals)


def full_name(name: str, known: Collection[str]) -> str:
    """The actor's name that is meant: a broker may be named without its replica."""
    return f"{name}-0" if name not in known and f"{name}-0" in known else name


def _leftover(actor: Running, prune: bool) -> Action:
    if not actor.is_ours:
        return Action(Verb.KEEP, actor.name, "")
    if prune:
        return Action(Verb.REMOVE, actor.name, "not in the topology, and --prune is given", actor.spec)
    stays = ", its store stays" if actor.spec is None or actor.spec.store is not None else ""
    return Action(Verb.KEEP, actor.name, f"not in the topology; --prune removes it{stays}", actor.spec)


def _action(
    spec: ActorSpec, actor: Running | None, code_version: str, is_live: Callable[[Kind, str], bool]
) -> Action:
    if actor is None:
        return Action(Verb.CREATE, spec.name, "does not run", spec)
    reasons: list[str] = []
    changed: dict[str, str] = {}
    if actor.spec is None:
        reasons.append(f"does not answer{': ' + actor.reason if actor.reason else ''}")
    else:
        changed = differences(actor.spec, spec)
    if actor.state == "not serving":
        reasons.append(f"is not serving: {actor.reason}")
    if actor.code_version and actor.code_version != code_version:
        reasons.append(f"code {actor.code_version} → {code_version}")
    if reasons or not all(is_live(spec.kind, key) for key in changed):
        return Action(Verb.ROLL, spec.name, "; ".join([*changed.values(), *reasons]), spec)
    if changed:
        return Action(Verb.ADJUST, spec.name, "; ".join(changed.values()), spec)
    return Action(Verb.ADOPT, spec.name, f"runs as wanted (process {actor.pid})", spec)


def differences(old: ActorSpec, new: ActorSpec) -> dict[str, str]:
    """The settings that differ by their key, as `key: old → new`."""
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
    """Nested settings as one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _refusals(spec: ActorSpec, running: Sequence[Running], namespace: str) -> list[str]:
    """What another running actor already has of what this one wants."""
    found = []
    for actor in running:
        is_same = actor.namespace == namespace and actor.name == spec.name
        if is_same and not actor.is_ours:
            found.append(
                f"{spec.place}: the name {spec.name!r} is taken in namespace {namespace} by an actor of "
                "another program; give the topology another namespace"
            )
        elif is_same and actor.spec is not None and actor.spec.cluster != spec.cluster:
            found.append(
                f"{spec.place}: {spec.name} of namespace {namespace} belongs to cluster "
                f"{actor.spec.cluster}, not {spec.cluster}; give this topology another "
                "namespace, or take that cluster down"
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
            "give it another port, or take that one down"
        )
    if spec.store is not None and spec.store == other.store and spec.resource == other.resource:
        found.append(
            f"{spec.place}.store: {spec.store} is the store of {owner}; a store has one writer: "
            "give another store_root, or take that one down"
        )
    return found
