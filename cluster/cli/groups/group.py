"""`raymq group`: lists, creates and deletes consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from cluster.cli.console import Failed, confirmed, open_admin, parse_pairs
from cluster.cli.groups.offset import PROGRESS_COLUMNS
from cluster.cli.groups.offset import reset as reset_offsets
from cluster.cli.options import NAMESERVER, AsJson, Attributes, DryRun, Group, Nameserver, Yes, examples
from cluster.views import clients, groups

app = typer.Typer(no_args_is_help=True, help="Consumer groups: list, describe with lag, create, delete.")

_MEMBER_COLUMNS = ("client_id", "address", "language", "version")


@app.command("list", epilog=examples("raymq group list", "raymq group list --system --json"))
def list_groups(
    nameserver: Nameserver = NAMESERVER,
    system: Annotated[bool, typer.Option("--system", help="Include groups of RocketMQ's tools.")] = False,
    match: Annotated[str, typer.Option(help="Only groups with this text in their or a topic's name.")] = "",
    as_json: AsJson = False,
) -> None:
    """List consumer groups with their topics and lag."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = groups.list_groups(admin, include_system=system)
        rows = [asdict(each) for each in found if match.casefold() in each.text.casefold()]
        out.table("consumer groups", ("group", "topics", "lag", "in_flight", "tps"), rows)


@app.command(epilog=examples("raymq group describe billing", "raymq group describe billing -t orders --json"))
def describe(
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show a group's lag per queue, members, subscriptions and settings."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = groups.describe_group(admin, group, topic)
        if found is None:
            raise Failed(f"no group {group!r}; `raymq group list` shows all groups")
        facts = asdict(found)
        if out.is_json:
            out.json(facts)
            return
        columns = (*PROGRESS_COLUMNS, "in_flight", "last_ms")
        out.table(f"group {group}", columns, facts["queues"])
        if not found.members:
            out.line("no member is online")
        else:
            out.table("members", _MEMBER_COLUMNS, facts["members"])
            for name, expression in found.subscriptions.items():
                out.line(f"subscribes to {name}: {expression}")
        lag = "unknown" if found.lag is None else f"{found.lag:,}"
        out.line(f"lag: {lag}; consume TPS of the last minute: {found.tps:,.1f}")
        waiting = f"retries that wait in the retry topic: {found.retries:,}"
        out.line(f"{waiting}; dead letters: {found.dead_letters:,}")


@app.command(
    epilog=examples(
        "raymq group create billing --max-retries 3",
        "raymq group create agents --attribute lite.bind.topic=chats",
    )
)
def create(
    group: Group,
    max_retries: Annotated[
        int | None,
        typer.Option(
            min=-1, max=2**31 - 1, help="Retries before a message is a dead letter (new group: 16)."
        ),
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--no-enabled", help="Allow the group to consume.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Allow broadcasting."),
    ] = None,
    attributes: Attributes = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a group, or change an existing one; options that are not given keep their value."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        from msgspec.structs import replace

        from store.message.group_config import SubscriptionGroupConfig

        before = admin.groups().get(group) or SubscriptionGroupConfig(group)
        given: dict[str, Any] = {
            "attributes": before.attributes | parse_pairs(attributes or [], "--attribute"),
            "retry_max_times": max_retries,
            "consume_enable": enabled,
            "consume_broadcast_enable": broadcast,
        }
        after = replace(before, **{name: value for name, value in given.items() if value is not None})
        admin.put_group(after)
        what = f"{group}: {'enabled' if after.consume_enable else 'disabled'}"
        out.done(what, group=group, settings=after.to_json())


@app.command(epilog=examples("raymq group delete billing --dry-run", "raymq group delete billing --yes"))
def delete(
    group: Group,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep the committed offsets.")] = False,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a group and its committed offsets; fails if the group has members online."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if group not in admin.groups():
            raise Failed(f"no group {group!r}; `raymq group list` shows all groups")
        members = [member.client_id for member in groups.members_of(admin, group)]
        if members:
            raise Failed(f"group {group!r} has members online; stop them first: {', '.join(members)}")
        topics = admin.topics_of_group(group)
        what = f"group {group}" + (f" with its offsets in {', '.join(topics)}" if topics else "")
        facts: dict[str, Any] = {"group": group, "topics": topics, "dry_run": dry_run}
        if dry_run:
            out.done(f"would delete {what}", **facts)
            return
        confirmed(f"Delete {what}?", yes=yes)
        admin.delete_group(group, offsets=not keep_offsets)
        out.done(f"deleted {what}", **facts)


@app.command(epilog=examples("raymq group members billing", "raymq group members billing --json"))
def members(group: Group, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """List the online members of a group."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [asdict(each) for each in groups.members_of(admin, group)]
        out.table(f"members of {group}", _MEMBER_COLUMNS, rows)


@app.command(epilog=examples("raymq group owners billing", "raymq group owners billing --json"))
def owners(group: Group, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show which member holds each queue of a group, and the generation of its last assignment."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [asdict(each) for each in clients.queue_owners(admin, group)]
        if not rows and group not in admin.groups():
            raise Failed(f"no group {group!r}; `raymq group list` shows all groups")
        out.table(f"owners of {group}", ("topic", "broker", "queue", "owner", "generation"), rows)


@app.command(
    epilog=examples("raymq group member billing CLIENT_ID", "raymq group member billing CLIENT_ID --json")
)
def member(
    group: Group,
    client_id: Annotated[str, typer.Argument(help="Client id, as `members` shows it.", show_default=False)],
    stack: Annotated[bool, typer.Option("--stack", help="Show the stacks of its threads too.")] = False,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show the running info of a member: its queues, cached messages and subscriptions."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if out.is_json:
            out.json(clients.member_info(admin, group, client_id, stack=stack))
            return
        found = clients.member_state(admin, group, client_id, stack=stack)
        columns = ("topic", "brokerName", "queueId", "commitOffset", "cachedMsgCount", "droped")
        out.table(f"queues of {client_id}", columns, found.queues)
        out.fields(found.properties)
        for line in (found.stack or "").splitlines():
            out.line(line)


app.command(
    "reset",
    epilog=examples(
        "raymq group reset billing orders --to earliest --dry-run",
        "raymq group reset billing orders --to 2026-11-21T09:30:00",
    ),
)(reset_offsets)
