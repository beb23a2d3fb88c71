"""`raymq topic`: lists, creates, changes and deletes topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from cluster.cli.console import Refusal, confirmed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, DryRun, Nameserver, Topic, Yes, examples

if TYPE_CHECKING:
    from cluster.client import Admin
    from store.message.topic_config import TopicConfig

app = typer.Typer(no_args_is_help=True, help="Topics: list, create, describe, change, delete.")

Brokers = Annotated[
    list[str] | None,
    typer.Option("--broker", "-b", help="Broker; repeat for several (default: all)."),
]
NEW_QUEUES = 4
_PERMS = {"r": 4, "w": 2, "rw": 6, "wr": 6, "none": 0, "0": 0, "2": 2, "4": 4, "6": 6}
_NAMES = {0: "none", 2: "w", 4: "r", 6: "rw"}


@app.command("list", epilog=examples("raymq topic list", "raymq topic list --system --json"))
def list_topics(
    nameserver: Nameserver = NAMESERVER,
    system: Annotated[
        bool, typer.Option("--system", help="Include system, retry and dead-letter topics.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List topics with their queues and brokers."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [row for row in _topic_rows(admin) if system or row["kind"] == "normal"]
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
    brokers: Brokers = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change an existing one; options that are not given keep their value."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        current = _settings_of(admin, topic)
        wanted = queues or current.write_queue_nums
        route = admin.create_topic(
            topic,
            queues=wanted,
            read_queues=current.read_queue_nums if read_queues is queues is None else read_queues,
            perm=current.perm & 6 if perm is None else _perm_of(perm),
            order=current.order if order is None else order,
            brokers=brokers or None,
        )
        names = route.brokers()
        what = f"{topic}: {wanted} queues on each of {', '.join(names)}"
        out.done(what, topic=topic, queues=len(route.keyed), brokers=names)


@app.command(epilog=examples("raymq topic describe orders", "raymq topic describe orders --json"))
def describe(topic: Topic, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show a topic's settings on each broker, and the groups that consume it."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        configs = admin.topic_configs(topic)
        groups = admin.groups_of_topic(topic)
        rows = [
            {
                "broker": name,
                "read_queues": config.read_queue_nums,
                "write_queues": config.write_queue_nums,
                "perm": _NAMES.get(config.perm & 6, str(config.perm)),
                "order": config.order,
                "attributes": dict(config.attributes),
            }
            for name, config in configs.items()
        ]
        if out.is_json:
            out.json({"topic": topic, "brokers": rows, "groups": groups})
            return
        out.table(f"topic {topic}", ("broker", "read_queues", "write_queues", "perm", "order"), rows)
        out.line(f"consumed by: {', '.join(groups) or 'no group'}")


@app.command(epilog=examples("raymq topic stats orders", "raymq topic stats orders --json"))
def stats(topic: Topic, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show the offsets and last message time of each queue, and the put rate of the last minute."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = admin.topic_stats(topic)
        rows = [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "min_offset": offset.min_offset,
                "max_offset": offset.max_offset,
                "messages": offset.max_offset - offset.min_offset,
                "last_ms": offset.last_update_timestamp or None,
            }
            for queue, offset in found.offsets.items()
        ]
        if out.is_json:
            out.json({"topic": topic, "put_tps": found.put_tps, "queues": rows})
            return
        out.table(
            f"topic {topic}", ("broker", "queue", "min_offset", "max_offset", "messages", "last_ms"), rows
        )
        total = sum(each.max_offset - each.min_offset for each in found.offsets.values())
        out.line(f"{total:,} messages; put TPS of the last minute: {found.put_tps:,.1f}")


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
        wanted = _perm_of(perm)
        names = sorted(admin.topic_configs(topic)) if dry_run and not brokers else brokers
        names = list(names or []) if dry_run else admin.set_topic_perm(topic, wanted, brokers or None)
        would = "would be" if dry_run else "is"
        what = f"{topic} {would} {_NAMES[wanted]} on {', '.join(names)}"
        out.done(what, topic=topic, perm=_NAMES[wanted], brokers=names, dry_run=dry_run)


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
        stats = admin.topic_stats(topic)
        count = sum(offset.max_offset - offset.min_offset for offset in stats.offsets.values())
        groups = admin.groups_of_topic(topic)
        what = f"topic {topic}: {count:,} messages in {len(stats.offsets)} queues"
        facts: dict[str, Any] = {"topic": topic, "messages": count, "groups": groups, "dry_run": dry_run}
        if dry_run:
            out.done(f"would delete {what}; consumed by {', '.join(groups) or 'no group'}", **facts)
            return
        confirmed(f"Delete {what}?", yes=yes)
        admin.delete_topic(topic)
        out.done(f"deleted {what}", **facts)


def _settings_of(admin: Admin, topic: str) -> TopicConfig:
    """Return the settings of a topic, with the most queues of any broker, or those of a new topic."""
    from cluster.client.errors import TopicNotFound
    from store.message.topic_config import TopicConfig

    try:
        configs = list(admin.topic_configs(topic).values())
    except TopicNotFound:
        return TopicConfig(topic, read_queue_nums=NEW_QUEUES, write_queue_nums=NEW_QUEUES)
    return replace(
        configs[0],
        read_queue_nums=max(config.read_queue_nums for config in configs),
        write_queue_nums=max(config.write_queue_nums for config in configs),
    )


def _topic_rows(admin: Admin) -> list[dict[str, Any]]:
    system = set(admin.system_topics())
    rows: dict[str, dict[str, Any]] = {}
    for broker in admin.brokers():
        for name, config in admin.broker_topics(broker).items():
            row = rows.setdefault(
                name, {"topic": name, "kind": _kind(name, system), "queues": 0, "perm": "", "brokers": []}
            )
            row["queues"] += config.write_queue_nums
            row["perm"] = _NAMES.get(config.perm & 6, str(config.perm))
            row["brokers"].append(broker)
    return [rows[name] for name in sorted(rows)]


def _kind(name: str, system: set[str]) -> str:
    if name.startswith("%RETRY%"):
        return "retry"
    if name.startswith("%DLQ%"):
        return "dead letters"
    return "system" if name in system else "normal"


def _perm_of(text: str) -> int:
    found = _PERMS.get(text.lower())
    if found is None:
        raise Refusal(f"{text!r} is not a permission: use r, w, rw or none")
    return found
