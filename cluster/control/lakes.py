"""Specs of the lakes of a topology: the processes that copy topics into Iceberg tables (`jobs.lake`)."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.control.metrics_ports import moved_metrics_ports
from cluster.control.specs import ActorSpec, Deployment, ProcessKind, address, checked, lake_group
from cluster.control.topology.topology import show


def lake_specs(kind: ProcessKind, deployment: Deployment) -> Iterator[ActorSpec]:
    """Yield the specs of the lakes. Raises TopologyError if a setting is invalid."""
    topology, home, resources, source = deployment
    moved = moved_metrics_ports(topology)
    for path, name, given in topology.workers():
        try:
            model = kind.model
        except ImportError as error:
            raise source.error([(path, str(error))]) from None
        placed = {
            "nameservers": [address(topology, each) for each in topology.nameservers],
            "cluster_name": topology.cluster,
            "data_dir": str(home / name),
            "home": str(home),
            "group": lake_group(name),
        }
        own = {key: value for key, value in given.items() if key != "resource"}
        settings = placed | checked(model, own, path, source, placed)
        if name in moved:
            settings["metrics_port"] = moved[name]
        none = ("", 0)
        yield ActorSpec(
            kind, name, topology.cluster, settings, none, none, resources.get(name, ""),
            place=f"{source.place(path)}: {show(path)}",
        )  # fmt: skip
