"""Placement: binds each actor to a node, by a Ray resource that only this node has.

The node id is not used: a node that rejoins has a new id, and the actor could never be placed again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.topology.topology import LOOPBACK_HOSTS, Problem, Topology

UNSPECIFIED_HOSTS = ("0.0.0.0", "::")


class Node(Protocol):
    """The attributes of a Ray node that placement needs."""

    @property
    def ip(self) -> str:
        """Return the address under which Ray knows the node."""
        ...

    @property
    def resources(self) -> Mapping[str, float]:
        """Return the resources of the node and their amounts."""
        ...

    @property
    def is_head(self) -> bool:
        """Return True for the head node of the Ray cluster."""
        ...


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


def place(topology: Topology, nodes: Sequence[Node]) -> Placement:
    """Bind every actor of a topology to one of `nodes`. An actor without a resource runs on the head node."""
    head = next((node for node in nodes if node.is_head), nodes[0])
    resources: dict[str, str] = {}
    problems: list[Problem] = []
    unplaceable: list[str] = []
    for path, name, entry in topology.listeners():
        resource = entry.resource or f"node:{head.ip}"
        resources[name] = resource
        if not any(node.resources.get(resource, 0) > 0 for node in nodes):
            unplaceable.append(name)
            shown = "; ".join(f"{node.ip} has {', '.join(own_resources(node)) or 'none'}" for node in nodes)
            problems.append(
                (
                    (*path, "resource"),
                    (
                        f"no running node has the resource {resource!r} ({shown}); start a node with "
                        f"""`ray start --address=… --resources='{{"{resource}": 1}}'`, or use another"""
                    ),
                )
            )
        host = topology.advertised(entry)[0]
        if len(nodes) > 1 and is_loopback(host):
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
    return Placement(resources, problems, unplaceable)


def own_resources(node: Node) -> list[str]:
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
