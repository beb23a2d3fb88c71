"""RaftGroups: which stores are the replicas of each Raft group of a topology, and where they listen.

A replica is its number and its store, so all replicas of a group get the same list of store ids and
addresses (`raft_members`). The first `raymq up` creates the stores, and records the list before it starts a
replica: in Ray's key-value store and in `<home>/raft-groups/<broker>.json`. From then on a replica of the
list that has lost its disk fails, and does not become a new member by itself.

A replica that is to join a running group gets no list: it begins with an empty store, and waits until the
leader is requested to add it (`raymq replica add` or `replace`). These are the replicas that the record does
not have, because `replicas` was raised, and those that `raymq up --join` names, because their disk is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from actors.broker.broker_settings import raft_member
from actors.broker.broker_settings_text import STORE_KEY
from actors.host.node_address import NODE_HOST
from cluster.control.kept_records import KeptRecords
from cluster.control.launch_errors import refuse
from cluster.control.new_stores import NewStore, StoreFound, create_stores, find_stores
from cluster.control.placement import RayNode
from cluster.control.specs import ActorSpec
from cluster.control.topology.topology import SingleBroker, Topology
from store.message.hosts import join_address, split_address
from store.ownership.identity import StoreIdentity

FOLDER = "raft-groups"
_REMEDY = (
    'restore it from a backup, or write {"members": ["STORE_ID@HOST:PORT", …]}, with the replicas in the '
    "order of their numbers: the id is storeId in raymq.json of each store"
)


class RunOnNode(Protocol):
    """Calls a function with one argument on the node that has a resource, and returns its result."""

    def __call__(self, resource: str, function: Callable[[Any], Any], argument: object) -> Any:
        """Return `function(argument)`."""


@dataclass(frozen=True)
class SavedRaftGroup:
    """The replicas of a group.

    Attributes:
        members: The first members, as `STORE_ID@HOST:PORT`, in the order of their numbers.
        joined: Numbers of replicas whose disk was lost, and that were started without the list since then.
        without_store: Numbers of replicas whose stores are still to be created, because a broker is becoming
            this group (`cluster.control.migration`).
    """

    members: tuple[str, ...]
    joined: tuple[int, ...] = ()
    without_store: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> SavedRaftGroup:
        """Return the record that `encode` encoded. Raises ValueError or TypeError for damaged data."""
        document = orjson.loads(data)
        if not isinstance(document, dict):
            raise TypeError("it is not a JSON object")
        members = document.get("members")
        joined, without_store = document.get("joined", []), document.get("without_store", [])
        if not isinstance(members, list) or not members or not all(type(each) is str for each in members):
            raise ValueError("members must be a list of STORE_ID@HOST:PORT")
        if not all(raft_member(each)[0] for each in members):
            raise ValueError("a member has no store id")
        for numbers in (joined, without_store):
            if not isinstance(numbers, list) or not all(type(each) is int for each in numbers):
                raise ValueError("joined and without_store must be lists of numbers of replicas")
        return cls(tuple(members), tuple(joined), tuple(without_store))

    def members_of(self, replica: int) -> Sequence[str]:
        """Return the list that a replica is started with."""
        return () if replica in self.joined or replica >= len(self.members) else self.members


_GROUPS = KeptRecords("raft-group:", FOLDER, SavedRaftGroup.decode, _REMEDY)
exchange, save = _GROUPS.exchange, _GROUPS.save


class RaftGroups:
    """The Raft groups of one run of the driver."""

    def __init__(
        self,
        home: Path,
        namespace: str,
        run_on_node: RunOnNode,
        joining: Collection[str] = (),
        migrating: str = "",
    ) -> None:
        """Read the records of the groups.

        Args:
            home: directory of the cluster.
            namespace: Ray namespace of the cluster.
            run_on_node: runs the functions that find and create stores.
            joining: actors that are to join their group again.
            migrating: the broker that is to become a group, or a single broker again; empty: none.

        Raises LaunchRefused for a damaged record.
        """
        self._home, self._namespace, self._run_on_node = home, namespace, run_on_node
        self._joining, self._migrating = joining, migrating
        self._recorded = exchange(home, namespace)
        self._groups: dict[str, SavedRaftGroup] = {}

    def problems(self, topology: Topology) -> list[str]:
        """Return why the groups of the topology are not those that were recorded."""
        known = {
            member.actor_name(0)
            for entry in topology.raft_groups()
            for member in entry.members()
            if entry.name in self._recorded
        }
        shown = ", ".join(sorted(known)) or "none"
        unknown = [
            f"{actor!r} is not a replica of a Raft group that runs; replicas: {shown}"
            for actor in self._joining
            if actor not in known
        ]
        recorded = {name: group for name, group in self._recorded.items() if name != self._migrating}
        return [*_differences(topology, recorded), *unknown]

    def record_of(self, name: str) -> SavedRaftGroup | None:
        """Return the record of a group; None without one."""
        return self._recorded.get(name)

    def bootstrap(self, name: str) -> SavedRaftGroup:
        """Record a group that `settle` has given members: the store of a broker is its first one.

        The stores of the others are to be created. Returns the record; one that exists is kept.
        """
        if name not in self._recorded:
            group = self._groups[name]
            self.save(name, replace(group, without_store=tuple(range(1, len(group.members)))))
        return self._recorded[name]

    def save(self, name: str, group: SavedRaftGroup) -> None:
        """Replace the record of a group."""
        self._recorded[name] = group
        save(self._home, self._namespace, name, group)

    def forget(self, name: str) -> None:
        """Remove the record of a group, which is a single broker again."""
        _GROUPS.forget(self._home, self._namespace, name)
        self._recorded.pop(name, None)

    def ports(self, topology: Topology, running: Collection[str]) -> dict[str, int]:
        """Return the ports of replicas that do not run, by actor name, so that the others still find them.

        A group of which no replica runs gets new ports.
        """
        found: dict[str, int] = {}
        for entry in topology.raft_groups():
            actors = [member.actor_name(0) for member in entry.members()]
            if entry.name in self._recorded and set(actors) & set(running):
                members = self._recorded[entry.name].members
                ports = [split_address(raft_member(each)[1])[1] for each in members]
                found |= dict(zip(actors, ports, strict=False))
        return found

    def settle(
        self,
        topology: Topology,
        resources: Mapping[str, str],
        nodes: Sequence[RayNode],
        needed: Collection[str] | None = None,
    ) -> Topology:
        """Return the topology with the members of its groups.

        Args:
            topology: the topology, with all ports.
            resources: resource that binds each actor to its node, by actor name.
            nodes: the live nodes.
            needed: if given, only groups with one of these actors need members.

        Raises LaunchRefused if a store cannot be a member, or an address is not known.
        """
        lists: dict[str, Sequence[str]] = {}
        for entry in topology.raft_groups():
            replicas = [(each.actor_name(0), each) for each in entry.members()]
            if needed is not None and not {actor for actor, _ in replicas} & set(needed):
                continue
            record = self._recorded.get(entry.name)
            known = (
                [raft_member(each) for each in record.members]
                if record
                else [(store_id, "") for store_id in self._ids(topology, entry, resources)]
            )
            given = [_address(topology, each, resources[actor], nodes) for actor, each in replicas]
            addresses = [new or old for new, (_, old) in zip(given, known, strict=False)]
            addresses += [old for _, old in known[len(given) :]]
            refuse(list(_unknown(entry.name, addresses)))
            joining = {number for number, (actor, _) in enumerate(replicas) if actor in self._joining}
            self._groups[entry.name] = group = SavedRaftGroup(
                tuple(f"{each}@{address}" for (each, _), address in zip(known, addresses, strict=True)),
                tuple(sorted(joining | set(record.joined if record else ()))),
                record.without_store if record else (),
            )
            lists |= {actor: group.members_of(number) for number, (actor, _) in enumerate(replicas)}
        return topology.with_raft_members(lists)

    def _ids(self, topology: Topology, entry: SingleBroker, resources: Mapping[str, str]) -> list[str]:
        """Return the ids of the stores of a new group: of those that exist, and new ones."""
        found: list[StoreFound] = []
        for member in entry.members():
            root = str(topology.store_of(member, self._home))
            found += self._run_on_node(resources[member.actor_name(0)], find_stores, [root])
        if entry.name == self._migrating:  # the stores of the others are set aside
            return [found[0].store_id, *(uuid.uuid4().hex for _ in found[1:])]
        refuse(list(_unusable(entry.name, found)))
        return [store.store_id or uuid.uuid4().hex for store in found]

    def form(self, specs: Sequence[ActorSpec]) -> None:
        """Create the stores of new groups, and record the members of all groups of these replicas.

        `specs` are the replicas that are about to be started, possibly with other actors. Called before the
        first one is started. Raises LaunchRefused if a store cannot be created.
        """
        names = {str(spec.settings.get("broker_name", "")) for spec in specs}
        for name in sorted(names & self._groups.keys()):
            group = self._groups[name]
            if name not in self._recorded:
                self._create_stores([spec for spec in specs if spec.settings.get("broker_name") == name])
            if self._recorded.get(name) != group:
                self._recorded[name] = group
                save(self._home, self._namespace, name, group)

    def _create_stores(self, specs: Sequence[ActorSpec]) -> None:
        problems: list[str] = []
        for spec in specs:
            settings, replica = spec.settings, int(spec.settings.get("replica", 0))
            identity = StoreIdentity(spec.cluster, settings["broker_name"], replica)
            store_id, _ = raft_member(settings["raft_members"][replica])
            new = NewStore(spec.store or "", identity, settings[STORE_KEY], store_id)
            problems += self._run_on_node(spec.resource, create_stores, [new])
        refuse(problems)


def _differences(topology: Topology, recorded: Mapping[str, SavedRaftGroup]) -> Iterator[str]:
    for entry in topology.brokers:
        if isinstance(entry, SingleBroker) and entry.name in recorded and not entry.elects_master:
            yield (
                f"{entry.name} is a Raft group of {len(recorded[entry.name].members)} replicas, and each of "
                "them may lack what the others have acknowledged: keep replication: raft, or leave the group "
                f"with `raymq migrate {entry.name}`. To give up its messages, remove its stores and "
                f"{FOLDER}/{entry.name}.json of the cluster's home directory"
            )
        elif (
            isinstance(entry, SingleBroker) and entry.name in recorded and recorded[entry.name].without_store
        ):
            yield f"{entry.name} is not a complete Raft group yet: continue with `raymq migrate {entry.name}`"


def _unknown(name: str, addresses: Sequence[str]) -> Iterator[str]:
    for number, address in enumerate(addresses):
        if not address:
            yield (
                f"{name}-{number} has listen_host: {NODE_HOST}, but its resource is not on exactly one live "
                "node: the other replicas would not find it"
            )


def _unusable(name: str, found: Sequence[StoreFound]) -> Iterator[str]:
    """Yield why stores cannot be the members of a group that is not recorded."""
    is_member = any(store.is_member for store in found)
    for replica, store in enumerate(found):
        if store.problem:
            yield f"the store of {name}-{replica} cannot be read: {store.problem}"
        elif store.has_records and not store.is_member:
            yield (
                f"the store of {name}-{replica} has messages from before the group, which the other replicas "
                f"lack: `raymq migrate {name}` makes a broker a Raft group with the messages of replica 0"
            )
        elif is_member and not store.is_member:
            yield (
                f"the stores of {name} are members of a Raft group, but {name}-{replica} has "
                f"{'another' if store.store_id else 'no'} store: restore it, or the record "
                f"{FOLDER}/{name}.json of the cluster's home directory; after an interrupted migration, "
                f"continue with `raymq migrate {name}`"
            )


def _address(topology: Topology, member: SingleBroker, resource: str, nodes: Sequence[RayNode]) -> str:
    """Return the address of a replica; empty if its node is not known."""
    host, port = topology.advertised(member)
    if host == NODE_HOST:
        having = [node.ip for node in nodes if node.resources.get(resource, 0) > 0]
        if len(having) != 1:
            return ""
        host = having[0]
    return join_address(host, port)
