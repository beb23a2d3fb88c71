"""`raymq migrate`: makes a running broker a Raft group, or a Raft group a single broker."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import confirmed, exiting_on_errors, exiting_on_launch_errors, reporting
from cluster.cli.options import DryRun, Overrides, TopologyOption, Yes, examples

EPILOG = examples(
    "raymq migrate broker-a --dry-run",
    "raymq migrate broker-a",
)


def command(
    broker: Annotated[
        str,
        typer.Argument(help="Name of the broker in the topology, for example broker-a.", show_default=False),
    ],
    topology: TopologyOption = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a broker what the edited topology says: a Raft group, or a single broker again.

    The broker keeps its log, topics, groups and offsets. It is restarted once: the command says what is not
    available meanwhile, and asks. If the new group does not start, the old broker is started again; what is
    interrupted after that is continued by the same command. Slaves are replaced by empty replicas, and their
    stores set aside; replicas that leave a group keep their stores.
    """
    from cluster.client import Admin
    from cluster.launch import migrate
    from cluster.views.raft_migration import MemberSteps

    with exiting_on_errors(), exiting_on_launch_errors(), reporting(dry_run=dry_run) as report:
        migrate(
            topology,
            overrides or [],
            broker,
            MemberSteps(Admin, report.line),
            confirm=lambda: confirmed(f"Migrate {broker}?", yes=yes),
            report=report,
            dry_run=dry_run,
        )
