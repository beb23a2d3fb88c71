"""Which node each actor is bound to, by a resource that only this node has.

Not by the node's id: a node that comes back has a new one, and the actor could be placed nowhere for ever.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.topology.topology import LOOPBACK_HOSTS, Problem, Topology

UNSPECIFIED_HOSTS = ("0.0.0.0", "::")


class Node(Protocol):
    """What placement needs to know of a node."""

    @property
    def ip(self) -> str:
        """The address under which Ray knows the node."""
        ...

    @property
    def resources(self) -> Mapping[str, float]:
        """Its resources and how much there is of each."""
        ...

    @property
    def is_head(self) -> bool:
        """Whether this is Ray's head node."""
        ...


@dataclass(frozen=True)
class Placement:
    """By actor's name: the resource that binds it; and what cannot be placed."""

    resources: Mapping[str, str]
    problems: Sequence[Problem]
    unplaceable: Sequence[str] = ()
    """The actors whose resource no living node has: a node that joins could cure it."""


def place(topology: Topology, nodes: Sequence[Node]) -> Placement:
    """Bind every actor of a topology to a node."""
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
                        f"no living node has the resource {resource!r} ({shown}); start a node with "
                        f"""`ray start --address=… --resources='{{"{resource}": 1}}'`, or name another"""
                    ),
                )
            )
        host = topology.advertised(entry)[0]
        if len(nodes) > 1 and is_loopback(host):
            problems.append(
                (
                    (*path, "advertised_host"),
                    (
                        f"{host} is advertised, which other nodes of this Ray cluster (it has {len(nodes)}) "
                        "cannot dial; set listen_host and advertised_host to an address of its node"
                    ),
                )
            )
        if host in UNSPECIFIED_HOSTS:
            problems.append(
                (
                    (*path, "advertised_host"),
                    f"{host} cannot be dialed; set advertised_host to an address of its node",
                )
            )
    return Placement(resources, problems, unplaceable)


def own_resources(node: Node) -> list[str]:
    """The resources by which a topology could bind to a node."""
    general = ("CPU", "GPU", "memory", "object_store_memory", "node:__internal_head__", "java")
    return sorted(
        name for name in node.resources if name not in general and not name.startswith("accelerator_type")
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can dial the host."""
    if host in LOOPBACK_HOSTS:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
