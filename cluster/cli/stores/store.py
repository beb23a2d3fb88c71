"""`raymq store`: inspect a store on this machine's disk, and rebuild its consume queues and index.

Commands that only read write nothing and take no lock.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from cluster.cli.console import EXIT_FAILED, discard_output, print_error
from cluster.cli.options import Store, examples
from cluster.cli.stores import store_tools
from cluster.cli.tables import escaped

app = typer.Typer(no_args_is_help=True, help="Inspect, verify and rebuild a broker's store on disk.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")
_COLUMNS = "{:<40} {:>5} {:>10} {:>16} {:>9} {:>20}  {}"


app.command(epilog=store_tools.VERIFY_EXAMPLES)(store_tools.verify)
app.command(epilog=store_tools.REBUILD_EXAMPLES)(store_tools.rebuild)
app.command(epilog=store_tools.INFO_EXAMPLES)(store_tools.info)


@app.command(epilog=examples("raymq store dump DIR", "raymq store dump DIR --json"))
def dump(path: Store, log_paths: store_tools.LogPaths = None, as_json: AsJson = False) -> None:
    """Print one line per consume-queue unit, as after recovery."""
    from store.tools import dump as dumping  # numba and numpy take half a second

    lines = _read(dumping.dump(path, log_paths or ()))
    if as_json or not sys.stdout.isatty():
        _print_json(lines)
        return
    print(_COLUMNS.format("TOPIC", "QUEUE", "OFFSET", "POSITION", "BYTES", "TAGS CODE", "KEYS"))
    for line in lines:
        print(
            _COLUMNS.format(
                line["topic"],
                line["queueId"],
                line["queueOffset"],
                line["commitLogOffset"],
                line["storeSize"],
                line["tagsCode"],
                escaped(line.get("damage") or line["keys"] or ""),
            )
        )


@app.command(
    epilog=examples(
        "raymq store messages DIR --topic orders | raymq send orders --json-lines",
        "raymq store messages broker-a-0.before-resync-1 --from-position 4711",
    )
)
def messages(
    path: Store,
    topic: Annotated[str | None, typer.Option(help="Print the messages of this topic only.")] = None,
    begin: Annotated[
        int,
        typer.Option("--from-position", min=0, help="Print messages that end after this CommitLog offset."),
    ] = 0,
    log_paths: store_tools.LogPaths = None,
) -> None:
    """Print the messages of a store with their bodies, in the format of `raymq tail --json`.

    They are in order of topic, queue and offset. Damaged messages are reported on standard error; the exit
    code is then 1.
    """
    from cluster.views.messages import message_json
    from store.store_errors import StoreError
    from store.tools.dump import stored_messages

    damaged = False

    def lines() -> Iterator[dict[str, Any]]:
        nonlocal damaged
        for found in stored_messages(path, log_paths or (), topic=topic, begin=begin):
            if isinstance(found, StoreError):
                damaged = True
                print_error(f"raymq store: {found}")
            else:
                yield message_json(found)

    _print_json(_read(lines()))
    if damaged:
        raise typer.Exit(EXIT_FAILED)


@app.command(epilog=examples("raymq store query DIR orders order-1 --json"))
def query(
    path: Store,
    topic: Annotated[str, typer.Argument(help="Topic.")],
    key: Annotated[str, typer.Argument(help="Message key (KEYS) or UNIQ_KEY.")],
    log_paths: store_tools.LogPaths = None,
    as_json: AsJson = False,
) -> None:
    """Print the CommitLog offsets of messages with a key."""
    from store.tools import dump as dumping

    for line in _read(dumping.query(path, topic, key, log_paths or ())):
        if as_json or not sys.stdout.isatty():
            _print_json([line])
        else:
            for offset in line["commitLogOffsets"]:
                print(offset)


def _read(lines: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield the lines; print an error of the store and exit."""
    with store_tools.exiting_on_store_errors():
        yield from lines


def _print_json(lines: Iterable[dict[str, Any]]) -> None:
    out = sys.stdout.buffer  # JSON is UTF-8, independent of the terminal's encoding
    try:
        for line in lines:
            text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
            out.write(_BEYOND_BMP.sub(_escaped, text).encode() + b"\n")
        out.flush()
    except BrokenPipeError:
        discard_output()


def _escaped(found: re.Match[str]) -> str:
    """Escape a character beyond 16 bits as a surrogate pair, as Java's JSON writers do."""
    return json.dumps(found[0])[1:-1]
