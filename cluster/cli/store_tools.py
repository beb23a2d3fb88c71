"""`raymq store verify`, `rebuild` and `info`: a whole store on this machine's disk.

The exit code is 0 when the store is sound, 1 when something is damaged or failed, and 2 when there is no
store that could be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cluster.cli.console import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED, Output, tell
from cluster.cli.entry import interruptible
from cluster.cli.options import AsJson, DryRun, Store, examples

if TYPE_CHECKING:
    from store.tools.info import StoreInfo
    from store.tools.verify import Report

LogPaths = Annotated[
    list[Path] | None,
    typer.Option("--commit-log", help="Where the log's files are, if not in it; may be given again."),
]
DelayLevel = Annotated[
    str | None,
    typer.Option(
        "--message-delay-level", metavar="LEVELS", help="The broker's delay levels, if other than RocketMQ's."
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
        bool, typer.Option("--lock", help="Keep writers out meanwhile; a store in use is refused.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare all of a store with its log, and list what is damaged: file, byte and reason.

    Checks the log's records with their CRC, and against them the consume queues, the index files, the
    checkpoint and what was noted; also RocketMQ's JSON files. Only reads, and takes no lock without --lock.
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
    index: Annotated[bool, typer.Option(help="Build the index too.")] = True,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the consume queues and the index again from the CommitLog, which is never touched.

    Refuses a store in use. When it is interrupted, even by a kill, call it again: it goes on where it was.
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
        again="call it again: it goes on where it was",
    )
    size = done.log_end - done.log_begin
    start = "from the start" if done.resumed_from is None else f"going on from {done.resumed_from:,}"
    Output(as_json=as_json).done(
        f"{path}: {done.records:,} records dispatched into {done.queues:,} queues and {done.index_files:,} "
        f"index files, {start}; {done.holes:,} holes"
        if done.is_done
        else f"{path}: {done.queues:,} queues and {done.index_files:,} index files would be made "
        f"again out of {size:,} bytes of log, {start}",
        **done.as_json(),
    )


INFO_EXAMPLES = examples(
    "raymq store info ~/.raymq/DefaultCluster/store/broker-a-0",
    "raymq store info /data/rocketmq/store --json",
)


def info(path: Store, log_paths: LogPaths = None, as_json: AsJson = False) -> None:
    """Show whose store it is, where its log begins and ends, its files, topics, offsets and times.

    Reads notes and the ends of files only, so it is quick on large stores; it takes no lock.
    """
    from store.tools.info import store_info

    found = _run(lambda _: store_info(path, log_paths=log_paths or ()), "looking")
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
        "ended": "in order" if found.closed_cleanly else "not in order, or it is open",
        "log": f"{found.log_begin:,} to {found.log_end:,}",
        "last_ms": found.last_ms or None,
        "rebuild": "interrupted: `raymq store rebuild` goes on with it" if found.rebuild_is_open else None,
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
        f"{report.root}: {'sound' if report.is_valid else 'DAMAGED'}; {counts['records']:,} records in "
        f"{counts['logBytes']:,} bytes of log, {counts['queues']:,} queues, "
        f"{counts['indexEntries']:,} index entries, {counts['holes']:,} holes"
    )


def _run(work: Callable[[Progress], Result], what: str, again: str = "nothing was changed") -> Result:
    """Do the work under a progress bar; a store that cannot be worked on ends the command with its reason."""
    try:
        with told(), interruptible(), _bar(what) as progress:
            return work(progress)
    except KeyboardInterrupt:
        tell(f"interrupted; {again}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def told() -> Iterator[None]:
    """End the command with its reason where a store, or a file of it, cannot be worked on."""
    from store.disk.files import explain
    from store.store_errors import StoreError

    try:
        yield
    except (StoreError, ValueError) as error:
        tell(f"raymq store: {error}")
        raise typer.Exit(EXIT_REFUSED) from error
    except OSError as error:
        tell(f"raymq store: {error.filename or 'a file'}: {explain(error)}")
        raise typer.Exit(EXIT_FAILED) from error


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    """A bar on standard error, where a terminal reads it."""
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
