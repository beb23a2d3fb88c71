"""`raymq down`."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.help import examples

EPILOG = examples("raymq down", "raymq down configs/local.yaml")


def command(
    topology: Annotated[
        str | None, typer.Argument(help="A topology file; without it configs/local.yaml.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Put a value over the file's.")
    ] = None,
) -> None:
    """Stop a cluster's actors in order; their stores stay. Ends Ray too, if `raymq up` started it."""
    from rich.console import Console

    from cluster.launch import down, reported
    from cluster.report import ConsoleReport
    from cluster.topology_file import load_topology

    console = Console()

    def work() -> int:
        down(load_topology(topology, overrides or []), ConsoleReport(console))
        return 0

    raise typer.Exit(reported(work, Console(stderr=True)))
