"""`raymq up`: starts or updates a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import exiting_on_launch_errors, reporting
from cluster.cli.options import DryRun, Overrides, Topology, TopologyOption, examples, topology_file

EPILOG = examples(
    "raymq up",
    "raymq up configs/local.yaml --dry-run",
    "raymq up --set flush=async --set store_root=DIR",
    "raymq up --broker-conf broker-a.conf --broker-conf broker-b.conf --dry-run",
    "raymq up --join broker-a-1",
    "raymq up --broker-conf broker.conf --set brokers.broker-a.settings.adopt_store=true",
)


def command(
    topology: Topology = None,
    option: TopologyOption = None,
    overrides: Overrides = None,
    broker_confs: Annotated[
        list[str] | None,
        typer.Option(
            "--broker-conf",
            metavar="FILE",
            help="RocketMQ's broker.conf; replaces the topology's brokers. Repeat for several brokers.",
        ),
    ] = None,
    joining: Annotated[
        list[str] | None,
        typer.Option(
            "--join",
            metavar="REPLICA",
            help="Start this replica of a Raft group with an empty store, because its disk is lost; then "
            "`raymq replica replace` makes it a member.",
        ),
    ] = None,
    dry_run: DryRun = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove actors that are no longer in the topology.")
    ] = False,
) -> None:
    """Start a cluster, or update the running one to match its topology.

    Starts Ray if none is running and leaves it running. Returns when all actors are serving; the last line is
    `READY` with the nameservers' addresses. Run it again after an edit: only what differs is changed.
    """
    from rich.console import Console

    from cluster.launch import run_up

    file = topology_file(topology, option)
    with exiting_on_launch_errors(), reporting(dry_run=dry_run) as report:
        run_up(
            file,
            overrides or [],
            Console(),
            dry_run=dry_run,
            prune=prune,
            broker_confs=broker_confs or [],
            joining=joining or [],
            report=report,
        )
