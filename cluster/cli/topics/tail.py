"""`raymq tail`: prints a topic's messages as they arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import EXIT_INTERRUPTED, Output, Refusal, exiting_on_errors
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, examples
from cluster.cli.topics.message_view import as_line
from cluster.views.messages import message_json
from cluster.views.times import parse_position

if TYPE_CHECKING:
    from cluster.client import MessageQueue, MessageSelector, PullConsumer

EPILOG = examples(
    "raymq tail orders",
    "raymq tail orders --from earliest --tags 'fruit || vegetables' --max 100",
    "raymq tail orders --sql \"amount > 10 AND region IN ('x', 'y')\"",
    "raymq tail orders --from -15m --json | jq .body",
    "raymq tail orders --last 5 --no-follow",
)
POLL_MS = 200


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
    limit: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this number of messages.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Wait for new messages at the end.")] = True,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Print a topic's messages as they arrive. No offsets are committed."""

    from cluster.client import ConsumerConfig, MessageSelector, PullConsumer

    with exiting_on_errors():
        place = parse_position(begin)
        if last and place != "latest":
            raise Refusal("--last cannot be combined with --from")
        if sql is not None and tags != "*":
            raise Refusal("--sql cannot be combined with --tags: use TAGS in the expression")
        selector = MessageSelector.by_tag(tags) if sql is None else MessageSelector.by_sql(sql)
        config = ConsumerConfig(
            nameservers=nameserver,
            group="TOOLS_CONSUMER",
            auto_commit=False,
            consume_from="earliest" if place == "earliest" else "latest",
        )
        out = Output(as_json=as_json)
        consumer = PullConsumer(config=config)
        try:
            with consumer:
                ends = _begin(consumer, topic, place, last, selector)
                _print(consumer, out, limit, None if follow else ends)
        except KeyboardInterrupt:
            if limit is not None or not follow:  # without them, Ctrl-C is the normal end
                raise typer.Exit(EXIT_INTERRUPTED) from None


def _begin(
    consumer: PullConsumer, topic: str, place: str | int, last: int, selector: MessageSelector
) -> dict[MessageQueue, int]:
    """Assign the topic's queues, seek to the start position, and return the queues' current end offsets."""
    queues = consumer.queues(topic)
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
    consumer: PullConsumer, out: Output, limit: int | None, ends: dict[MessageQueue, int] | None
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
            if ends is not None and message.queue_offset >= ends[queue]:
                continue
            if out.is_json:
                out.json(message_json(message))
            else:
                out.line(as_line(message))
            printed += 1
        out.console.file.flush()
