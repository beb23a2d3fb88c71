"""RaftGroups: which stores are the replicas of each Raft group of a topology, and where they listen.

A replica is its number and its store, so all replicas of a group get the same list of store ids and
addresses (`raft_members`). The first `raymq up` creates the stores, and records the list before it starts a
replica: in Ray's key-value store and in `<home>/raft-groups/<broker>.json`. From then on no store is created:
a replica that has lost its disk fails, and does not become a new member by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from actors.broker.broker_settings import raft_member
from actors.broker.broker_settings_text import STORE_KEY
from actors.host import ray_port
from actors.host.node_address import NODE_HOST
from cluster.driver.launch_errors import refuse, refusing_damage
from cluster.driver.new_stores import NewStore, StoreFound, create_stores, find_stores
from cluster.driver.placement import Node
from cluster.driver.specs import ActorSpec
from cluster.topology.topology import Broker, Topology
from store.disk.files import replace_file
from store.message.hosts import join_address, split_address
from store.ownership.identity import StoreIdentity

PREFIX = "raft-group:"
FOLDER = "raft-groups"
_REMEDY = (
    'restore it from a backup, or write {"members": ["STORE_ID@HOST:PORT", …]}, with the replicas in the '
    "order of their numbers: the id is storeId in raymq.json of each store"
)
_REMEDY_IN_RAY = "stop the cluster with `raymq down`; a new Ray gets the record from the home directory"


class RunOnNode(Protocol):
    """Calls a function with one argument on the node that has a resource, and returns its result."""

    def __call__(self, resource: str, function: Callable[[Any], Any], argument: object) -> Any:
        """Return `function(argument)`."""


class RaftGroups:
    """The Raft groups of one run of the driver."""

    def __init__(self, home: Path, namespace: str, run_on_node: RunOnNode) -> None:
        """Read the records of the groups. Raises LaunchRefused for a damaged one."""
        self._home, self._namespace, self._run_on_node = home, namespace, run_on_node
        self._recorded = exchange(home, namespace)
        self._members: dict[str, Sequence[str]] = {}

    def problems(self, topology: Topology) -> list[str]:
        """Return why the groups of the topology are not those that were recorded."""
        return list(_differences(topology, self._recorded))

    def ports(self, topology: Topology, running: Collection[str]) -> dict[str, int]:
        """Return the ports of replicas that do not run, by actor name, so that the others still find them.

        A group of which no replica runs gets new ports.
        """
        found: dict[str, int] = {}
        for entry in topology.raft_groups():
            actors = [member.actor_name(0) for member in entry.members()]
            if set(actors) & set(running):
                members = self._recorded.get(entry.name, ())
                ports = [split_address(raft_member(each)[1])[1] for each in members]
                found |= dict(zip(actors, ports, strict=False))
        return found

    def settle(
        self,
        topology: Topology,
        resources: Mapping[str, str],
        nodes: Sequence[Node],
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
        for entry in topology.raft_groups():
            if needed is not None and not {each.actor_name(0) for each in entry.members()} & set(needed):
                continue
            recorded = [raft_member(each) for each in self._recorded.get(entry.name, ())]
            ids = [store_id for store_id, _ in recorded] or self._ids(topology, entry, resources)
            addresses = [
                _address(topology, member, resources[member.actor_name(0)], nodes)
                or (recorded[number][1] if recorded else "")
                for number, member in enumerate(entry.members())
            ]
            refuse(
                [
                    f"{entry.name}-{number} has listen_host: {NODE_HOST}, but its resource is not on exactly "
                    "one live node: the other replicas would not find it"
                    for number, address in enumerate(addresses)
                    if not address
                ]
            )
            self._members[entry.name] = [
                f"{store_id}@{address}" for store_id, address in zip(ids, addresses, strict=True)
            ]
        return topology.with_raft_members(self._members)

    def _ids(self, topology: Topology, entry: Broker, resources: Mapping[str, str]) -> list[str]:
        """Return the ids of the stores of a new group: of those that exist, and new ones."""
        found: list[StoreFound] = []
        for member in entry.members():
            root = str(topology.store_of(member, self._home))
            found += self._run_on_node(resources[member.actor_name(0)], find_stores, [root])
        refuse(list(_unusable(entry.name, found)))
        return [store.store_id or uuid.uuid4().hex for store in found]

    def form(self, specs: Sequence[ActorSpec]) -> None:
        """Create the stores of new groups, and record the members of all groups of these replicas.

        `specs` are the replicas that are about to be started, possibly with other actors. Called before the
        first one is started. Raises LaunchRefused if a store cannot be created.
        """
        names = {str(spec.settings.get("broker_name", "")) for spec in specs}
        for name in sorted(names & self._members.keys()):
            members = self._members[name]
            if name not in self._recorded:
                self._create_stores([spec for spec in specs if spec.settings.get("broker_name") == name])
            if self._recorded.get(name) != members:
                self._recorded[name] = members
                save(self._home, self._namespace, name, members)

    def _create_stores(self, specs: Sequence[ActorSpec]) -> None:
        problems: list[str] = []
        for spec in specs:
            settings, replica = spec.settings, int(spec.settings.get("replica", 0))
            identity = StoreIdentity(spec.cluster, settings["broker_name"], replica)
            store_id, _ = raft_member(settings["raft_members"][replica])
            new = NewStore(spec.store or "", identity, settings[STORE_KEY], store_id)
            problems += self._run_on_node(spec.resource, create_stores, [new])
        refuse(problems)


def _differences(topology: Topology, recorded: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for entry in topology.brokers:
        members = recorded.get(entry.name) if isinstance(entry, Broker) else None
        if members is None or not isinstance(entry, Broker):
            continue
        if not entry.is_raft:
            yield (
                f"{entry.name} is a Raft group of {len(members)} replicas, and each of them may lack what "
                "the others have acknowledged: keep replication: raft. To leave it, add a broker with "
                "another name, move producers and consumers to it, and remove the group"
            )
        elif len(members) != entry.replicas:
            yield (
                f"the Raft group {entry.name} has {len(members)} members, but the topology has replicas: "
                f"{entry.replicas}: set replicas: {len(members)}"
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
                f"lack: give the group another name, start both, and `raymq drain {name}` until all messages "
                "are consumed"
            )
        elif is_member and not store.is_member:
            yield (
                f"the stores of {name} are members of a Raft group, but {name}-{replica} has "
                f"{'another' if store.store_id else 'no'} store: restore it, or the record "
                f"{FOLDER}/{name}.json of the cluster's home directory"
            )


def _address(topology: Topology, member: Broker, resource: str, nodes: Sequence[Node]) -> str:
    """Return the address of a replica; empty if its node is not known."""
    host, port = topology.advertised(member)
    if host == NODE_HOST:
        having = [node.ip for node in nodes if node.resources.get(resource, 0) > 0]
        if len(having) != 1:
            return ""
        host = having[0]
    return join_address(host, port)


def exchange(home: Path, namespace: str) -> dict[str, Sequence[str]]:
    """Return the members of all recorded groups by broker name, after completing both places.

    The record in Ray is valid if they differ: the home directory may have been restored from a backup.
    Raises LaunchRefused for a damaged record.
    """
    found: dict[str, Sequence[str]] = {}
    for path in (home / FOLDER).glob("*.json"):
        with refusing_damage(path, _REMEDY):
            found[path.stem] = _decode(path.read_bytes())
    for key in ray_port.recalled_keys(namespace, PREFIX):
        if (data := ray_port.recall(namespace, key)) is not None:
            with refusing_damage(f"the key {key} of namespace {namespace} in Ray", _REMEDY_IN_RAY):
                found[key.removeprefix(PREFIX)] = _decode(data)
    for broker, members in found.items():
        save(home, namespace, broker, members)
    return found


def save(home: Path, namespace: str, broker: str, members: Sequence[str]) -> None:
    """Save the members of a group in both places."""
    data = orjson.dumps({"members": list(members)})
    (home / FOLDER).mkdir(parents=True, exist_ok=True)
    replace_file(home / FOLDER / f"{broker}.json", data)
    ray_port.remember(namespace, PREFIX + broker, data)


def _decode(data: bytes) -> list[str]:
    """Return the members in a record. Raises ValueError or TypeError for damaged data."""
    document = orjson.loads(data)
    members = document.get("members") if isinstance(document, dict) else None
    if not isinstance(members, list) or not members or not all(isinstance(each, str) for each in members):
        raise ValueError("members must be a list of STORE_ID@HOST:PORT")
    if not all(raft_member(each)[0] for each in members):
        raise ValueError("a member has no store id")
    return members
