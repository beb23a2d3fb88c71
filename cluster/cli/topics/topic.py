"""`raymq topic`: lists, creates, changes and deletes topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from cluster.cli.console import confirmed, open_admin, parse_pairs
from cluster.cli.options import NAMESERVER, AsJson, Attributes, DryRun, Nameserver, Topic, Yes, examples
from cluster.counted import counted
from cluster.views import topics

app = typer.Typer(no_args_is_help=True, help="Topics: list, create, describe, change, delete.")

Brokers = Annotated[
    list[str] | None,
    typer.Option("--broker", "-b", help="Broker; repeat for several (default: all)."),
]


@app.command("list", epilog=examples("raymq topic list", "raymq topic list --system --json"))
def list_topics(
    nameserver: Nameserver = NAMESERVER,
    system: Annotated[
        bool, typer.Option("--system", help="Include system, retry and dead-letter topics.")
    ] = False,
    match: Annotated[str, typer.Option(help="Only topics with this text in their names.")] = "",
    as_json: AsJson = False,
) -> None:
    """List topics with their queues and brokers."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = [each for each in topics.list_topics(admin) if system or each.kind == "normal"]
        rows = [asdict(each) for each in found if match.casefold() in each.topic.casefold()]
        out.table("topics", ("topic", "kind", "queues", "perm", "brokers"), rows)


@app.command(
    epilog=examples("raymq topic create orders --queues 8", "raymq topic create orders -b broker-a --perm r")
)
def create(
    topic: Topic,
    queues: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Queues per broker (new topic: 4).")
    ] = None,
    read_queues: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Read queues per broker, if different from write queues."),
    ] = None,
    perm: Annotated[str | None, typer.Option(help="r, w, rw or none (new topic: rw).")] = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Mark as an order topic.", show_default=False)
    ] = None,
    attributes: Attributes = None,
    brokers: Brokers = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change an existing one; options that are not given keep their value."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        plan = topics.plan_topic(admin, topic, queues=queues, read_queues=read_queues, perm=perm, order=order)
        route = admin.create_topic(
            topic,
            queues=plan.queues,
            read_queues=plan.read_queues,
            perm=plan.perm,
            order=plan.order,
            brokers=brokers or None,
            attributes=parse_pairs(attributes or [], "--attribute"),
        )
        names = route.brokers()
        what = f"{topic}: {counted(plan.queues, 'queue')} on each of {', '.join(names)}"
        out.done(what, topic=topic, queues=len(route.keyed), brokers=names)


@app.command(epilog=examples("raymq topic describe orders", "raymq topic describe orders --json"))
def describe(topic: Topic, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show a topic's settings on each broker, and the groups that consume it."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = topics.topic_description(admin, topic)
        if out.is_json:
            out.json(asdict(found))
            return
        rows = [asdict(each) for each in found.brokers]
        out.table(f"topic {topic}", ("broker", "read_queues", "write_queues", "perm", "order"), rows)
        out.line(f"consumed by: {', '.join(found.groups) or 'no group'}")


@app.command(epilog=examples("raymq topic stats orders", "raymq topic stats orders --json"))
def stats(topic: Topic, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show the offsets and last message time of each queue, and the put rate of the last minute."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = topics.topic_progress(admin, topic)
        if out.is_json:
            out.json(asdict(found))
            return
        columns = ("broker", "queue", "min_offset", "max_offset", "messages", "last_ms")
        out.table(f"topic {topic}", columns, [asdict(each) for each in found.queues])
        out.line(f"{counted(found.messages, 'message')}; put TPS of the last minute: {found.put_tps:,.1f}")


@app.command(epilog=examples("raymq topic perm orders r", "raymq topic perm orders rw -b broker-a"))
def perm(
    topic: Topic,
    perm: Annotated[str, typer.Argument(help="r, w, rw or none.", show_default=False)],
    brokers: Brokers = None,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set the permission of a topic: read, write, both or none."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        wanted = topics.parse_perm(perm)
        names = sorted(admin.topic_configs(topic)) if dry_run and not brokers else brokers
        names = list(names or []) if dry_run else admin.set_topic_perm(topic, wanted, brokers or None)
        would = "would be" if dry_run else "is"
        what = f"{topic} {would} {topics.perm_name(wanted)} on {', '.join(names)}"
        out.done(what, topic=topic, perm=topics.perm_name(wanted), brokers=names, dry_run=dry_run)


@app.command(epilog=examples("raymq topic delete orders --dry-run", "raymq topic delete orders --yes"))
def delete(
    topic: Topic,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic, its messages and the consumer offsets of its groups."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = topics.topic_progress(admin, topic)
        count, groups = found.messages, admin.groups_of_topic(topic)
        what = f"topic {topic}: {counted(count, 'message')} in {counted(len(found.queues), 'queue')}"
        facts: dict[str, Any] = {"topic": topic, "messages": count, "groups": groups, "dry_run": dry_run}
        if dry_run:
            out.done(f"would delete {what}; consumed by {', '.join(groups) or 'no group'}", **facts)
            return
        confirmed(f"Delete {what}?", yes=yes)
        admin.delete_topic(topic)
        out.done(f"deleted {what}", **facts)
