"""`raymq store verify`, `rebuild` and `info`: commands on a whole store on this machine's disk.

The exit code is 0 if the store is valid, 1 if it is damaged or the command failed, and 2 if the directory has
no readable store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cluster.cli.console import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, Output, print_error
from cluster.cli.options import AsJson, DryRun, Store, examples
from cluster.interrupts import interruptible

if TYPE_CHECKING:
    from store.tools.info import StoreInfo
    from store.tools.verify import Report

LogPaths = Annotated[
    list[Path] | None,
    typer.Option("--commit-log", help="CommitLog directory outside of the store; repeat for several."),
]
DelayLevel = Annotated[
    str | None,
    typer.Option(
        "--message-delay-level", metavar="LEVELS", help="The broker's delay levels, if not the default."
    ),
]
Result = TypeVar("Result")
Progress = Callable[[int, int], None]

VERIFY_EXAMPLES = examples(
    "raymq store verify ~/.raymq/DefaultCluster/store/broker-a-0",
    "raymq store verify /data/rocketmq/store --json",
)


def verify(
    path: Store,
    log_paths: LogPaths = None,
    delay_level: DelayLevel = None,
    lock: Annotated[
        bool, typer.Option("--lock", help="Lock the store meanwhile; fails if it is in use.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a store and list all damage with file, byte position and reason.

    Checks the CRC of the log's records, then consume queues, index files, checkpoint and metadata against the
    records, and RocketMQ's JSON files. Writes nothing, and takes no lock without --lock.
    """
    from store.tools.verify import verify as run

    report = _run(
        lambda progress: run(
            path,
            log_paths=log_paths or (),
            message_delay_level=delay_level,
            is_locking=lock,
            progress=progress,
        ),
        "verifying",
    )
    output = Output(as_json=as_json)
    if output.is_json:
        output.json(report.as_json())
    else:
        _show(report, output)
    raise typer.Exit(0 if report.is_valid else EXIT_FAILED)


REBUILD_EXAMPLES = examples(
    "raymq store rebuild ~/.raymq/DefaultCluster/store/broker-a-0 --dry-run",
    "raymq store rebuild /data/rocketmq/store",
)


def rebuild(
    path: Store,
    log_paths: LogPaths = None,
    delay_level: DelayLevel = None,
    index: Annotated[bool, typer.Option(help="Also rebuild the index.")] = True,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the consume queues and the index from the CommitLog, which is not changed.

    Fails if the store is in use. After an interruption, run the command again to resume.
    """
    from store.tools.rebuild import rebuild as run

    done = _run(
        lambda progress: run(
            path,
            log_paths=log_paths or (),
            message_delay_level=delay_level,
            with_index=index,
            dry_run=dry_run,
            progress=progress,
        ),
        "rebuilding",
        again="run the command again to resume",
    )
    size = done.log_end - done.log_begin
    start = "from the start" if done.resumed_from is None else f"resumed from {done.resumed_from:,}"
    Output(as_json=as_json).done(
        f"{path}: {done.records:,} records dispatched into {done.queues:,} queues and {done.index_files:,} "
        f"index files, {start}; {done.holes:,} holes"
        if done.is_done
        else f"{path}: {done.queues:,} queues and {done.index_files:,} index files would be rebuilt "
        f"from {size:,} bytes of log, {start}",
        **done.as_json(),
    )


INFO_EXAMPLES = examples(
    "raymq store info ~/.raymq/DefaultCluster/store/broker-a-0",
    "raymq store info /data/rocketmq/store --json",
)


def info(path: Store, log_paths: LogPaths = None, as_json: AsJson = False) -> None:
    """Show a store's owner, log range, files, topics, offsets and times.

    Reads only metadata and the ends of files, so it is fast on large stores; takes no lock.
    """
    from store.tools.info import store_info

    found = _run(lambda _: store_info(path, log_paths=log_paths or ()), "reading")
    output = Output(as_json=as_json)
    if output.is_json:
        output.json(found.as_json())
        return
    _show_info(found, output)


def _show_info(found: StoreInfo, output: Output) -> None:
    content = found.as_json()
    shown = {
        "store": content["store"],
        "made by": content["madeBy"],
        "broker": ""
        if not content["broker"]
        else f"{content['broker']}, replica {content['replica']}, of {content['cluster']}",
        "epoch": content["epoch"],
        "open": "no" if found.writer_pid is None else f"by process {found.writer_pid}",
        "closed cleanly": "yes" if found.closed_cleanly else "no, or it is open",
        "log": f"{found.log_begin:,} to {found.log_end:,}",
        "not confirmed": f"{found.unconfirmed_bytes:,} bytes" if found.unconfirmed_bytes else None,
        "last_ms": found.last_ms or None,
        "rebuild": "interrupted; `raymq store rebuild` resumes it" if found.rebuild_is_open else None,
        "holes known": found.known_holes,
        "damage": found.damage,
    }
    output.fields(shown)
    rows = [{"kind": kind} | row for kind, row in content["files"].items()]
    output.table("files", ("kind", "files", "bytes", "diskBytes"), rows)
    columns = ("topic", "queues", "messages", "min_offset", "max_offset", "first_ms", "last_ms")
    output.table("topics", columns, found.topics())


def _show(report: Report, output: Output) -> None:
    if report.findings:
        columns = ("kind", "path", "place", "bytes", "reason")
        output.table("damage", columns, [finding.as_json() for finding in report.findings])
    if report.omitted:
        output.line(f"and {report.omitted:,} more")
    for note in report.notes:
        output.line(f"note: {note}")
    counts = report.counts
    output.line(
        f"{report.root}: {'valid' if report.is_valid else 'DAMAGED'}; {counts['records']:,} records in "
        f"{counts['logBytes']:,} bytes of log, {counts['queues']:,} queues, "
        f"{counts['indexEntries']:,} index entries, {counts['holes']:,} holes"
    )


def _run(work: Callable[[Progress], Result], what: str, again: str = "nothing was changed") -> Result:
    """Run `work` with a progress bar; print errors of the store and exit."""
    try:
        with exiting_on_store_errors(), interruptible(), _bar(what) as progress:
            return work(progress)
    except KeyboardInterrupt:
        print_error(f"interrupted; {again}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def exiting_on_store_errors(command: str = "raymq store") -> Iterator[None]:
    """Print an error of the store or its files raised inside, after `command`, and exit with its code."""
    from store.disk.files import explain
    from store.store_errors import StoreError

    try:
        yield
    except (StoreError, ValueError) as error:
        print_error(f"{command}: {error}")
        raise typer.Exit(EXIT_REFUSED) from error
    except OSError as error:
        print_error(f"{command}: {error.filename or 'a file'}: {explain(error)}")
        raise typer.Exit(EXIT_FAILED) from error


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    """Yield the update function of a progress bar on standard error, shown on terminals only."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, transient=True, disable=not errors.is_terminal
    ) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
