"""`raymq message`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli import send, tail
from cluster.cli.console import Failed, Refusal, moment_ms, open_admin, queue_named
from cluster.cli.message_view import as_object, as_page, body_text
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, Topic, examples

if TYPE_CHECKING:
    from cluster.client import Admin, MessageExt

app = typer.Typer(no_args_is_help=True, help="Messages: send, get, query, tail.")

_ID_DIGITS = (32, 56)


@app.command(
    epilog=examples(
        "raymq message get orders --queue broker-a:0 --offset 12",
        "raymq message get orders --id 7F00000100002A9F0000000000000000",
        "raymq message get orders --queue broker-a:0 --offset 12 --count 10 --json",
    )
)
def get(
    topic: Topic,
    queue: Annotated[str | None, typer.Option(metavar="BROKER:QUEUE", help="As broker-a:0.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="The offset in that queue.")] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many from there on.")] = 1,
    identifier: Annotated[
        str | None, typer.Option("--id", help="The id: the broker's, or the producer's (UNIQ_KEY).")
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show messages by their place or by their id."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if (identifier is None) == (queue is None or offset is None):
            raise Refusal("say which: either --id, or --queue with --offset")
        if identifier is not None:
            found = _by_id(admin, topic, identifier)
        else:
            found = admin.messages_at(queue_named(queue or "", topic), offset or 0, count)
        if not found:
            raise Failed(f"no such message in topic {topic!r}")
        for message in found:
            if out.is_json:
                out.json(as_object(message))
            else:
                out.fields(as_page(message))


@app.command(
    epilog=examples(
        "raymq message query orders --key order-1", "raymq message query orders -k u-1 --from -2h"
    )
)
def query(
    topic: Topic,
    key: Annotated[str, typer.Option("--key", "-k", help="One of the messages' KEYS, or the UNIQ_KEY.")],
    begin: Annotated[str, typer.Option("--from", help="Stored at this time or later, as -2h.")] = "0",
    end: Annotated[str | None, typer.Option("--until", help="Stored at this time or before.")] = None,
    limit: Annotated[int, typer.Option("--max", min=1, max=64, help="At most so many from a broker.")] = 32,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Find messages by key."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        from cluster.client.admin.aio_admin import END_OF_TIME_MS

        until_ms = END_OF_TIME_MS if end is None else moment_ms(end)
        found = admin.messages_by_key(
            topic, key, max_messages=limit, begin_ms=moment_ms(begin), end_ms=until_ms
        )
        rows = [as_object(message) | {"shown": body_text(message)} for message in found]
        if out.is_json:
            out.json([{name: value for name, value in row.items() if name != "shown"} for row in rows])
            return
        columns = ("store_ms", "broker", "queue", "offset", "tags", "keys", "id", "shown")
        out.table(f"messages of {topic} with key {key}", columns, rows)


app.command("send", epilog=send.EPILOG)(send.command)
app.command("tail", epilog=tail.EPILOG)(tail.command)


def _by_id(admin: Admin, topic: str, identifier: str) -> list[MessageExt]:
    """The producer's id first: it looks like the broker's, and the latter names an address to dial."""
    found = admin.messages_by_key(topic, identifier, max_messages=1, unique=True)
    if found or len(identifier) not in _ID_DIGITS or set(identifier) - set("0123456789abcdefABCDEF"):
        return found
    return [admin.message_by_id(identifier)]
