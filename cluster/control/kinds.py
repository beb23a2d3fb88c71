"""The kinds of process of a cluster. A new kind is a row of this table, and a key of the topology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from cluster.control.health import accepts_connections, has_registered_brokers, responds
from cluster.control.lakes import lake_specs
from cluster.control.specs import ActorSpec, Deployment, ProcessKind, autoscaler_specs, listener_specs
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source
from store.common.live_settings import live_names

NAMESERVER = ProcessKind(
    name="nameserver",
    key="nameservers",
    actor="actors.nameserver.actor:Nameserver",
    settings="actors.nameserver.nameserver_settings:NameserverSettings",
    order=1,
    specs=listener_specs,
    probe=has_registered_brokers,
)
REBALANCER = ProcessKind(
    name="rebalancer",
    key="rebalancers",
    actor="actors.rebalancer.actor:Rebalancer",
    settings="actors.rebalancer.rebalancer_settings:RebalancerSettings",
    order=2,
    specs=listener_specs,
    probe=accepts_connections,
)
BROKER = ProcessKind(
    name="broker",
    key="brokers",
    actor="actors.broker.actor:Broker",
    settings="actors.broker.broker_settings:BrokerSettings",
    order=3,
    specs=listener_specs,
    probe=responds,
)
AUTOSCALER = ProcessKind(
    name="autoscaler",
    key="autoscale",
    actor="cluster.autoscale.actor:Autoscaler",
    settings="cluster.autoscale.autoscaler_settings:AutoscalerSettings",
    order=5,
    specs=autoscaler_specs,
    probe=None,
)
GATEWAY = ProcessKind(
    name="gateway",
    key="gateways",
    actor="actors.gateway.actor:Gateway",
    settings="actors.gateway.gateway_settings:GatewaySettings",
    order=4,
    specs=listener_specs,
    probe=accepts_connections,
)
CONSOLE = ProcessKind(
    name="console",
    key="consoles",
    actor="cluster.console.actor:Console",
    settings="cluster.console.console_settings:ConsoleSettings",
    order=6,
    specs=listener_specs,
    probe=accepts_connections,
)
LAKE = ProcessKind(
    name="lake",
    key="lakes",
    actor="jobs.lake_service.actor:Lake",
    settings="jobs.lake_service.process_settings:LakeProcessSettings",
    order=7,
    specs=lake_specs,
    probe=None,
)
KINDS = {kind.name: kind for kind in (NAMESERVER, REBALANCER, BROKER, GATEWAY, AUTOSCALER, CONSOLE, LAKE)}
"""All kinds by name."""


def make_specs(
    topology: Topology, home: Path, resources: Mapping[str, str], source: Source
) -> list[ActorSpec]:
    """Return the specs of all actors of a topology, in the order of creation.

    Args:
        topology: The topology.
        home: Directory of the cluster, for relative paths.
        resources: Resource that binds each actor to its node, by actor name.
        source: File and overrides of the topology, for error messages.

    Raises TopologyError if a setting is invalid.
    """
    deployment = Deployment(topology, home, resources, source)
    kinds = sorted(KINDS.values(), key=lambda kind: kind.order)
    return [spec for kind in kinds for spec in kind.specs(kind, deployment)]


def is_live_setting(kind: ProcessKind, key: str) -> bool:
    """Return True if a setting can be changed without a restart. `key` is dotted, such as `store.flush`."""
    model = kind.model
    *parents, name = key.split(".")
    for parent in parents:
        field = model.model_fields.get(parent)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return False
        model = inner
    return name in live_names(model)
