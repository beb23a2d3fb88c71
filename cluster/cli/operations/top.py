"""`raymq top`: shows live rates of brokers, topics and groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import Output, open_admin
from cluster.cli.groups.group import is_system
from cluster.cli.operations.broker import PENDING, summary
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, examples
from cluster.cli.tables import table_of

if TYPE_CHECKING:
    from cluster.client import Admin

EPILOG = examples("raymq top", "raymq top --interval 5 --rows 30", "raymq top --once --json")
BROKER_COLUMNS = ("broker", "address", "put_tps", "get_tps", "disk_used", *PENDING, "up_s")
TOPIC_COLUMNS = ("topic", "messages", "put_tps")
GROUP_COLUMNS = ("group", "topic", "lag", "in_flight", "tps", "dead_letters")


@dataclass(slots=True)
class Snapshot:
    """Rows of the three tables at one time, and sums of end and committed offsets to compute rates from."""

    at_s: float
    brokers: list[dict[str, Any]] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    consumed: dict[tuple[str, str], int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the rows of the three tables."""
        return {"brokers": self.brokers, "topics": self.topics, "groups": self.groups}


def command(
    interval_s: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between updates.")] = 2.0,
    rows: Annotated[int, typer.Option(min=1, help="Rows per table.")] = 12,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show live rates of brokers, topics and groups; Ctrl-C ends.

    The first update shows the rates of the last minute, later ones those since the previous update. In a pipe
    each update is a line of JSON.
    """

    # Ctrl-C is the normal end.
    with open_admin(nameserver, as_json=as_json) as (admin, out), suppress(KeyboardInterrupt):
        if once or out.is_json:
            _lines(admin, out, interval_s, once=once, rows=rows)
        else:
            _live(admin, out, interval_s, rows)


def look(admin: Admin, before: Snapshot | None = None) -> Snapshot:
    """Return a snapshot of the cluster; rates are since `before`, or the brokers' own without it."""
    system = set(admin.system_topics())
    now = Snapshot(time.monotonic())
    span_s = now.at_s - before.at_s if before is not None else 0.0
    addresses = admin.brokers()
    for name, address in addresses.items():
        now.brokers.append({"broker": name, "address": address, **summary(admin.broker_runtime(name))})
    for topic in admin.topics():
        if topic in system:
            continue
        stats = admin.topic_stats(topic)
        now.ends[topic] = sum(offset.max_offset for offset in stats.offsets.values())
        rate = _rate(now.ends, before.ends if before else {}, topic, span_s)
        stored = sum(offset.max_offset - offset.min_offset for offset in stats.offsets.values())
        now.topics.append(
            {"topic": topic, "messages": stored, "put_tps": stats.put_tps if rate is None else rate}
        )
    dead_letters = admin.dead_letter_counts()
    for group, stats_of_group in admin.all_group_stats().items():
        if is_system(group):
            continue
        for topic in sorted({queue.topic for queue in stats_of_group.offsets}):
            offsets = [offset for queue, offset in stats_of_group.offsets.items() if queue.topic == topic]
            now.consumed[group, topic] = sum(offset.consumer_offset for offset in offsets)
            rate = _rate(now.consumed, before.consumed if before else {}, (group, topic), span_s)
            now.groups.append(
                {
                    "group": group,
                    "topic": topic,
                    "lag": sum(offset.lag for offset in offsets),
                    "in_flight": sum(offset.in_flight for offset in offsets),
                    "tps": stats_of_group.consume_tps if rate is None else rate,
                    "dead_letters": dead_letters.get(group, 0),
                }
            )
    now.topics.sort(key=lambda row: (-row["put_tps"], row["topic"]))
    now.groups.sort(key=lambda row: (-row["tps"], -row["lag"], row["group"]))
    return now


def _rate(now: Mapping[Any, int], before: Mapping[Any, int], key: Any, span_s: float) -> float | None:
    return max(now[key] - before[key], 0) / span_s if span_s > 0 and key in before else None


def _lines(admin: Admin, out: Output, interval_s: float, *, once: bool, rows: int) -> None:
    before: Snapshot | None = None
    while True:
        before = look(admin, before)
        if out.is_json:
            out.json(before.to_json())
            out.console.file.flush()
        else:
            for table in _tables(before, rows):
                out.console.print(table)
        if once:
            return
        time.sleep(interval_s)


def _live(admin: Admin, out: Output, interval_s: float, rows: int) -> None:
    from rich.console import Group
    from rich.live import Live

    before = look(admin)
    with Live(Group(*_tables(before, rows)), console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*_tables(before, rows)), refresh=True)
            time.sleep(interval_s)
            before = look(admin, before)


def _tables(snapshot: Snapshot, rows: int) -> list[Any]:
    from rich.text import Text

    parts: list[Any] = []
    for title, columns, content in (
        ("brokers", BROKER_COLUMNS, snapshot.brokers),
        ("topics", TOPIC_COLUMNS, snapshot.topics[:rows]),
        ("groups", GROUP_COLUMNS, snapshot.groups[:rows]),
    ):
        known = [name for name in columns if name not in PENDING or any(name in row for row in content)]
        parts += [Text(title, style="bold"), table_of(known, content)]
    return parts
