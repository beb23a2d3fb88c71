"""`raymq restart`."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import exiting_on_launch_errors
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
            metavar="[ACTOR]", help="What to restart: broker-a, nameserver-0 …", show_default=False
        ),
    ] = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="All of the cluster, one after the other.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Wait until clients know that the broker before is back: they look every 30 s, unless the "
            "topology's route_refresh_ms says otherwise.",
        ),
    ] = True,
    topology: TopologyOption = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
) -> None:
    """Restart actors, each only when the one before serves again and clients can find it.

    Producers and consumers go on: they retry elsewhere, or wait the seconds that a broker is away. A broker
    that was restarted by another run counts too. Ctrl-C lets the actor that is being restarted come back.
    """
    from rich.console import Console

    from cluster.launch import restart
    from cluster.launch_report import ConsoleReport

    with exiting_on_launch_errors():
        restart(
            topology,
            overrides or [],
            names or [],
            rolling=rolling,
            waits=wait,
            report=ConsoleReport(Console()),
            dry_run=dry_run,
        )
