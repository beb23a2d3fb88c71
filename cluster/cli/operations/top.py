"""`raymq top`: shows live rates of brokers, topics and groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import Failed, Output, open_admin
from cluster.cli.operations.broker import PENDING, columns_of
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, examples
from cluster.cli.tables import escaped_text, table_of
from cluster.views.samples import ClusterState, take_sample
from cluster.views.top import group_rates, topic_rates
from cluster.views.warnings import notices
from store.common.clock import SystemClock

if TYPE_CHECKING:
    from cluster.client import Admin

EPILOG = examples("raymq top", "raymq top --interval 5 --rows 30", "raymq top --once --json")
BROKER_COLUMNS = ("broker", "address", "put_tps", "get_tps", "disk_used", *PENDING, "up_s")
TOPIC_COLUMNS = ("topic", "messages", "put_tps")
GROUP_COLUMNS = ("group", "topic", "lag", "in_flight", "tps", "dead_letters")


def command(
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.2, max=86_400.0, help="Seconds between updates.")
    ] = 2.0,
    rows: Annotated[int, typer.Option(min=1, help="Rows per table.")] = 12,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show warnings and live rates of brokers, topics and groups; Ctrl-C ends.

    The first update shows the rates of the last minute, later ones those since the previous update. In a pipe
    each update is a line of JSON.
    """

    # Ctrl-C is the normal end.
    with open_admin(nameserver, as_json=as_json) as (admin, out), suppress(KeyboardInterrupt):
        if once or out.is_json:
            _lines(admin, out, interval_s, once=once, rows=rows)
        else:
            _live(admin, out, interval_s, rows)


def rows_of(sample: ClusterState, dead_letters: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    """Return the warnings and the rows of the three tables. `dead_letters`: pending ones by group."""
    masters = [each for each in sample.brokers or () if each.id == 0]
    return {
        "warnings": [{"level": each.level, "text": each.text} for each in notices(sample, sample.at_ms)],
        "brokers": [
            {"broker": each.broker, "address": each.address} | (columns_of(each.load) if each.load else {})
            for each in masters
        ],
        "topics": [asdict(each) for each in topic_rates(sample, sample.at_ms)],
        "groups": [asdict(each) for each in group_rates(sample, dead_letters)],
    }


def _look(admin: Admin, before: ClusterState) -> tuple[ClusterState, dict[str, list[dict[str, Any]]]]:
    """Return a sample and its rows. Raises Failed if the brokers are unknown."""
    sample = take_sample(admin, SystemClock(), before)
    if sample.brokers is None:
        raise Failed(sample.problems[0])
    return sample, rows_of(sample, admin.dead_letter_counts())


def _lines(admin: Admin, out: Output, interval_s: float, *, once: bool, rows: int) -> None:
    before = ClusterState()
    while True:
        before, found = _look(admin, before)
        if out.is_json:
            out.json(found)
            out.console.file.flush()
        else:
            for part in _parts(found, rows):
                out.console.print(part)
        if once:
            return
        time.sleep(interval_s)


def _live(admin: Admin, out: Output, interval_s: float, rows: int) -> None:
    from rich.console import Group
    from rich.live import Live

    before, found = _look(admin, ClusterState())
    with Live(Group(*_parts(found, rows)), console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*_parts(found, rows)), refresh=True)
            time.sleep(interval_s)
            before, found = _look(admin, before)


def _parts(found: dict[str, list[dict[str, Any]]], rows: int) -> list[Any]:
    from rich.text import Text

    parts: list[Any] = [Text(escaped_text(each["text"]).plain, style="yellow") for each in found["warnings"]]
    for title, columns, content in (
        ("brokers", BROKER_COLUMNS, found["brokers"]),
        ("topics", TOPIC_COLUMNS, found["topics"][:rows]),
        ("groups", GROUP_COLUMNS, found["groups"][:rows]),
    ):
        known = [name for name in columns if name not in PENDING or any(name in row for row in content)]
        parts += [Text(title, style="bold"), table_of(known, content)]
    return parts
