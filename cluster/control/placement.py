"""Placement: binds each actor to a node, by a Ray resource that only this node has.

The node id is not used: a node that rejoins has a new id, and the actor could never be placed again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.control.kinds import AUTOSCALER
from cluster.control.topology.topology import (
    LOOPBACK_HOSTS,
    BrokerReplica,
    ElasticBroker,
    KeyPath,
    Problem,
    Topology,
)
from cluster.counted import counted

UNSPECIFIED_HOSTS = ("0.0.0.0", "::")


class RayNode(Protocol):
    """The attributes of a Ray node that placement needs."""

    @property
    def ip(self) -> str:
        """Return the address under which Ray knows the node."""

    @property
    def resources(self) -> Mapping[str, float]:
        """Return the resources of the node and their amounts."""

    @property
    def is_head(self) -> bool:
        """Return True for the head node of the Ray cluster."""


@dataclass(frozen=True)
class RayAutoscaler:
    """Ray's autoscaler, as far as placement needs it.

    Attributes:
        is_running: True if an autoscaler has reported to this Ray cluster.
        offered: The resources of its node types; None if it has not reported them.
        infeasible: The requested resources that none of its node types has.
        starting: Number of nodes that it is starting.
        failures: Its recent failures to start nodes.
    """

    is_running: bool = False
    offered: Collection[str] | None = None
    infeasible: Collection[str] = ()
    starting: int = 0
    failures: Sequence[str] = ()

    def may_add(self, resource: str) -> bool:
        """Return True if the autoscaler may add a node that has `resource`."""
        return self.is_running and (self.offered is None or resource in self.offered)

    def cannot_add(self) -> str:
        """Return the text that says that no such node can be added; empty without an autoscaler."""
        if self.is_running and self.offered is not None:
            return f", and Ray's autoscaler can only add {', '.join(sorted(self.offered)) or 'none'}"
        return ""


NO_AUTOSCALER = RayAutoscaler()


@dataclass(frozen=True)
class Placement:
    """Result of `place`.

    Attributes:
        resources: Resource that binds each actor, by actor name.
        problems: Reasons why actors cannot run where the topology places them.
        unplaceable: Names of the actors whose resource no running node has. A node that joins may provide it.
    """

    resources: Mapping[str, str]
    problems: Sequence[Problem]
    unplaceable: Sequence[str] = ()


def place(
    topology: Topology, nodes: Sequence[RayNode], autoscaler: RayAutoscaler = NO_AUTOSCALER
) -> Placement:
    """Bind every actor of a topology to one of `nodes`. An actor without a resource runs on the head node.

    An elastic broker may have a resource that no node has yet, if Ray's autoscaler may add a node with it.
    """
    head = next((node for node in nodes if node.is_head), nodes[0])
    resources: dict[str, str] = {}
    resources[AUTOSCALER.name] = f"node:{head.ip}"
    resources |= {
        name: str(given.get("resource") or f"node:{head.ip}") for _, name, given in topology.workers()
    }
    problems: list[Problem] = []
    unplaceable: list[str] = []
    for path, name, entry in topology.listeners():
        resource = entry.resource or f"node:{head.ip}"
        resources[name] = resource
        may_be_added = isinstance(entry, ElasticBroker) and autoscaler.may_add(resource)
        if not may_be_added and not any(node.resources.get(resource, 0) > 0 for node in nodes):
            unplaceable.append(name)
            shown = "; ".join(f"{node.ip} has {', '.join(own_resources(node)) or 'none'}" for node in nodes)
            problems.append(
                (
                    (*path, "resource"),
                    (
                        f"no running node has the resource {resource!r} ({shown}){autoscaler.cannot_add()}; "
                        "start a node with "
                        f"""`ray start --address=… --resources='{{"{resource}": 1}}'`, or use another"""
                    ),
                )
            )
        host = topology.advertised(entry)[0]
        if len(nodes) > 1 and is_loopback(host) and not all(is_loopback(node.ip) for node in nodes):
            problems.append(
                (
                    (*path, "advertised_host"),
                    (
                        f"advertised address {host} is not reachable from other nodes of this Ray cluster "
                        f"({len(nodes)} nodes); set listen_host and advertised_host to an address of its node"
                    ),
                )
            )
        if host in UNSPECIFIED_HOSTS:
            problems.append(
                (
                    (*path, "advertised_host"),
                    f"clients cannot connect to {host}; set advertised_host to an address of its node",
                )
            )
    problems += _shared_nodes(topology, nodes)
    return Placement(resources, problems, unplaceable)


def _shared_nodes(topology: Topology, nodes: Sequence[RayNode]) -> Iterator[Problem]:
    """Yield the replicas of a group that could only run on the node of another one, which may be lost."""
    found: dict[tuple[KeyPath, frozenset[str]], str] = {}
    for path, name, entry in topology.listeners():
        if not isinstance(entry, BrokerReplica) or entry.replicas_on_one_node or not entry.resource:
            continue
        having = frozenset(node.ip for node in nodes if node.resources.get(entry.resource, 0) > 0)
        other = found.setdefault((path, having), name)
        if other != name and len(having) == 1:
            yield (
                (*path, "resources"),
                (
                    f"{other} and {name} would run on the same node {min(having)}, and be lost together; "
                    "name a resource of another node, or set replicas_on_one_node: true"
                ),
            )


def pending_reason(resource: str, nodes: Sequence[RayNode], free: float, autoscaler: RayAutoscaler) -> str:
    """Return why an actor that takes one unit of `resource` waits for a node, else an empty text.

    Args:
        resource: The resource.
        nodes: The live nodes.
        free: Unused amount of the resource on all nodes together.
        autoscaler: State of Ray's autoscaler.
    """
    having = [node for node in nodes if node.resources.get(resource, 0) > 0]
    if free >= 1:
        return ""
    total = sum(node.resources[resource] for node in having)
    taken = f"all {total:g} units of {resource!r} on {counted(len(having), 'node')} are taken"
    found = taken if having else f"no live node has the resource {resource!r}"
    if not autoscaler.is_running:
        more = "no autoscaler of Ray runs; start a node with this resource"
    elif resource in autoscaler.infeasible or not autoscaler.may_add(resource):
        more = "no node type of Ray's autoscaler has it; add a node type"
    elif autoscaler.starting:
        more = f"Ray's autoscaler is starting {counted(autoscaler.starting, 'node')}"
    elif autoscaler.failures:
        more = f"Ray's autoscaler could not start a node ({autoscaler.failures[-1]})"
    else:
        more = "waiting for Ray's autoscaler to start a node"
    return f"pending: {found}; {more}"


def own_resources(node: RayNode) -> list[str]:
    """Return the resources of a node to which a topology may bind actors."""
    general = ("CPU", "GPU", "memory", "object_store_memory", "node:__internal_head__", "java")
    return sorted(
        name for name in node.resources if name not in general and not name.startswith("accelerator_type")
    )


def is_loopback(host: str) -> bool:
    """Return True if `host` is a loopback address, which only this machine can reach."""
    if host in LOOPBACK_HOSTS:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
