"""`raymq group`: lists, creates and deletes consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import Failed, confirmed, open_admin
from cluster.cli.groups.offset import PROGRESS_COLUMNS, progress_rows
from cluster.cli.groups.offset import reset as reset_offsets
from cluster.cli.options import NAMESERVER, AsJson, DryRun, Group, Nameserver, Yes, examples

if TYPE_CHECKING:
    from actors.remoting.bodies.connected import ConsumerConnection

app = typer.Typer(no_args_is_help=True, help="Consumer groups: list, describe with lag, create, delete.")


@app.command("list", epilog=examples("raymq group list", "raymq group list --system --json"))
def list_groups(
    nameserver: Nameserver = NAMESERVER,
    system: Annotated[bool, typer.Option("--system", help="Include groups of RocketMQ's tools.")] = False,
    as_json: AsJson = False,
) -> None:
    """List consumer groups with their topics and lag."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        progress = admin.all_group_stats()
        rows = []
        for name in admin.groups():
            stats = progress.get(name)
            if not system and is_system(name):
                continue
            rows.append(
                {
                    "group": name,
                    "topics": sorted({queue.topic for queue in stats.offsets}) if stats else [],
                    "lag": stats.lag if stats else 0,
                    "in_flight": stats.in_flight if stats else 0,
                    "tps": stats.consume_tps if stats else 0.0,
                }
            )
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
        config = admin.groups().get(group)
        if config is None:
            raise Failed(f"no group {group!r}; `raymq group list` shows all groups")
        stats, online = admin.group_stats(group, topic), admin.group_connection(group)
        retries = admin.group_stats(group, f"%RETRY%{group}").lag
        dead_letters = admin.dead_letter_count(group)
        rows = [
            row | {"in_flight": offset.in_flight, "last_ms": offset.last_timestamp or None}
            for row, offset in zip(progress_rows(stats), stats.offsets.values(), strict=True)
        ]
        members = _members(online)
        if out.is_json:
            facts: dict[str, Any] = {
                "group": group,
                "lag": stats.lag,
                "tps": stats.consume_tps,
                "retries": retries,
                "dead_letters": dead_letters,
                "queues": rows,
                "members": members,
                "subscriptions": _subscriptions(online),
                "settings": config.to_json(),
            }
            out.json(facts)
            return
        columns = (*PROGRESS_COLUMNS, "in_flight", "last_ms")
        out.table(f"group {group}", columns, rows)
        if online is None:
            out.line("no member is online")
        else:
            out.table("members", ("client_id", "address", "language", "version"), members)
            for name, expression in _subscriptions(online).items():
                out.line(f"subscribes to {name}: {expression}")
        out.line(f"lag: {stats.lag:,}; consume TPS of the last minute: {stats.consume_tps:,.1f}")
        out.line(f"retries that wait in the retry topic: {retries:,}; dead letters: {dead_letters:,}")


@app.command(epilog=examples("raymq group create billing", "raymq group create billing --max-retries 3"))
def create(
    group: Group,
    max_retries: Annotated[
        int | None,
        typer.Option(min=-1, help="Retries before a message is a dead letter (new group: 16)."),
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--no-enabled", help="Allow the group to consume.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Allow broadcasting."),
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a group, or change an existing one; options that are not given keep their value."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        from msgspec.structs import replace

        from store.metadata import SubscriptionGroupConfig

        before = admin.groups().get(group) or SubscriptionGroupConfig(group)
        given: dict[str, Any] = {
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
        members = [member["client_id"] for member in _members(admin.group_connection(group))]
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
        rows = _members(admin.group_connection(group))
        columns = ("client_id", "address", "language", "version")
        out.table(f"members of {group}", columns, rows)


@app.command(
    epilog=examples("raymq group member billing CLIENT_ID", "raymq group member billing CLIENT_ID --json")
)
def member(
    group: Group,
    client_id: Annotated[str, typer.Argument(help="Client id, as `members` shows it.", show_default=False)],
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show the running info of a member: its queues, cached messages and subscriptions."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        import orjson

        from store.message.json_text import parse_rocketmq_json

        body = admin.running_info(group, client_id)
        try:
            info = parse_rocketmq_json(body)
        except ValueError:
            out.line(body.decode(errors="replace"))
            return
        if out.is_json:
            out.json(info)
            return
        rows = [{**orjson.loads(queue), **state} for queue, state in info["mqTable"].items()]
        columns = ("topic", "brokerName", "queueId", "commitOffset", "cachedMsgCount", "droped")
        out.table(f"queues of {client_id}", columns, rows)
        out.fields(info["properties"])


app.command(
    "reset",
    epilog=examples(
        "raymq group reset billing orders --to earliest --dry-run",
        "raymq group reset billing orders --to 2026-11-21T09:30:00",
    ),
)(reset_offsets)


def is_system(name: str) -> bool:
    """Return True for groups of RocketMQ's own tools and services."""
    from actors.broker.metadata.groups import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS

    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def _members(online: ConsumerConnection | None) -> list[dict[str, Any]]:
    if online is None:
        return []
    return [
        {
            "client_id": each.client_id,
            "address": each.client_addr,
            "language": each.language,
            "version": each.version,
        }
        for each in online.connections
    ]


def _subscriptions(online: ConsumerConnection | None) -> dict[str, str]:
    if online is None:
        return {}
    return {topic: wanted.sub_string for topic, wanted in online.subscriptions.items()}
