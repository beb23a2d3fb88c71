"""`raymq message`: sends, gets, queries and tails messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cluster.cli.console import Failed, Refusal, open_admin
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, Topic, examples
from cluster.cli.topics import send, tail
from cluster.cli.topics.message_view import as_page, body_text
from cluster.views.lite import lite_messages
from cluster.views.messages import find_messages, message_json
from cluster.views.offsets import parse_queue
from cluster.views.times import parse_time_ms

app = typer.Typer(no_args_is_help=True, help="Messages: send, get, query, tail, trace.")


@app.command(
    epilog=examples(
        "raymq message get orders --queue broker-a:0 --offset 12",
        "raymq message get orders --id 7F00000100002A9F0000000000000000",
        "raymq message get orders --queue broker-a:0 --offset 12 --count 10 --json",
        "raymq message get chats --lite-topic session-7 --count 10",
    )
)
def get(
    topic: Topic,
    queue: Annotated[
        str | None, typer.Option(metavar="BROKER:QUEUE", help="Queue, for example broker-a:0.")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Queue offset.")] = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of messages from this offset.")] = 1,
    identifier: Annotated[
        str | None,
        typer.Option("--id", help="Message id: the broker's (offset id) or the producer's (UNIQ_KEY)."),
    ] = None,
    lite_topic: Annotated[
        str | None, typer.Option(help="Lite topic; --offset (default: 0) is one there.")
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show messages by queue and offset, of a lite topic, or by id."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        given = (identifier is not None, queue is not None and offset is not None, lite_topic is not None)
        if given.count(True) != 1:
            raise Refusal("a message is required: --id, or --queue with --offset, or --lite-topic")
        if identifier is not None:
            found = find_messages(admin, topic, identifier)
        elif lite_topic is not None:
            found = lite_messages(admin, topic, lite_topic, offset or 0, count)
        else:
            found = admin.messages_at(parse_queue(queue or "", topic), offset or 0, count)
        if not found:
            raise Failed(f"no such message in topic {topic!r}")
        for message in found:
            if out.is_json:
                out.json(message_json(message))
            else:
                out.fields(as_page(message))


@app.command(
    epilog=examples(
        "raymq message query orders --key order-1", "raymq message query orders -k u-1 --from -2h"
    )
)
def query(
    topic: Topic,
    key: Annotated[str, typer.Option("--key", "-k", help="Message key (KEYS) or UNIQ_KEY.")],
    begin: Annotated[str | None, typer.Option("--from", help="Earliest store time, for example -2h.")] = None,
    end: Annotated[str | None, typer.Option("--until", help="Latest store time.")] = None,
    limit: Annotated[
        int, typer.Option("--max", min=1, max=64, help="Maximum number of messages per broker.")
    ] = 32,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Find messages by key."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        from cluster.client.admin.aio_admin import END_OF_TIME_MS

        begin_ms = 0 if begin is None else parse_time_ms(begin)
        until_ms = END_OF_TIME_MS if end is None else parse_time_ms(end)
        found = admin.messages_by_key(topic, key, max_messages=limit, begin_ms=begin_ms, end_ms=until_ms)
        rows = [message_json(message) | {"shown": body_text(message)} for message in found]
        if out.is_json:
            out.json([{name: value for name, value in row.items() if name != "shown"} for row in rows])
            return
        columns = ("store_ms", "broker", "queue", "offset", "tags", "keys", "id", "shown")
        out.table(f"messages of {topic} with key {key}", columns, rows)


@app.command(epilog=examples("raymq message trace FD0000000000000000000000000000025CBD4E0E2F2A7A957B270000"))
def trace(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Message id of the producer (UNIQ_KEY).")],
    topic: Annotated[str, typer.Option("--trace-topic", help="The trace topic.")] = "RMQ_SYS_TRACE_TOPIC",
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Show who sent and consumed a message, if tracing is enabled in these clients."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = admin.message_trace(identifier, trace_topic=topic)
        if not found:
            raise Failed(
                f"no trace of message {identifier} in topic {topic!r}: is `trace` set in the clients?"
            )
        rows = [{"event": type(record).__name__, **asdict(record)} for record in found]
        columns = ("event", "time_ms", "group", "took_ms", "is_success", "retries", "store_host")
        out.table(f"trace of message {identifier}", columns, rows)


app.command("send", epilog=send.EPILOG)(send.command)
app.command("tail", epilog=tail.EPILOG)(tail.command)
