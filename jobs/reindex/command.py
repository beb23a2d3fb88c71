"""`raymq reindex`, also `python -m jobs.reindex`: re-index jobs on Spark.

The exit code is 0 if the job succeeded, 1 if it failed or a check found differences, and 2 if the arguments
are invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from store.tools.reindex.run import Reindexed
    from store.tools.verify.findings import Finding

EXIT_FAILED, EXIT_REFUSED = 1, 2

app = typer.Typer(
    no_args_is_help=True,
    help="Re-index with Spark: recreate what is derived from the CommitLog.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Executors = Annotated[
    int,
    typer.Option(
        "--executors",
        min=0,
        help="RayDP executors, of two cores each, on the Ray cluster of this job; 0: local threads.",
    ),
]


@app.callback()
def _group() -> None:
    """Serve as the group of the commands; with one command only, typer would omit its name."""


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(lines)


@app.command(
    epilog=_examples(
        "raymq reindex store ~/.raymq/DefaultCluster/store/broker-a-0 --check",
        "python -m jobs.reindex store /data/rocketmq/store",
        "ray job submit --working-dir . -- python -m jobs.reindex store /data/broker-a-0 --executors 2",
    )
)
def store(
    path: Annotated[Path, typer.Argument(help="Store directory, the parent of `commitlog`.")],
    check: Annotated[
        bool, typer.Option("--check", help="Compare the files with the log instead of replacing them.")
    ] = False,
    log_paths: Annotated[
        list[Path] | None,
        typer.Option("--commit-log", help="CommitLog directory outside of the store; repeat for several."),
    ] = None,
    delay_level: Annotated[
        str | None,
        typer.Option(
            "--message-delay-level", metavar="LEVELS", help="The broker's delay levels, if not the default."
        ),
    ] = None,
    index: Annotated[bool, typer.Option(help="Also re-index the index files.")] = True,
    executors: Executors = 0,
    as_json: AsJson = False,
) -> None:
    """Recreate the consume queues and index files of a stopped store from its CommitLog, in parallel.

    The files are written into the directory raymq.reindex of the store, and put in place by rename. The log
    is not changed. Damaged records are listed with file and byte position, and left out. Fails if a broker
    has the store open. After an interruption, a broker can open the store, and the command can run again.
    """
    from jobs.reindex.offline import reindex_store

    with _exiting_on_errors(), _session(executors) as spark:
        done = reindex_store(
            spark,
            path,
            check=check,
            log_paths=log_paths or (),
            message_delay_level=delay_level,
            with_index=index,
        )
    if as_json:
        typer.echo(json.dumps(done.as_json(), ensure_ascii=False))
    else:
        _show(done)
    raise typer.Exit(EXIT_FAILED if done.differences else 0)


def _show(done: Reindexed) -> None:
    for finding in done.damage:
        typer.echo(f"damaged: {_line(finding)}")
    for finding in done.differences:
        typer.echo(f"differs: {_line(finding)}")
    if done.omitted:
        typer.echo(f"and {done.omitted:,} more differences")
    for note in done.notes:
        typer.echo(f"note: {note}")
    size = done.log_end - done.log_begin
    log = f"{done.records:,} records in {size:,} bytes of log, {len(done.damage):,} damaged ranges"
    if done.is_check:
        verdict = "DIFFERENT" if done.differences else "equal"
        typer.echo(f"{done.store}: {verdict}; {done.queues:,} queues compared; {log}")
    else:
        typer.echo(
            f"{done.store}: {done.queues:,} queues and {done.index_files:,} index files written; {log}"
        )


def _line(finding: Finding) -> str:
    place = f" (at byte {finding.place}, {finding.size_bytes} bytes)" if finding.place >= 0 else ""
    return f"{finding.path}: {finding.reason}{place}"


@contextmanager
def _exiting_on_errors() -> Iterator[None]:
    """Print an error of a job raised inside as one line, and exit with its code."""
    from cluster.client.errors import ClientError
    from jobs.job_errors import JobError, OptionInvalid

    try:
        yield
    except (JobError, ClientError) as error:
        typer.echo(f"raymq reindex: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED if isinstance(error, OptionInvalid) else EXIT_FAILED) from error


@contextmanager
def _session(executors: int) -> Iterator[SparkSession]:
    """Yield a local Spark session, or a RayDP session with `executors` executors if it is not 0."""
    import os

    from jobs.session import local_session, raydp_session

    if executors:
        import ray

        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR")
        with raydp_session("raymq-reindex", executors) as spark:
            yield spark
        return
    with local_session("raymq-reindex", os.cpu_count() or 1) as spark:
        yield spark
