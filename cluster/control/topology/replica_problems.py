"""Problems of the entries of `brokers` that have replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from actors.broker.broker_settings import BrokerSettings
from cluster.control.topology.topology import (
    MAX_PORT,
    PORT_STEP,
    BrokerEntry,
    ElasticBrokers,
    KeyPath,
    Problem,
    SingleBroker,
    Topology,
)
from cluster.views.replicas import kind_of

IN_SYNC_REPLICAS = int(BrokerSettings.model_fields["in_sync_replicas"].default)
KEYS_OF_SETTINGS = {
    "role": "none: it depends on the replica", "replication": "", "in_sync_replicas": "",
    "raft_members": "none: `raymq up` finds the ids of the stores",
}  # fmt: skip
"""Settings that a group sets for each of its replicas, and where they are set if not by the same key."""

RAFT_REPLICAS_MIN = 3


def replica_problems(topology: Topology) -> Iterator[Problem]:
    """Yield the problems of groups: counts that do not fit, missing and misplaced keys."""
    for index, entry in enumerate(topology.brokers):
        path: KeyPath = ("brokers", index)
        yield from _raft_in_settings(path, topology, entry)
        if isinstance(entry, ElasticBrokers):
            continue
        yield from _replication(path, entry)
        yield from _nodes(path, entry)
        if entry.is_replicated:
            yield from _addresses(path, entry)
            yield from _misplaced(path, topology, entry)


def replica_warnings(topology: Topology) -> Iterator[Problem]:
    """Yield what groups do not survive although they wait for slaves."""
    for index, entry in enumerate(topology.brokers):
        if isinstance(entry, ElasticBrokers) or entry.replication != "sync" or entry.replicas_on_one_node:
            continue
        wanted = entry.in_sync_replicas or IN_SYNC_REPLICAS
        if wanted < entry.replicas:
            yield (
                ("brokers", index, "in_sync_replicas"),
                (
                    f"{wanted} of {entry.replicas} replicas: if a slave is promoted while the network is "
                    "divided, the former master acknowledges messages that are then lost, as long as another "
                    f"slave is on its side; {entry.replicas} prevents that, but then each lost replica stops "
                    "all sends"
                ),
            )


def _replication(path: KeyPath, entry: SingleBroker) -> Iterator[Problem]:
    wanted = entry.in_sync_replicas
    if entry.replicas > 1 and entry.replication is None:
        yield (
            (*path, "replicas"),
            (
                f"{entry.replicas} replicas need the key replication: async (a send does not wait for "
                "slaves), sync (it waits for in_sync_replicas) or raft (it waits for a majority)"
            ),
        )
    if entry.elects_master and entry.replicas < RAFT_REPLICAS_MIN:
        yield (
            (*path, "replication"),
            (
                f"raft needs replicas: 3 or more, not {entry.replicas}: a majority of fewer does not survive "
                "the loss of one"
            ),
        )
    if entry.replication == "sync" and entry.replicas < 2:
        yield (
            (*path, "replication"),
            (
                "sync needs replicas: 2 or more; to wait for slaves outside this topology, set replication "
                "in the settings of the broker"
            ),
        )
    elif wanted is not None and entry.replication != "sync":
        yield (*path, "in_sync_replicas"), f"{wanted} has an effect only with replication: sync; remove it"
    elif wanted is not None and wanted > entry.replicas:
        yield (
            (*path, "in_sync_replicas"),
            (
                f"{wanted} exceeds replicas {entry.replicas}, so every send would be refused; lower it or "
                "add replicas"
            ),
        )
    elif wanted is not None and wanted > 2 and entry.replicas_on_one_node:
        yield (
            (*path, "in_sync_replicas"),
            (
                f"{wanted} is not possible with replicas_on_one_node: a master counts the slaves of one "
                "address once; use 2"
            ),
        )


def _nodes(path: KeyPath, entry: SingleBroker) -> Iterator[Problem]:
    resources = entry.resources
    if resources is None:
        if entry.replicas > 1 and not entry.replicas_on_one_node:
            yield (
                (*path, "replicas"),
                (
                    f"{entry.replicas} replicas need resources: [...], one of each node, so that no two "
                    "replicas are lost together; replicas_on_one_node: true permits one node, for tests"
                ),
            )
        return
    if entry.resource is not None:
        yield (*path, "resource"), "a broker has either resource or resources; remove one of them"
    if len(resources) != entry.replicas:
        yield (
            (*path, "resources"),
            f"{len(resources)} resources for {entry.replicas} replicas; name one of the node of each replica",
        )
    repeated = sorted({each for each in resources if resources.count(each) > 1})
    if repeated and not entry.replicas_on_one_node:
        yield (
            (*path, "resources"),
            (
                f"{', '.join(map(repr, repeated))} is named twice, so one node could have two replicas; name "
                "another node, or set replicas_on_one_node: true"
            ),
        )


def _addresses(path: KeyPath, entry: SingleBroker) -> Iterator[Problem]:
    if entry.advertised_port is not None and entry.replicas > 1:
        yield (
            (*path, "advertised_port"),
            f"{entry.advertised_port} cannot be the port of several replicas; remove this key",
        )
    last_port = entry.listen_port + PORT_STEP * (entry.replicas - 1) + 1
    if entry.listen_port and last_port > MAX_PORT:
        yield (
            (*path, "listen_port"),
            (
                f"the HA port of replica {entry.replicas - 1} would be {last_port}, which is greater than "
                f"{MAX_PORT}; use a lower listen_port, or 0 for free ports"
            ),
        )


def _raft_in_settings(path: KeyPath, topology: Topology, entry: BrokerEntry) -> Iterator[Problem]:
    if isinstance(entry, SingleBroker) and entry.is_replicated:
        return
    for place, settings in _places(path, topology, entry):
        if kind_of(settings).votes:
            yield (
                (*place, "replication"),
                (
                    "raft is not possible for a single broker or elastic brokers; use an entry of brokers "
                    "with the keys replication: raft and replicas: 3"
                ),
            )


def _places(
    path: KeyPath, topology: Topology, entry: BrokerEntry
) -> Sequence[tuple[KeyPath, dict[str, Any]]]:
    """Return the settings of an entry with their key paths."""
    return (("broker_settings",), topology.broker_settings), ((*path, "settings"), entry.settings)


def _misplaced(path: KeyPath, topology: Topology, entry: SingleBroker) -> Iterator[Problem]:
    for place, settings in _places(path, topology, entry):
        for key, where in KEYS_OF_SETTINGS.items():
            if key in settings:
                text = where or f"brokers[].{key}"
                yield (*place, key), f"{entry.name} has replicas: set this with the topology's key: {text}"
