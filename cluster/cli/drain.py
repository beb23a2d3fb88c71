"""`raymq drain`."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.help import examples

EPILOG = examples(
    "raymq drain broker-a --dry-run",
    "raymq drain broker-a --timeout 600",
)


def command(
    broker: Annotated[str, typer.Argument(help="The broker: broker-a.")],
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Give up after this time.")
    ] = 300.0,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology", "-t", help="A topology file; without it configs/local.yaml.", show_default=False
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Put a value over the file's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be waited for.")] = False,
) -> None:
    """Take a broker down when nobody needs it any more: writes off in the routes, groups finish, then down.

    Its store stays; `raymq up` starts it again. When the time is over, or on Ctrl-C, it is written again and
    nothing was taken down.
    """
    from rich.console import Console

    from cluster.launch import drain, reported
    from cluster.report import ConsoleReport
    from cluster.topology_file import load_topology

    console = Console()

    def work() -> int:
        given = load_topology(topology, overrides or [])
        drain(given, broker, timeout_s=timeout_s, report=ConsoleReport(console), dry_run=dry_run)
        return 0

    raise typer.Exit(reported(work, Console(stderr=True)))
