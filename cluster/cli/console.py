"""Output, errors and argument parsing shared by all commands.

Results are tables on a terminal and JSON in a pipe or with --json. An error is one line on standard error.
The exit code is 1 if the command failed and 2 if its arguments are invalid.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import typer

from cluster.cli.tables import HEADINGS, Row, escaped_text, fitted, shown
from cluster.interrupts import interruptible

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.client import Admin
    from cluster.control.launch_report import Reporter

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130


class Failed(Exception):
    """The command failed; the message has the reason and the remedy."""


class Refusal(Failed):
    """The command's arguments are invalid."""


class Output:
    """Writes the result of a command as a table or as JSON."""

    def __init__(self, *, as_json: bool, out: TextIO | None = None) -> None:
        from rich.console import Console

        self.console: Console = Console(file=out)
        self.is_json = as_json or not self.console.is_terminal

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Row], spared: Sequence[str] = ()
    ) -> None:
        """Print rows as a table of `columns`, or as a JSON list of objects with all of their fields.

        Columns in `spared` are omitted, in this order, if the terminal is too narrow.
        """
        rows = list(rows)
        if self.is_json:
            self.json(rows)
            return
        self.console.print(escaped_text(title if rows else f"{title}: none"), style="bold")
        if rows:
            self.console.print(fitted(columns, rows, self.console.width, spared))

    def fields(self, content: Row) -> None:
        """Print the fields of one object, one per line, or as a JSON object."""
        if self.is_json:
            self.json(content)
            return
        width = max((len(HEADINGS.get(name, name)) for name in content), default=0)
        for name, value in content.items():
            self.line(f"{HEADINGS.get(name, name):{width}}  {shown(name, value)}")

    def json(self, value: object) -> None:
        """Write a value as one line of JSON."""
        self.console.file.write(json_line(value, self.console.encoding))

    def line(self, text: str) -> None:
        """Print a line without formatting; control characters are escaped."""
        self.console.print(escaped_text(text), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line about a list; beside JSON, on standard error if that is a terminal."""
        from rich.console import Console

        if not self.is_json:
            self.line(text)
        elif sys.stderr is not None and sys.stderr.isatty():
            with suppress(OSError):
                Console(stderr=True).print(escaped_text(text), soft_wrap=True)

    def done(self, what: str, **facts: Any) -> None:
        """Report a completed action: print the sentence `what`, or `facts` as a JSON object.

        Raises Failed with the sentence if it cannot be written, because the action is not undone.
        """
        try:
            if self.is_json:
                self.json(facts)
            else:
                self.line(what)
            self.console.file.flush()
        except OSError as error:
            discard_output()
            raise Failed(f"{what}; but standard output failed: {error.strerror}") from error


def json_line(value: object, encoding: str = "utf-8") -> str:
    """Return `value` as a line of JSON; invisible characters are escaped, and those `encoding` may lack."""
    text = json.dumps(value, ensure_ascii=not encoding.lower().startswith("utf"), default=str)
    if not text.isprintable():
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return f"{text}\n"


@contextmanager
def open_admin(nameserver: str, *, as_json: bool) -> Iterator[tuple[Admin, Output]]:
    """Yield an `Admin` and an `Output`; print errors and exit with their code."""
    from cluster.client import Admin

    with exiting_on_errors(), Admin(nameserver) as admin:
        yield admin, Output(as_json=as_json)


@contextmanager
def exiting_on_errors() -> Iterator[None]:
    """Print an error raised inside as one line without a traceback, and exit with its code."""
    from cluster.client.errors import ClientError, ConfigInvalid

    try:
        with interruptible():
            yield
    except (Refusal, ConfigInvalid) as error:
        print_error(str(error))
        raise typer.Exit(EXIT_REFUSED) from error
    except (Failed, ClientError) as error:
        print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        discard_output()


@contextmanager
def writing_output() -> Iterator[None]:
    """Exit with one line if standard output is closed or fails, also when it is flushed at the end."""
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)  # otherwise the next file or socket would be standard input
    if sys.stdout is None:
        print_error("standard output is closed: redirect it to a file or to /dev/null")
        raise SystemExit(EXIT_FAILED)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        print_error(f"{error.filename or 'standard output'}: {error.strerror or error}")
        raise SystemExit(EXIT_FAILED) from None


def discard_output() -> None:
    """Discard all further output, after the reader has closed the pipe (`| head`)."""
    with suppress(ValueError, OSError):  # not a file, in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def exiting_on_launch_errors(*, reads_only: bool = False) -> Iterator[None]:
    """Print errors of `cluster.launch` and Failed raised inside, and exit with their code.

    With `reads_only`, Ctrl-C exits without a message, because no change can be incomplete.
    """
    from rich.console import Console

    from cluster.launch import exiting_on_failures as launch_errors

    with launch_errors(Console(stderr=True)):
        try:
            with interruptible():
                yield
        except Failed as error:
            print_error(str(error))
            raise typer.Exit(EXIT_REFUSED if isinstance(error, Refusal) else EXIT_FAILED) from error
        except KeyboardInterrupt:
            if reads_only:
                raise typer.Exit(EXIT_INTERRUPTED) from None
            raise


@contextmanager
def reporting(*, dry_run: bool) -> Iterator[Reporter]:
    """Yield a report of progress for the terminal; of a dry run into a pipe, write it as JSON at the end."""
    from rich.console import Console

    from cluster.control.launch_report import ConsoleReport, PlanReport

    console = Console()
    if not dry_run or console.is_terminal:
        yield ConsoleReport(console)
        return
    collected = PlanReport()
    yield collected
    console.file.write(json_line(collected.as_json(), console.encoding))


def print_error(text: str) -> None:
    """Print an error on standard error, joined to one line."""
    from rich.console import Console

    line = " ".join(text.splitlines())
    with suppress(OSError):
        Console(stderr=True).print(escaped_text(line), style="red", soft_wrap=True)


def confirmed(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless the command has `--yes`.

    Raises Failed if the user declines, and Refusal if standard input is not a terminal: a script that lacks
    `--yes` must not change what its author would have been asked about.
    """
    if yes:
        return
    if not is_interactive():
        raise Refusal(f"{question} Standard input is not a terminal: confirm with --yes")
    try:
        is_confirmed = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        is_confirmed = False
    if not is_confirmed:
        raise Failed("nothing was changed")


def is_interactive() -> bool:
    """Return True if standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"


def parse_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """Parse a list of `NAME=VALUE` texts. Raises Refusal."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise Refusal(f"{option} {each!r} is invalid: use NAME=VALUE")
        found[name.strip()] = value
    return found
