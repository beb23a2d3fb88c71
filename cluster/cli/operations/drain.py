"""`raymq drain`: drains a broker and stops it."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import exiting_on_launch_errors, reporting
from cluster.cli.options import Broker, DryRun, Overrides, TopologyOption, examples

EPILOG = examples(
    "raymq drain broker-a --dry-run",
    "raymq drain broker-a --timeout 600",
)


def command(
    broker: Broker,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, max=1e6, metavar="SECONDS", help="Give up after this time.")
    ] = 300.0,
    topology: TopologyOption = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
) -> None:
    """Drain a broker, then stop it: disable writes, wait until all groups have consumed its messages, stop.

    A slave is stopped at once. The store is kept; `raymq up` starts the broker again. On a timeout or Ctrl-C
    the broker keeps running and writes are enabled again.
    """
    from cluster.control.topology.topology_file import load_topology
    from cluster.launch import drain

    with exiting_on_launch_errors(), reporting(dry_run=dry_run) as report:
        given = load_topology(topology, overrides or [])
        drain(given, broker, timeout_s=timeout_s, report=report, dry_run=dry_run)
