"""Options, error handling and output that the commands of `jobs` share: reindex, export and import."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Committed = Annotated[
    bool, typer.Option("--committed", help="Skip messages that write_queue did not commit.")
]
Nameserver = Annotated[
    str | None,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="RAYMQ_NAMESERVERS",
        metavar="HOST:PORT[;…]",
        help="The cluster's nameservers.",
    ),
]


def job_examples(*lines: str) -> str:
    """Return the epilog of a command's help page with one example per line."""
    return "Examples:\n\n" + "\n\n".join(lines)


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on the error output; yield the function that updates it with (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def exiting_on_job_errors() -> Iterator[None]:
    """Print an error raised inside without a traceback, and exit with its code."""
    from cluster.client import ClientError
    from jobs.job_errors import ArchiveInvalid, JobError, OptionInvalid

    try:
        yield
    except (ClientError, JobError) as error:
        typer.echo(str(error), err=True)
        is_refusal = isinstance(error, ArchiveInvalid | OptionInvalid)
        raise typer.Exit(EXIT_REFUSED if is_refusal else EXIT_FAILED) from error
    except OSError as error:
        typer.echo(f"{error.filename or 'the archive'}: {error.strerror}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted; run the command again to resume", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from error


def print_result(result: DataclassInstance, line: str, *, as_json: bool) -> None:
    """Print a result as JSON, or `line`."""
    typer.echo(json.dumps(asdict(result)) if as_json else line)
