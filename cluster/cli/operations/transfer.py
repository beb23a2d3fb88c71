"""`raymq transfer`: moves the leadership of a Raft group to another replica."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import confirmed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, Broker, DryRun, Nameserver, Yes, examples

EPILOG = examples(
    "raymq transfer broker-a --to 2 --dry-run",
    "raymq transfer broker-a --to 2",
)


def command(
    broker: Broker,
    to: Annotated[int, typer.Option(min=0, help="Number of the replica that becomes the leader.")],
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make another replica the leader of a Raft group, without a failed send.

    The former leader forwards requests to the new one for 30 s (its setting route_refresh_ms), until all
    clients have refreshed their routes: wait for this time before you stop it.
    """

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        before = admin.transfer_leadership(broker, to, dry_run=True)
        if dry_run:
            out.done(
                f"{broker} would be led by replica {to} instead of {before}",
                broker=broker, replica=to, leader=before, dry_run=True,
            )  # fmt: skip
            return
        confirmed(f"Transfer the leadership of {broker} from {before} to replica {to}?", yes=yes)
        leader = admin.transfer_leadership(broker, to)
        out.done(
            f"{broker} is led by replica {to}, {leader}",
            broker=broker, replica=to, leader=leader, dry_run=False,
        )  # fmt: skip
