"""`raymq restart`: restarts actors one at a time."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import exiting_on_launch_errors, reporting
from cluster.cli.options import DryRun, Overrides, TopologyOption, examples

EPILOG = examples(
    "raymq restart broker-a",
    "raymq restart --rolling",
    "raymq restart --rolling --dry-run",
    "raymq restart nameserver-0 rebalancer-0 --no-wait",
)


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ACTOR]", help="Actors to restart: broker-a, nameserver-0 …", show_default=False
        ),
    ] = None,
    rolling: Annotated[bool, typer.Option("--rolling", help="Restart all actors, one at a time.")] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Between brokers, wait for one route refresh of the clients (the topology's "
            "route_refresh_ms, 30 s by default), so that they know the restarted broker.",
        ),
    ] = True,
    topology: TopologyOption = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
) -> None:
    """Restart actors one at a time; the next one is stopped when clients can reach the previous one again.

    Producers and consumers keep running: they retry on other brokers or wait a few seconds. Restarts by other
    commands count too. After Ctrl-C the actor that is being restarted still starts again.
    """
    from cluster.launch import restart

    with exiting_on_launch_errors(), reporting(dry_run=dry_run) as report:
        restart(
            topology,
            overrides or [],
            names or [],
            rolling=rolling,
            waits=wait,
            report=report,
            dry_run=dry_run,
        )
