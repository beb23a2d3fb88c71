"""`raymq down`."""

from __future__ import annotations

from cluster.cli.console import finish_reported
from cluster.cli.help import examples
from cluster.cli.options import Overrides, Topology

EPILOG = examples("raymq down", "raymq down configs/local.yaml")


def command(
    topology: Topology = None,
    overrides: Overrides = None,
) -> None:
    """Stop a cluster's actors in order; their stores stay. Ends Ray too, if `raymq up` started it."""
    from rich.console import Console

    from cluster.launch import down
    from cluster.launch_report import ConsoleReport
    from cluster.topology.topology_file import load_topology

    console = Console()

    def work() -> int:
        down(load_topology(topology, overrides or []), ConsoleReport(console))
        return 0

    finish_reported(work)
