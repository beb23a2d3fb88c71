"""`raymq send`: sends messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import Output, Refusal, exiting_on_errors, is_interactive, parse_pairs
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, argument_bytes, examples
from cluster.cli.topics.message_view import decode_line
from cluster.counted import counted
from cluster.views.messages import place_of
from cluster.views.offsets import parse_queue
from store.common.text_file import without_mark
from store.message.lite_topics import NAMES, is_valid_name

if TYPE_CHECKING:
    from cluster.client import Message, Producer, SendResult

EPILOG = examples(
    "raymq send orders 'four apples' --key order-1 --tags fruit",
    "raymq send orders --file picture.png --property type=png",
    "tail -f access.log | raymq send access",
    "raymq tail orders --from first --no-follow --json | raymq send orders-2 --json-lines",
)
Keys = Annotated[list[str] | None, typer.Option("--key", "-k", help="Message key; repeat for several.")]
Priority = Annotated[
    int | None,
    typer.Option(
        min=0, show_default=False, help="Priority in a topic of type PRIORITY; larger ones are first."
    ),
]
ShardingKey = Annotated[
    str | None, typer.Option(help="Messages with the same sharding key go to one queue, in order.")
]


def _checked(lite_topic: str | None) -> str | None:
    if lite_topic is not None and not is_valid_name(lite_topic):
        raise typer.BadParameter(f"{lite_topic!r} is invalid: {NAMES}")
    return lite_topic


LiteTopic = Annotated[str | None, typer.Option(callback=_checked, help="Lite topic in a topic of type LITE.")]
# Sends in flight before the command waits for the first one.
IN_FLIGHT = 1000


def command(
    topic: Annotated[str, typer.Argument(help="Topic.", show_default=False)],
    body: Annotated[
        str | None,
        typer.Argument(
            help="Body (default: each non-empty line of standard input is a message).",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Send the content of this file."),
    ] = None,
    key: Keys = None,
    tags: Annotated[str | None, typer.Option("--tags", "-t", help="Tag.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property; repeat for several."),
    ] = None,
    delay_level: Annotated[int, typer.Option(min=0, help="Delay level, 1 to 18.")] = 0,
    priority: Priority = None,
    lite_topic: LiteTopic = None,
    sharding_key: ShardingKey = None,
    queue: Annotated[str | None, typer.Option(metavar="BROKER:QUEUE", help="Send to this queue.")] = None,
    json_lines: Annotated[
        bool,
        typer.Option("--json-lines", help="Input lines are JSON objects with body, keys, tags, properties."),
    ] = False,
    group: Annotated[str, typer.Option(help="Producer group.")] = "raymq-send",
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Send a message, a file, or lines from standard input."""

    from cluster.client import Message, Producer

    with exiting_on_errors():
        common: dict[str, Any] = {
            "tags": tags,
            "keys": key or None,
            "properties": parse_pairs(properties or [], "--property"),
            "delay_level": delay_level,
            "priority": priority,
            "lite_topic": lite_topic,
        }
        where: dict[str, Any] = {
            "sharding_key": sharding_key,
            "queue": parse_queue(queue, topic) if queue is not None else None,
        }
        out = Output(as_json=as_json)
        if body is not None and file is not None:
            raise Refusal("a body and --file exclude each other")
        with Producer(nameserver, group=group) as producer:
            if body is None and file is None:
                _send_lines(producer, _messages(topic, common, json_lines=json_lines), where, out)
                return
            content = file.read_bytes() if file is not None else argument_bytes(body or "")
            result = producer.send(Message(topic, content, **common), **where)
            where_it_is = f"{result.queue.broker_name}:{result.queue.queue_id}@{result.queue_offset}"
            out.done(f"{result.status.name} {where_it_is}", **_facts(result))


def _messages(topic: str, common: dict[str, Any], *, json_lines: bool) -> Iterator[Message]:
    from cluster.client import Message

    if sys.stdin is None:
        raise Refusal("standard input is closed: give a body or --file")
    if sys.stdin.isatty():
        typer.echo("enter one message per line; Ctrl-D ends the input", err=True)
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = (without_mark(line) if number == 1 else line).rstrip(b"\r\n")
        if not text:  # RocketMQ refuses messages without a body
            continue
        if json_lines:
            yield _from_json(topic, text, number, common)
        else:
            yield Message(topic, text, **common)


def _from_json(topic: str, line: bytes, number: int, common: dict[str, Any]) -> Message:
    """Decode a line in the format of `raymq tail --json`; all fields but the body are optional."""
    from cluster.client import Message

    own = decode_line(line, number)
    properties = {**own["properties"], **common["properties"]}
    return Message(topic, **{**common, **own, "properties": properties})


def _send_lines(producer: Producer, messages: Iterator[Message], where: dict[str, Any], out: Output) -> None:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    errors = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} messages sent"))
    is_typed = is_interactive()
    shows = errors.is_terminal and not is_typed
    tally = _Tally()
    try:
        with Progress(*columns, console=errors, transient=True, disable=not shows) as progress:
            task = progress.add_task("", total=None)
            # On a terminal the next line takes long, so send each line immediately.
            while tally.take(producer, messages, where, 1 if is_typed else IN_FLIGHT):
                progress.update(task, completed=tally.sent)
    finally:
        queues = dict(sorted(tally.queues.items()))
        out.done(f"{counted(tally.sent, 'message')} sent", sent=tally.sent, queues=queues)


class _Tally:
    """Counts sent messages, including those before an error."""

    def __init__(self) -> None:
        self.sent = 0
        self.queues: dict[str, int] = {}

    def take(self, producer: Producer, messages: Iterator[Message], where: dict[str, Any], limit: int) -> int:
        """Send up to `limit` messages, wait for all of them and return their number.

        Raises the first error after all results are counted.
        """
        from cluster.client import ClientError

        futures: list[Future[SendResult]] = []
        errors: list[Exception] = []
        try:
            for message in islice(messages, limit):
                futures.append(producer.send_async(message, **where))  # noqa: PERF401 - keeps the futures if the input fails
        finally:
            for future in futures:
                try:
                    self._count(future.result())
                except ClientError as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return len(futures)

    def _count(self, result: SendResult) -> None:
        name = f"{result.queue.broker_name}:{result.queue.queue_id}"
        self.queues[name] = self.queues.get(name, 0) + 1
        self.sent += 1


def _facts(result: SendResult) -> dict[str, Any]:
    return {
        "status": result.status.name,
        **place_of(result.queue),
        "offset": result.queue_offset,
        "id": result.offset_msg_id,
        "unique_key": result.msg_id,
    }
