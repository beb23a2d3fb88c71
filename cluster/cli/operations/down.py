"""`raymq down`: stops a cluster."""

from __future__ import annotations

from cluster.cli.console import exiting_on_launch_errors
from cluster.cli.options import Overrides, Topology, TopologyOption, examples, topology_file

EPILOG = examples("raymq down", "raymq down configs/local.yaml")


def command(
    topology: Topology = None,
    option: TopologyOption = None,
    overrides: Overrides = None,
) -> None:
    """Stop the cluster; stores are kept. Also stops Ray if `raymq up` started it."""
    file = topology_file(topology, option)
    from rich.console import Console

    from cluster.control.launch_report import ConsoleReport
    from cluster.control.topology.topology_file import load_topology
    from cluster.launch import down

    with exiting_on_launch_errors():
        down(load_topology(file, overrides or []), ConsoleReport(Console()))
