"""`raymq promote`: makes a slave the master of its broker group."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import confirmed, exiting_on_launch_errors, reporting
from cluster.cli.options import DryRun, Overrides, TopologyOption, Yes, examples

EPILOG = examples(
    "raymq promote broker-a-1 --dry-run",
    "raymq promote broker-a-1",
)


def command(
    replica: Annotated[
        str, typer.Argument(help="Replica to promote, for example broker-a-1.", show_default=False)
    ],
    topology: TopologyOption = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a slave the master of its broker group, after it has said what may be lost.

    A master that still serves is stopped first. It becomes a slave, if its node is there and its log has no
    messages that the new master lacks; `raymq up` starts it later otherwise. The promotion is recorded in the
    cluster's home directory.
    """
    from cluster.launch import promote

    with exiting_on_launch_errors(), reporting(dry_run=dry_run) as report:
        promote(
            topology,
            overrides or [],
            replica,
            confirm=lambda: confirmed(f"Promote {replica}?", yes=yes),
            report=report,
            dry_run=dry_run,
        )
