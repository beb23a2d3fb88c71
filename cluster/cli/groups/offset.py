"""`raymq offset`: shows and changes the offsets of consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import Failed, Output, confirmed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, DryRun, Group, Nameserver, Topic, Yes, examples
from cluster.counted import counted
from cluster.views import offsets
from cluster.views.times import date_of_position

if TYPE_CHECKING:
    from cluster.client import Admin, MessageQueue

app = typer.Typer(no_args_is_help=True, help="Offsets of consumer groups: show, reset, skip, clone.")

PROGRESS_COLUMNS = ("topic", "broker", "queue", "committed", "end", "lag")
_COLUMNS = ("topic", "broker", "queue", "before", "after")


@app.command(epilog=examples("raymq offset show billing", "raymq offset show billing orders --json"))
def show(
    group: Group,
    topic: Annotated[str | None, typer.Argument(help="Only this topic.", show_default=False)] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show a group's committed offset and lag per queue."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = offsets.progress(admin, group, topic)
        rows = [{name: getattr(queue, name) for name in PROGRESS_COLUMNS} for queue in found]
        if not rows and group not in admin.groups():
            raise Failed(f"no group {group!r}; `raymq group list` shows all groups")
        out.table(f"offsets of {group}", PROGRESS_COLUMNS, rows)


@app.command(
    epilog=examples(
        "raymq offset reset billing orders --to earliest --dry-run",
        "raymq offset reset billing orders --to -15m --yes",
        "raymq offset reset billing orders --queue broker-a:0 --offset 4711",
    )
)
def reset(
    group: Group,
    topic: Topic,
    to: Annotated[
        str | None,
        typer.Option(help="earliest, latest, a time (2026-11-21T09:30:00 or ms since the epoch) or -15m."),
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="BROKER:QUEUE", help="Only this queue.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Offset; requires --queue.")] = None,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Reset the offsets of a group; online members continue from there with their next pull."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        targets = offsets.targets(admin, topic, to, queue, offset)
        date = date_of_position(to)
        _move(admin, out, group, targets, "reset", dry_run=dry_run, yes=yes, date=date)


@app.command(epilog=examples("raymq offset skip billing orders --dry-run"))
def skip(
    group: Group,
    topic: Topic,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Skip all messages that a group has not consumed yet."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        _move(admin, out, group, offsets.offsets_at(admin, topic, "latest"), "skip", dry_run=dry_run, yes=yes)


@app.command(epilog=examples("raymq offset clone billing billing-2", "raymq offset clone a b -t orders"))
def clone(
    source: Annotated[str, typer.Argument(help="Group to copy offsets from.", show_default=False)],
    target: Annotated[str, typer.Argument(help="Group to copy offsets to.", show_default=False)],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of one group to another."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [asdict(change) for change in offsets.preview_clone(admin, source, target, topic)]
        if not dry_run:
            confirmed(f"Copy the offsets of {source} to {target} in {counted(len(rows), 'queue')}?", yes=yes)
            admin.clone_offsets(source, target, topic)
        out.table(f"{'would clone' if dry_run else 'cloned'} {source} to {target}", _COLUMNS, rows)


def _move(
    admin: Admin,
    out: Output,
    group: str,
    targets: dict[MessageQueue, int],
    verb: str,
    *,
    dry_run: bool,
    yes: bool,
    date: str | None = None,
) -> None:
    if group not in admin.groups():
        raise Failed(f"no group {group!r}; `raymq group list` shows all groups")
    topic = next(iter(targets)).topic
    rows = [asdict(change) for change in offsets.preview(admin, group, targets)]
    to = "" if date is None else f" to {date}"
    if date is not None:
        rows = [{**row, "time": date} for row in rows]
    if not dry_run:
        confirmed(f"{verb.capitalize()} {group} in {counted(len(rows), 'queue')} of {topic}{to}?", yes=yes)
        for queue, target in targets.items():
            admin.reset_offset(group, queue, target)
    out.table(f"{'would ' if dry_run else ''}{verb} {group}{to}", _COLUMNS, rows)
