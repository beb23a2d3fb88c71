"""`raymq up`."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import exiting_on_launch_errors
from cluster.cli.options import DryRun, Overrides, Topology, examples

EPILOG = examples(
    "raymq up",
    "raymq up configs/local.yaml --dry-run",
    "raymq up --set flush=async --set store_root=DIR",
    "raymq up --broker-conf broker-a.conf --broker-conf broker-b.conf --dry-run",
    "raymq up --broker-conf broker.conf --set brokers.broker-a.settings.adopt_store=true",
)


def command(
    topology: Topology = None,
    overrides: Overrides = None,
    broker_confs: Annotated[
        list[str] | None,
        typer.Option(
            "--broker-conf",
            metavar="FILE",
            help="A broker.conf of RocketMQ: a broker in the place of the topology's. May be given again.",
        ),
    ] = None,
    dry_run: DryRun = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove actors that the topology no longer has.")
    ] = False,
) -> None:
    """Start a cluster, or make the running one be as its topology says.

    Starts Ray where none runs, and leaves it running. Ends when the cluster serves, with `READY` and the
    nameservers' addresses as the last line. Run again it adopts what runs and changes only what differs.
    """
    from rich.console import Console

    from cluster.launch import run_up

    with exiting_on_launch_errors():
        run_up(
            topology,
            overrides or [],
            Console(),
            dry_run=dry_run,
            prune=prune,
            broker_confs=broker_confs or [],
        )
