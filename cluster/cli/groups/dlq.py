"""The `raymq dlq` commands: list, show, resend and purge dead letters of consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cluster.cli.console import Failed, Output, Refusal, confirmed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, DryRun, Group, Nameserver, Yes, examples
from cluster.cli.topics.message_view import as_page, body_text
from cluster.counted import counted
from cluster.views import dead_letters as views
from cluster.views.dead_letters import DeadLetter
from cluster.views.offsets import parse_queue
from cluster.views.times import parse_time_ms
from store.plausible_time import date_of

if TYPE_CHECKING:
    from cluster.client import Admin

app = typer.Typer(no_args_is_help=True, help="Dead letters of consumer groups: list, show, resend, purge.")

T = TypeVar("T")

_COLUMNS = ("store_ms", "broker", "queue", "offset", "origin", "tags", "keys", "id", "shown")
_SPARED = ("tags", "keys", "id")


class To(StrEnum):
    """Destination of `raymq dlq resend`: the group that failed to consume the messages, or their topic."""

    GROUP = "group"
    TOPIC = "topic"


Limit = Annotated[int, typer.Option("--max", min=1, help="Maximum number of messages of each broker.")]
QueueOf = Annotated[str | None, typer.Option("--queue", metavar="BROKER:QUEUE", help="Queue, as in `list`.")]
OffsetOf = Annotated[int | None, typer.Option("--offset", min=0, help="Offset, as in `list`.")]
Identifier = Annotated[str | None, typer.Option("--id", help="Message id, as in `list`.")]


@app.command(
    "list", epilog=examples("raymq dlq list", "raymq dlq list billing", "raymq dlq list billing --all")
)
def list_letters(
    group: Annotated[str | None, typer.Argument(help="Consumer group.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--max", min=1, help="Maximum number of messages.")] = 100,
    before: Annotated[
        str | None,
        typer.Option(help="Continue with older ones: what the command before has named.", show_default=False),
    ] = None,
    include_handled: Annotated[
        bool, typer.Option("--all", help="Include messages that were resent or purged.")
    ] = False,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """List the newest pending dead letters of GROUP. Without GROUP, list their number for each group."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if group is None:
            counts = [asdict(each) for each in views.dead_letter_counts(admin)]
            out.table("dead letters", ("group", "dead_letters"), counts)
            return
        page = views.dead_letter_page(admin, group, limit, before, include_handled=include_handled)
        _existing(admin, group, page.total)
        if out.is_json:
            out.json([letter.to_json() for letter in page.letters])
        else:
            rows = [letter.to_json() | {"shown": body_text(letter.message)} for letter in page.letters]
            out.table(f"dead letters of {group}", _COLUMNS, rows, _SPARED)
        if page.before is not None:
            out.note(f"{len(page.letters):,} of {page.total:,}; older ones: --before {page.before}")


@app.command(
    epilog=examples(
        "raymq dlq show billing --queue broker-a:0 --offset 12", "raymq dlq show billing --id MESSAGE_ID"
    )
)
def show(
    group: Group,
    queue: QueueOf = None,
    offset: OffsetOf = None,
    identifier: Identifier = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its body, original topic and properties."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if identifier is None and (queue is None or offset is None):
            raise Refusal("no message is selected: give --id, or --queue and --offset")
        for letter in _selected(admin, group, queue, offset, identifier):
            if out.is_json:
                out.json(letter.to_json())
            else:
                out.fields({"origin": letter.origin} | as_page(letter.message))


@app.command(
    epilog=examples(
        "raymq dlq resend billing --dry-run",
        "raymq dlq resend billing --max 10 --yes",
        "raymq dlq resend billing --to topic --queue broker-a:0 --offset 12",
    )
)
def resend(
    group: Group,
    to: Annotated[
        To, typer.Option(help="group: only this group gets the messages; topic: all groups of the topic.")
    ] = To.GROUP,
    queue: QueueOf = None,
    offset: OffsetOf = None,
    identifier: Identifier = None,
    limit: Limit = 1_000,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Resend the oldest pending dead letters, or only the message selected by --id or --queue and --offset.

    Resent messages are no longer pending, except for a selected message that is newer than a pending message
    of its queue: it stays pending until the older messages are resent or purged.
    """

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if identifier is None and queue is None and offset is None:
            found = _letters(admin, group, limit)
        else:
            found = _selected(admin, group, queue, offset, identifier)
        if not dry_run and found:
            confirmed(f"Send {counted(len(found), 'dead letter')} of {group} again?", yes=yes)
            admin.resend_dead_letters(group, [each.message for each in found], to=to.value)
        _report(out, "resend", "resent", group, len(found), dry_run=dry_run)


@app.command(
    epilog=examples("raymq dlq purge billing --dry-run", "raymq dlq purge billing --until -7d --yes")
)
def purge(
    group: Group,
    until: Annotated[str | None, typer.Option(help="Only messages stored before, for example -7d.")] = None,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Mark pending dead letters as handled. `list --all` shows them until their log file is deleted."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        until_ms = None if until is None else parse_time_ms(until)
        before = "" if until_ms is None else f" stored before {date_of(until_ms)}"
        count = _existing(admin, group, admin.purge_dead_letters(group, until_ms, dry_run=True))
        if not dry_run and count:
            confirmed(f"Purge {counted(count, 'dead letter')} of {group}{before}?", yes=yes)
            count = admin.purge_dead_letters(group, until_ms)
        _report(out, "purge", "purged", group, count, dry_run=dry_run, before=before)


def _letters(admin: Admin, group: str, limit: int, *, include_handled: bool = False) -> list[DeadLetter]:
    return _existing(admin, group, views.dead_letters(admin, group, limit, include_handled=include_handled))


def _existing(admin: Admin, group: str, found: T) -> T:
    """Return `found`. Raises Failed if it is empty and the group does not exist."""
    if not found and group not in admin.groups() and group not in admin.dead_letter_counts():
        raise Failed(f"group {group!r} does not exist; `raymq group list` shows all groups")
    return found


def _selected(
    admin: Admin, group: str, queue: str | None, offset: int | None, identifier: str | None
) -> list[DeadLetter]:
    if identifier is not None:
        found = _existing(admin, group, views.dead_letters_with_id(admin, group, identifier))
    elif queue is None or offset is None:
        raise Refusal("--queue and --offset must be given together")
    else:
        found = views.dead_letter_at(admin, parse_queue(queue, f"%DLQ%{group}"), offset)
    if not found:
        raise Failed(
            f"group {group!r} has no such dead letter; `raymq dlq list {group}` shows the pending ones"
        )
    return found


def _report(
    out: Output, verb: str, done: str, group: str, count: int, *, dry_run: bool, before: str = ""
) -> None:
    what = f"{f'would {verb}' if dry_run else done} {counted(count, 'dead letter')} of {group}{before}"
    out.done(what, group=group, messages=count, dry_run=dry_run)
