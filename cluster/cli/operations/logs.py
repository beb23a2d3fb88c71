"""`raymq logs`: shows the logs of a cluster's actors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from cluster.cli.console import discard_output, exiting_on_launch_errors, json_line
from cluster.cli.options import Overrides, TopologyOption, examples
from cluster.cli.tables import escaped_text

EPILOG = examples(
    "raymq logs broker-a --follow",
    "raymq logs --level warning --since 2h",
    "raymq logs --lines 0 --json > all.jsonl",
)
HEAD = ("time", "level", "logger", "event", "exception")
STYLES = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "bold red"}

Actors = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ACTOR]", help="Actors: broker-a, nameserver-0 … (default: all)", show_default=False
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print new events as they are logged; stop with Ctrl-C.")
]
Level = Annotated[str, typer.Option("--level", help="The lowest level: debug, info, warning, error.")]
Since = Annotated[
    str,
    typer.Option(
        "--since", help="Only events since: 90s, 10m, 2h, 1d or 2026-01-31T12:00.", show_default=False
    ),
]
Last = Annotated[int, typer.Option("--lines", "-n", min=0, help="Print only the last events; 0 prints all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


def command(
    actors: Actors = None,
    follow: Follow = False,
    level: Level = "info",
    since: Since = "",
    last: Last = 100,
    as_json: AsJson = False,
    topology: TopologyOption = None,
    overrides: Overrides = None,
) -> None:
    """Print the log events of a cluster's actors on all nodes, ordered by time.

    The log files are <Ray session>/logs/<namespace>/<actor>.log. In a pipe each line is a JSON object.
    """
    from rich.console import Console

    from cluster.control.launch_report import ConsoleReport
    from cluster.control.logs.actor_logs import checked_level, parse_since, read
    from cluster.control.logs.log_files import Query
    from cluster.control.topology.topology_file import load_topology

    console, errors = Console(), Console(stderr=True)

    with exiting_on_launch_errors(reads_only=True):
        given = load_topology(topology, overrides or [])
        begin = parse_since(since, datetime.now(UTC))
        query = Query(given.namespace, tuple(actors or ()), checked_level(level), begin, last or None)
        try:
            for actor, line in read(given, query, follow=follow, report=ConsoleReport(errors)):
                show(console, actor, line, as_json=as_json or not console.is_terminal)
        except KeyboardInterrupt:
            if not follow:
                raise
        except BrokenPipeError:
            discard_output()


def show(console: Any, actor: str, line: bytes, *, as_json: bool) -> None:
    """Print one event, a JSON line of an actor's log, as text or JSON."""
    from cluster.control.logs.log_files import event_of

    event = event_of(line)
    if as_json:
        sys.stdout.write(json_line({"actor": actor, **event}, console.encoding))
        sys.stdout.flush()
        return
    text = (
        f"{clock_time(event)} {event.get('level', ''):<8} {actor:<14} {event.get('event', '')} "
        f"{fields_of(event)}"
    )
    console.print(
        escaped_text(text.rstrip()),
        style=STYLES.get(str(event.get("level"))),
        soft_wrap=True,
    )
    if exception := event.get("exception"):
        for each in str(exception).splitlines():
            console.print(escaped_text(each), style="red", soft_wrap=True)


def clock_time(event: Mapping[str, Any]) -> str:
    """Return the event's time in the local time zone."""
    try:
        moment = datetime.fromisoformat(str(event.get("time", ""))).astimezone()
    except (ValueError, OverflowError):
        return " " * len("2026-01-31 12:00:00.000")
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def fields_of(event: Mapping[str, Any]) -> str:
    """Return the fields of an event as `key=value key=value`."""
    return " ".join(f"{key}={plain(value)}" for key, value in event.items() if key not in HEAD)


def plain(value: object) -> str:
    """Return a value as text, quoted only if it contains spaces."""
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)
