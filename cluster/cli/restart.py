"""`raymq restart`."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.help import examples

EPILOG = examples(
    "raymq restart broker-a",
    "raymq restart --rolling",
    "raymq restart --rolling --dry-run",
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
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology", "-t", help="A topology file; without it configs/local.yaml.", show_default=False
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Put a value over the file's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")] = False,
) -> None:
    """Restart actors, each only when the one before serves again and clients can find it.

    Producers and consumers go on: they retry elsewhere, or wait the seconds that a broker is away.
    """
    from rich.console import Console

    from cluster.launch import reported, restart
    from cluster.report import ConsoleReport

    console = Console()

    def work() -> int:
        report = ConsoleReport(console)
        restart(topology, overrides or [], names or [], rolling=rolling, report=report, dry_run=dry_run)
        return 0

    raise typer.Exit(reported(work, Console(stderr=True)))
