"""`raymq lite`: lists lite topics with the lag of their groups, shows one, and dispatches them again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cluster.cli.console import Failed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, Group, Nameserver, Topic, examples
from cluster.counted import counted
from cluster.views import lite

app = typer.Typer(no_args_is_help=True, help="Lite topics: list, describe, lag of groups, subscriptions.")

_PROGRESS_COLUMNS = ("lite_topic", "broker", "lag", "oldest_ms")
Limit = Annotated[int, typer.Option("--max", min=1, max=10_000, help="Maximum number of lite topics.")]


@app.command(
    "list", epilog=examples("raymq lite list chats", "raymq lite list chats --match session-7 --json")
)
def list_topics(
    topic: Topic,
    match: Annotated[str, typer.Option(help="Only lite topics with this text in their names.")] = "",
    limit: Limit = 100,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """List lite topics by name, with their messages, subscribers and the highest lag of a group."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = lite.list_lite_topics(admin, topic, match, limit)
        if out.is_json:
            out.json(asdict(found))
            return
        columns = ("lite_topic", "broker", "messages", "oldest_ms", "last_ms", "subscribers", "lag")
        out.table(f"lite topics of {topic}", columns, [asdict(each) for each in found.rows])
        if found.matches > len(found.rows):
            out.line(f"{found.matches - len(found.rows):,} more: give --match or --max")
        out.line(f"{counted(found.count, 'lite topic')}; groups: {', '.join(found.groups) or 'none'}")


@app.command(
    epilog=examples("raymq lite describe chats session-7", "raymq lite describe chats session-7 --json")
)
def describe(
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="LITE_TOPIC", help="Lite topic.", show_default=False)],
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show a lite topic: its offsets, the lag of its groups, and the clients that subscribe it."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = lite.list_lite_topics(admin, topic, name=name).rows
        found = [each for each in rows if each.max_offset] or [each for each in rows if each.groups][:1]
        if not found:
            raise Failed(f"topic {topic!r} has no lite topic {name!r}, or it has expired")
        subscribers = [
            {"broker": broker} | {"group": each["group"], "client_id": each["clientId"]}
            for broker, content in admin.lite_topic(topic, name).items()
            for each in content["subscriber"]
        ]
        if out.is_json:
            out.json({"brokers": [asdict(each) for each in found], "subscribers": subscribers})
            return
        columns = ("broker", "min_offset", "max_offset", "messages", "oldest_ms", "last_ms")
        out.table(f"lite topic {name}", columns, [asdict(each) for each in found])
        groups = [asdict(each) for topic in found for each in topic.groups]
        out.table("groups", ("group", "broker", "lag", "oldest_ms", "subscribers"), groups)
        out.table("subscribers", ("group", "client_id", "broker"), subscribers)


@app.command(epilog=examples("raymq lite group agents", "raymq lite group agents --top 20 --json"))
def group(
    group: Group,
    top: Annotated[int, typer.Option(min=0, max=10_000, help="Number of lite topics to list.")] = 10,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show how far a group is behind in the lite topics that it has consumed, and in which ones most."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = lite.describe_lite_group(admin, group, top)
        if out.is_json:
            out.json(asdict(found))
            return
        out.table("largest lag", _PROGRESS_COLUMNS, [asdict(each) for each in found.largest])
        out.table("oldest messages", _PROGRESS_COLUMNS, [asdict(each) for each in found.oldest])
        out.line(f"lag of group {group} in topic {found.topic}: {found.lag:,}")


@app.command(epilog=examples("raymq lite client chats agents CLIENT_ID --json"))
def client(
    topic: Topic,
    group: Group,
    client_id: Annotated[str, typer.Argument(help="Client id, as `describe` shows it.", show_default=False)],
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """List the lite topics that a client subscribes."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [
            {"broker": broker, "lite_topic": each.rpartition("$")[2]}
            for broker, content in admin.lite_client(topic, group, client_id).items()
            for each in content.get("liteTopicSet") or ()
        ]
        out.table(f"lite topics of {client_id}", ("lite_topic", "broker"), rows)


@app.command(epilog=examples("raymq lite dispatch agents", "raymq lite dispatch agents --client CLIENT_ID"))
def dispatch(
    group: Group,
    client_id: Annotated[str, typer.Option("--client", help="Only this client (default: all).")] = "",
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Let brokers look at all lite topics of a group's clients again, if one seems to be forgotten."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        admin.dispatch_lite(group, client_id)
        whose = f"client {client_id}" if client_id else "all clients"
        out.done(f"dispatched the lite topics of {whose} of group {group}", group=group, client=client_id)
