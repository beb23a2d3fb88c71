"""`raymq broker`: shows, configures and cleans brokers."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cluster.cli.console import Failed, confirmed, open_admin
from cluster.cli.options import NAMESERVER, AsJson, Broker, DryRun, Nameserver, Yes, examples
from cluster.counted import counted
from cluster.views import brokers
from store.common.clock import SystemClock

if TYPE_CHECKING:
    from actors.wire.bodies.broker import BrokerStatsItem

app = typer.Typer(no_args_is_help=True, help="Brokers: list, describe, statistics, settings, cleaning.")

COLUMNS = ("cluster", "broker", "id", "address", "version", "put_tps", "get_tps", "disk_used", "up_s")
PENDING = ("open_transactions", "pending_timers", "retries", "dead_letters")
RAFT = ("raft_term", "raft_voters", "raft_active_voters")
"""Counts of messages that wait in a broker; RocketMQ's brokers do not report them."""


class Cleanable(StrEnum):
    """Parts of a broker's store that `raymq broker clean` removes."""

    EXPIRED_FILES = "expired-files"
    EXPIRED_QUEUES = "expired-queues"
    UNUSED_TOPICS = "unused-topics"


@app.command("list", epilog=examples("raymq broker list", "raymq broker list --json"))
def list_brokers(nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """List brokers with their put and get rates and disk usage."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [
            {"cluster": each.cluster, "broker": each.broker, "id": each.id, "address": each.address}
            | ({"replica": each.replica.number, "role": each.replica.role} if each.replica else {})
            | (columns_of(each.load) if each.load else {})
            | ({"problem": each.problem} if each.problem else {})
            for each in brokers.list_brokers(admin, SystemClock())
        ]
        columns = (*COLUMNS, *(name for name in ("role", "problem") if any(name in row for row in rows)))
        out.table("brokers", columns, rows, spared=("version", "cluster", "id"))


@app.command(epilog=examples("raymq broker describe broker-a", "raymq broker describe broker-a --json"))
def describe(broker: Broker, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show a broker's runtime information under RocketMQ's names."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        out.fields(dict(sorted(admin.broker_runtime(broker).items())))


@app.command(epilog=examples("raymq broker timers broker-a", "raymq broker timers broker-a --json"))
def timers(broker: Broker, nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """Show the number of pending timer messages of a broker, by topic."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        rows = [{"topic": topic, "timers": count} for topic, count in admin.timer_counts(broker).items()]
        out.table(f"pending timers of {broker}", ("topic", "timers"), rows)


@app.command(
    epilog=examples(
        "raymq broker config broker-a",
        "raymq broker config broker-a --set fileReservedTime=48 --set deleteWhen=04",
    )
)
def config(
    broker: Broker,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a live setting; repeat for several."),
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show a broker's settings under RocketMQ's names, or change live settings.

    Changes survive restarts of the broker, until the next `raymq up`. docs/settings.md lists live settings.
    """
    wanted = dict(_setting(change) for change in changes or [])

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if not wanted:
            out.fields(dict(sorted(admin.broker_config(broker).items())))
            return
        if not dry_run:
            admin.change_broker_config(broker, wanted)
        what = ", ".join(f"{key} = {value}" for key, value in wanted.items())
        text = f"{broker}: would set {what}" if dry_run else f"{broker}: set {what}"
        out.done(text, broker=broker, settings=wanted, dry_run=dry_run)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise typer.BadParameter(f"{text!r} is invalid: use KEY=VALUE, for example --set fileReservedTime=48")
    return key.strip(), value.strip()


@app.command(
    epilog=examples(
        "raymq broker clean broker-a expired-files",
        "raymq broker clean broker-a expired-queues --dry-run",
        "raymq broker clean broker-a unused-topics --yes",
    )
)
def clean(
    broker: Broker,
    what: Annotated[
        Cleanable, typer.Argument(help="What to delete; this cannot be undone.", show_default=False)
    ],
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Clean a broker's store now, outside of its cleaning hours.

    expired-files: log files that are older than fileReservedTime, consumed or not.
    expired-queues: queues without messages; their next offset is 0.
    unused-topics: queues of topics that do not exist.
    """

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        facts: dict[str, Any] = {"broker": broker, "cleaned": what.value, "dry_run": dry_run}
        if dry_run:
            admin.broker_config(broker)
            out.done(f"{broker}: would delete {what.value}", **facts)
            return
        confirmed(f"Delete {what.value} on {broker}? This cannot be undone.", yes=yes)
        admin.clean_broker(broker, what.value)
        out.done(f"{broker}: deleting {what.value}", **facts)


@app.command(
    epilog=examples(
        "raymq broker stats broker-a",
        "raymq broker stats broker-a --table TOPIC_PUT_SIZE --key orders",
        "raymq broker stats broker-a --table GROUP_GET_NUMS --key orders@billing --json",
    )
)
def stats(
    broker: Broker,
    table: Annotated[
        str,
        typer.Option(help="RocketMQ's name of the counter, for example TOPIC_PUT_NUMS or GROUP_GET_SIZE."),
    ] = "BROKER_PUT_NUMS",
    key: Annotated[
        str | None, typer.Option(help="Topic, topic@group or cluster (default: the cluster).")
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show a counter for the last minute, hour and day."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        data = admin.cluster_info().brokers.get(broker)
        wanted = key if key is not None else data.cluster if data is not None else ""
        found = admin.broker_stats(broker, table, wanted)
        if found is None:
            raise Failed(f"broker {broker!r} has no {table} of {wanted!r} yet")
        rows = [
            _window(name, item)
            for name, item in (("minute", found.minute), ("hour", found.hour), ("day", found.day))
        ]
        columns = ("window", "sum", "per_second", "per_request")
        out.table(f"{table} of {wanted} on {broker}", columns, rows)


@app.command(
    epilog=examples("raymq broker writable broker-a --off --dry-run", "raymq broker writable broker-a --on")
)
def writable(
    broker: Broker,
    on: Annotated[bool, typer.Option("--on/--off", help="Enable or disable writes.")] = True,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Disable or enable writes to a broker in the routes, until its next registration."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        what = "writable" if on else "not writable"
        facts: dict[str, Any] = {"broker": broker, "writable": on, "dry_run": dry_run}
        if dry_run:
            topics = len(admin.broker_topics(broker))
            out.done(f"{broker} would be {what} in {counted(topics, 'topic')}", topics=topics, **facts)
            return
        if not on:
            confirmed(f"Disable writes to {broker}?", yes=yes)
        topics = admin.set_writable(broker, writable=on)
        out.done(f"{broker} is {what} in {counted(topics, 'topic')}", topics=topics, **facts)


@app.command(epilog=examples("raymq broker restart broker-a --dry-run", "raymq broker restart broker-a"))
def restart(
    broker: Broker,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make the master of a broker stop cleanly and start again, without waiting for it.

    `raymq restart` on a machine of the cluster restarts any actors, one at a time, and waits for each.
    """

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        admin.restart_broker(broker, dry_run=True)
        if dry_run:
            out.done(f"{broker} would restart", broker=broker, dry_run=True)
            return
        confirmed(f"Restart {broker}?", yes=yes)
        admin.restart_broker(broker)
        out.done(f"{broker} restarts; it serves again within seconds", broker=broker, dry_run=False)


@app.command(
    epilog=examples(
        "raymq broker drain broker-a --dry-run",
        "raymq broker drain broker-a",
        "raymq broker drain broker-a --show",
        "raymq broker drain broker-a --cancel",
    )
)
def drain(
    broker: Broker,
    show: Annotated[bool, typer.Option("--show", help="Only show the state, and what is left.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Make the broker writable again.")] = False,
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Drain a broker without stopping it: disable writes, then let consumers read what it has.

    The drain lasts until --cancel or a restart of the broker. `raymq drain`, on a machine of the cluster,
    also waits for the consumers and stops the broker.
    """
    from cluster.control.drain import DrainProgress

    if show and cancel:
        raise typer.BadParameter("--show and --cancel exclude each other")
    with open_admin(nameserver, as_json=as_json) as (admin, out):
        step: Literal["start", "cancel"] = "cancel" if cancel else "start"
        progress = DrainProgress.of(admin.drain_broker(broker, "look" if show or dry_run else step))
        is_preview = dry_run and not show
        text = progress.preview(broker, step) if is_preview else progress.summary(broker)
        unread = [asdict(group) for group in progress.unread]
        facts = {"broker": broker, "state": progress.state, "is_drained": progress.is_drained}
        out.done(text, **facts, producers=progress.producers, unread=unread, dry_run=dry_run)
        if not out.is_json and not cancel:
            out.table("unread messages", ("group", "members", "unread"), unread)


def columns_of(load: brokers.BrokerLoad) -> dict[str, Any]:
    """Return the columns of a broker's load, without the counts of messages and voters that it lacks."""
    found = asdict(load) | {"disk_used": None if load.disk_used is None else f"{load.disk_used:.0%}"}
    return {
        name: value for name, value in found.items() if name not in (*PENDING, *RAFT) or value is not None
    }


def _window(name: str, item: BrokerStatsItem) -> dict[str, Any]:
    return {"window": name, "sum": item.sum, "per_second": item.tps, "per_request": item.avgpt}
