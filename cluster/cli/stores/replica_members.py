"""`raymq replica add`, `remove` and `replace`: change the members of a running Raft group."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import confirmed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, DryRun, Nameserver, Yes, examples
from cluster.counted import counted

Group = Annotated[
    str, typer.Argument(help="Broker name of the group, for example broker-a.", show_default=False)
]
Replica = Annotated[
    int, typer.Argument(min=0, help="Number of the replica, for example 2.", show_default=False)
]
Address = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Address of the new broker.", show_default=False)
]
ADD = examples(
    "raymq replica add broker-a 10.0.0.4:10911 --dry-run",
    "raymq replica add broker-a 10.0.0.4:10911",
)
REMOVE = examples("raymq replica remove broker-a 2 --dry-run", "raymq replica remove broker-a 2 --yes")
REPLACE = examples(
    "raymq replica replace broker-a 2 10.0.0.4:10911 --dry-run",
    "raymq replica replace broker-a 2 10.0.0.4:10911",
)


def add(
    group: Group,
    address: Address,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Add a broker to a Raft group.

    Start it first: `replication: raft`, the group's names, an unused `replica` number, an empty store, and no
    `raft_members`. It copies the log, and becomes a voter when it has it.
    """
    _change(group, nameserver, address=address, dry_run=dry_run, yes=yes, as_json=as_json)


def remove(
    group: Group,
    replica: Replica,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove a replica from a Raft group. It may be lost or still run; stop it afterwards."""
    _change(group, nameserver, replica=replica, dry_run=dry_run, yes=yes, as_json=as_json)


def replace(
    group: Group,
    replica: Replica,
    address: Address,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replace a replica of a Raft group by a broker with an empty store, started as for `add`.

    The broker may have the number of the replica that it replaces, because its disk is lost, or another one.
    """
    _change(group, nameserver, replica=replica, address=address, dry_run=dry_run, yes=yes, as_json=as_json)


def _change(
    group: str,
    nameserver: str,
    *,
    address: str = "",
    replica: int | None = None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from cluster.views.raft_change import plan_change, run_change
    from cluster.waiting import SYSTEM_WAITING

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        change = plan_change(admin, group, address=address, replica=replica)
        if not out.is_json:
            for each in change.before.members:
                kind = "leader" if each.is_leader else "voter" if each.is_voter else "gets the log"
                out.line(f"{group}: replica {each.replica} at {each.address or 'unknown'}, {kind}")
            if change.add.store_id:
                out.line(f"to be added: replica {change.add.replica} at {change.add.address}")
            if change.remove.store_id:
                out.line(f"to be removed: replica {change.remove.replica} at {change.remove.address}")
            if change.warning:
                out.line(f"warning: {change.warning}")
        if not dry_run:
            confirmed(f"Change the members of {group}?", yes=yes)
            run_change(admin, change, lambda text: None if out.is_json else out.line(text), SYSTEM_WAITING)
        done = f"{group} has {counted(change.voters_after, 'voter')}"
        if change.leaves_a_broker and not dry_run:
            done += f"; stop replica {change.remove.replica} at {change.remove.address}, if it runs"
        out.done("nothing was changed" if dry_run else done, **change.as_json(), dryRun=dry_run)
