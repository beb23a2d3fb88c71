"""`raymq top`: shows live rates of brokers, topics and groups."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import Output, open_admin
from cluster.cli.operations.broker import PENDING, columns_of
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, examples
from cluster.cli.tables import table_of
from cluster.views.top import Snapshot, look
from store.clock import SystemClock

if TYPE_CHECKING:
    from cluster.client import Admin

EPILOG = examples("raymq top", "raymq top --interval 5 --rows 30", "raymq top --once --json")
BROKER_COLUMNS = ("broker", "address", "put_tps", "get_tps", "disk_used", *PENDING, "up_s")
TOPIC_COLUMNS = ("topic", "messages", "put_tps")
GROUP_COLUMNS = ("group", "topic", "lag", "in_flight", "tps", "dead_letters")


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


def rows_of(snapshot: Snapshot) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the three tables."""
    return {
        "brokers": [
            {"broker": each.broker, "address": each.address} | (columns_of(each.load) if each.load else {})
            for each in snapshot.brokers
        ],
        "topics": [asdict(each) for each in snapshot.topics],
        "groups": [asdict(each) for each in snapshot.groups],
    }


def _lines(admin: Admin, out: Output, interval_s: float, *, once: bool, rows: int) -> None:
    before: Snapshot | None = None
    while True:
        before = look(admin, SystemClock(), before)
        if out.is_json:
            out.json(rows_of(before))
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

    before = look(admin, SystemClock())
    with Live(Group(*_tables(before, rows)), console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*_tables(before, rows)), refresh=True)
            time.sleep(interval_s)
            before = look(admin, SystemClock(), before)


def _tables(snapshot: Snapshot, rows: int) -> list[Any]:
    from rich.text import Text

    parts: list[Any] = []
    found = rows_of(snapshot)
    for title, columns, content in (
        ("brokers", BROKER_COLUMNS, found["brokers"]),
        ("topics", TOPIC_COLUMNS, found["topics"][:rows]),
        ("groups", GROUP_COLUMNS, found["groups"][:rows]),
    ):
        known = [name for name in columns if name not in PENDING or any(name in row for row in content)]
        parts += [Text(title, style="bold"), table_of(known, content)]
    return parts
