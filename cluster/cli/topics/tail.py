"""`raymq tail`: prints a topic's messages as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import EXIT_INTERRUPTED, Output, Refusal, exiting_on_errors, open_admin
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, examples
from cluster.cli.topics.message_view import as_line
from cluster.views.messages import message_json
from cluster.views.offsets import offsets_at
from cluster.views.times import parse_position

if TYPE_CHECKING:
    from cluster.client import MessageExt, MessageQueue, MessageSelector, PullConsumer
    from cluster.views.scan import Keep

EPILOG = examples(
    "raymq tail orders",
    "raymq tail orders --from earliest --tags 'fruit || vegetables' --max 100",
    "raymq tail orders --sql \"amount > 10 AND region IN ('x', 'y')\"",
    "raymq tail orders --from -15m --json | jq .body",
    "raymq tail orders --last 5 --no-follow",
    "raymq tail orders --from -1d --until -1h --key order-1 --contains refund",
)
POLL_MS = 200
A_YEAR_MS = 365 * 86_400_000


def command(
    topic: Annotated[str, typer.Argument(help="Topic.", show_default=False)],
    begin: Annotated[
        str, typer.Option("--from", help="latest (only new messages), earliest, a time, or -15m.")
    ] = "latest",
    last: Annotated[int, typer.Option(min=0, help="Start with the last messages of each queue.")] = 0,
    tags: Annotated[str, typer.Option(help="Tag expression: `a || b`.")] = "*",
    sql: Annotated[
        str | None, typer.Option(help="SQL92 expression on the properties: `a > 10`.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="A key, or the id of the producer.", show_default=False)
    ] = None,
    contains: Annotated[str | None, typer.Option(help="A text in the body.", show_default=False)] = None,
    until: Annotated[
        str | None,
        typer.Option(help="End before what is stored at this time; implies --no-follow.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this number of messages.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for new messages at the end.")] = True,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Print a topic's messages as they arrive. No offsets are committed.

    With --max and --no-follow it searches as the console does, and prints the messages by store time.
    """

    from cluster.client import ConsumerConfig, MessageSelector, PullConsumer
    from cluster.views.scan import matcher

    with exiting_on_errors():
        place = _place(begin, last, until)
        keep = matcher(tags=tags, sql=sql, key=key, contains=contains)
        out, is_ended = Output(as_json=as_json), not follow or until is not None
        if is_ended and limit is not None:
            _search(nameserver, topic, (begin, until, last), keep, limit, out)
            return
        selector = MessageSelector.by_tag(tags) if sql is None else MessageSelector.by_sql(sql)
        config = ConsumerConfig(
            nameservers=nameserver,
            group="TOOLS_CONSUMER",
            auto_commit=False,
            consume_from="earliest" if place == "earliest" else "latest",
        )
        consumer = PullConsumer(config=config)
        try:
            with consumer:
                ends: Mapping[MessageQueue, int] | None = None
                if until is not None:
                    with open_admin(nameserver, as_json=False) as (admin, _):
                        ends = offsets_at(admin, topic, parse_position(until))
                ends = _begin(consumer, topic, place, last, selector, ends)
                _print(consumer, out, limit, ends if is_ended else None, keep)
        except KeyboardInterrupt:
            if limit is not None or is_ended:  # without them, Ctrl-C is the normal end
                raise typer.Exit(EXIT_INTERRUPTED) from None


def _place(begin: str, last: int, until: str | None) -> str | int:
    """Return the position of `begin`. Raises Refusal if it does not fit to the other options."""
    place = parse_position(begin)
    if last and place != "latest":
        raise Refusal("--last cannot be combined with --from")
    if until is not None and not last and place == "latest":
        raise Refusal("--until needs a begin before it: give --from or --last")
    return place


def _search(
    nameserver: str, topic: str, span: tuple[str, str | None, int], keep: Keep, limit: int, out: Output
) -> None:
    """Print what a search of the console finds, without its limits of messages read and time."""
    from cluster.views.scan import ScanLimits, scan, search_range
    from store.common.clock import SystemClock

    begin, until, last = span
    since = None if last or parse_position(begin) == "latest" else begin
    with open_admin(nameserver, as_json=False) as (admin, _):
        begins, ends = search_range(admin, topic, since, until, last)
        found = scan(admin, begins, ends, keep, ScanLimits(limit, sys.maxsize, A_YEAR_MS), SystemClock())
    for message in found.messages:
        _print_one(out, message)


def _print_one(out: Output, message: MessageExt) -> None:
    if out.is_json:
        out.json(message_json(message))
    else:
        out.line(as_line(message))


def _begin(
    consumer: PullConsumer,
    topic: str,
    place: str | int,
    last: int,
    selector: MessageSelector,
    ends: Mapping[MessageQueue, int] | None,
) -> Mapping[MessageQueue, int]:
    """Assign the topic's queues, seek to the start position; return the ends, by default the present."""
    queues = consumer.queues(topic)
    if ends is None:
        ends = {queue: consumer.end_offset(queue) for queue in queues}
    begins = {queue: consumer.beginning_offset(queue) for queue in queues}
    consumer.assign(queues, selector)
    if isinstance(place, int):
        consumer.seek_to_time(place)
    elif place == "earliest":
        consumer.seek_to_beginning()
    else:
        for queue in queues:
            consumer.seek(queue, max(ends[queue] - last, begins[queue]))
    return ends


def _print(
    consumer: PullConsumer,
    out: Output,
    limit: int | None,
    ends: Mapping[MessageQueue, int] | None,
    keep: Keep,
) -> None:
    """Print messages until `limit` is reached, or until all queues are read up to the offsets in `ends`."""
    from cluster.client import MessageQueue

    printed = 0
    while limit is None or printed < limit:
        if ends is not None and all(consumer.position(queue) >= end for queue, end in ends.items()):
            return
        wanted = 500 if limit is None else min(500, limit - printed)
        for message in consumer.poll(wanted, POLL_MS):
            queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
            if (ends is not None and message.queue_offset >= ends[queue]) or not keep(message):
                continue
            _print_one(out, message)
            printed += 1
        out.console.file.flush()
