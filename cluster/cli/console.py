"""What the commands share: how a cluster is named, how answers are shown, and how a command ends.

On a terminal an answer is a table, in a pipe (or with --json) it is JSON; what goes wrong is one line on
standard error. The exit code is 1 when something failed and 2 when it was asked for wrongly.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer

from cluster.cli.entry import interruptible
from cluster.cli.tables import HEADINGS, Row, fitted, shown

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.client import Admin

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

_EARLIEST = ("earliest", "first", "beginning", "consume_from_first_offset")
_LATEST = ("latest", "last", "end", "consume_from_last_offset")


class Failed(Exception):
    """The command cannot do what it should; says why and what to do."""


class Refusal(Failed):
    """The command was asked for wrongly."""


class Output:
    """Where a command's answer goes."""

    def __init__(self, *, as_json: bool, out: TextIO | None = None) -> None:
        from rich.console import Console

        self.console: Console = Console(file=out)
        self.is_json = as_json or not self.console.is_terminal

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Row], spared: Sequence[str] = ()
    ) -> None:
        """Show rows; in JSON they are a list of objects with all that they hold, not the columns alone.

        `spared`: the columns that a narrow terminal does without, in the order in which they go.
        """
        rows = list(rows)
        if self.is_json:
            self.json(rows)
            return
        self.console.print(title if rows else f"{title}: none", style="bold", highlight=False, markup=False)
        if rows:
            self.console.print(fitted(columns, rows, self.console.width, spared))

    def fields(self, content: Row) -> None:
        """Show one thing: its fields, one a line, or one object."""
        if self.is_json:
            self.json(content)
            return
        width = max((len(HEADINGS.get(name, name)) for name in content), default=0)
        for name, value in content.items():
            self.line(f"{HEADINGS.get(name, name):{width}}  {shown(name, value)}")

    def json(self, value: object) -> None:
        """Write a value as one line of JSON."""
        self.console.file.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")

    def line(self, text: str) -> None:
        """Write a line as it is."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def done(self, what: str, **facts: Any) -> None:
        """Say what was done: a sentence, or an object of the facts."""
        if self.is_json:
            self.json(facts)
        else:
            self.line(what)


@contextmanager
def open_admin(nameserver: str, *, as_json: bool) -> Iterator[tuple[Admin, Output]]:
    """Give a command an admin of the cluster and its output, and exit with the error's code if it fails."""
    from cluster.client import Admin

    with exiting_on_errors(), Admin(nameserver) as admin:
        yield admin, Output(as_json=as_json)


@contextmanager
def exiting_on_errors() -> Iterator[None]:
    """Run a command's work; print an error as one line without a traceback, and exit with its code."""
    from cluster.client.errors import ClientError, ConfigInvalid

    try:
        with interruptible():
            yield
    except (Refusal, ConfigInvalid) as error:
        tell(str(error))
        raise typer.Exit(EXIT_REFUSED) from error
    except (Failed, ClientError) as error:
        tell(str(error))
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Discard all further output: its reader has closed the pipe, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def exiting_on_launch_errors(*, reads_only: bool = False) -> Iterator[None]:
    """Run work on the cluster itself, whose errors `cluster.launch` knows, and exit with the error's code.

    `reads_only`: an interrupt leaves nothing half done, so that there is nothing to say of it.
    """
    from rich.console import Console

    from cluster.launch import exiting_on_errors as launch_errors

    with launch_errors(Console(stderr=True)):
        try:
            with interruptible():
                yield
        except KeyboardInterrupt:
            if reads_only:
                raise typer.Exit(EXIT_INTERRUPTED) from None
            raise


def tell(text: str) -> None:
    """A line on standard error, also where a broker's remark has several."""
    from rich.console import Console

    line = " ".join(text.splitlines())
    Console(stderr=True).print(line, style="red", highlight=False, markup=False, soft_wrap=True)


def confirmed(question: str, *, yes: bool) -> None:
    """Ask before what destroys, where somebody is there to answer. Raises Failed on a no."""
    if yes or not is_interactive():
        return
    try:
        is_confirmed = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        is_confirmed = False
    if not is_confirmed:
        raise Failed("nothing was changed")


def is_interactive() -> bool:
    """Whether a question would be answered."""
    return sys.stdin.isatty()


def moment_ms(text: str) -> int:
    """A point in time: milliseconds since the epoch, `2026-11-21`, `2026-11-21T09:30:00`, or `-90s`, `-15m`,
    `-2h`, `-3d` from now. Raises Refusal.
    """
    import re
    import time

    given = text.strip()
    if given.isdecimal():
        return int(given)
    if given == "now":
        return int(time.time() * 1000)
    if ago := re.fullmatch(r"-(\d+)([smhd])", given):
        seconds = int(ago[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[ago[2]]
        return int((time.time() - seconds) * 1000)
    try:
        return int(datetime.fromisoformat(given).astimezone().timestamp() * 1000)
    except ValueError:
        raise Refusal(
            f"{text!r} is no time: write milliseconds since the epoch, 2026-11-21T09:30:00, or -15m"
        ) from None


def place_named(text: str) -> Literal["earliest", "latest"] | int:
    """Where in a topic: earliest, latest, or a point in time in ms; RocketMQ's and Kafka's other words for
    the ends too. Raises Refusal.
    """
    word = text.strip().lower()
    if word in _EARLIEST:
        return "earliest"
    return "latest" if word in _LATEST else moment_ms(text)


def queue_named(text: str, topic: str) -> Any:
    """The queue that `BROKER:QUEUE` names, as `broker-a:3`. Raises Refusal."""
    from cluster.client import MessageQueue

    broker, _, queue_id = text.rpartition(":")
    if not broker or not queue_id.isdecimal():
        raise Refusal(f"{text!r} names no queue: write BROKER:QUEUE, as broker-a:3")
    return MessageQueue(topic, broker, int(queue_id))


def named_values(given: Sequence[str], option: str) -> dict[str, str]:
    """What `NAME=VALUE NAME=VALUE` says. Raises Refusal."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise Refusal(f"{option} {each!r}: write NAME=VALUE")
        found[name.strip()] = value
    return found
