"""`raymq reindex`, also `python -m jobs.reindex`: re-index jobs on Spark.

The exit code is 0 if the job succeeded, 1 if it failed or a check found differences, and 2 if the arguments
are invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.console import EXIT_FAILED, AsJson, Committed, Nameserver, exiting_on_job_errors, job_examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from store.tools.reindex.run import Reindexed
    from store.tools.verify.findings import Finding

app = typer.Typer(
    no_args_is_help=True,
    help="Re-index with Spark: queues and index of a store, an index over any field, another sharding.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)

Executors = Annotated[
    int,
    typer.Option(
        "--executors",
        min=0,
        help="RayDP executors, of two cores each, on the Ray cluster of this job; 0: local threads.",
    ),
]
DelayLevel = Annotated[
    str | None,
    typer.Option(
        "--message-delay-level", metavar="LEVELS", help="The broker's delay levels, if not the default."
    ),
]
Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]
Property = Annotated[
    str | None,
    typer.Option("--property", help="Property with the key: KEYS, TAGS, UNIQ_KEY or a user property."),
]
Field = Annotated[
    str | None, typer.Option("--field", help="Field of JSON bodies with the key, for example order.id.")
]


@app.command(
    epilog=job_examples(
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
    delay_level: DelayLevel = None,
    index: Annotated[bool, typer.Option(help="Also re-index the index files.")] = True,
    executors: Executors = 0,
    as_json: AsJson = False,
) -> None:
    """Recreate the consume queues and index files of a stopped store from its CommitLog, in parallel.

    The files are written into the directory raymq.reindex of the store, and put in place by rename. The log
    is not changed. Damaged records are listed with file and byte position, and left out. Fails if a broker
    has the store open, except with --check. After an interruption, a broker can open the store, and the
    command can run again.
    """
    from jobs.reindex.offline import reindex_store, require_store

    with exiting_on_job_errors():
        require_store(path, log_paths or (), delay_level, check=check)  # Spark needs seconds to start
    with exiting_on_job_errors(), _session(executors) as spark:
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


@app.command(
    epilog=job_examples(
        "raymq reindex live ~/.raymq/DefaultCluster/store/broker-a-0",
        "python -m jobs.reindex live /data/broker-a-0 -n 10.0.0.5:9876",
    )
)
def live(
    path: Annotated[Path, typer.Argument(help="Store directory, the parent of `commitlog`.")],
    delay_level: DelayLevel = None,
    nameserver: Nameserver = None,
    executors: Executors = 0,
    as_json: AsJson = False,
) -> None:
    """Replace damaged consume queue files of a running broker.

    Compares the full files of all queues with the log, up to the broker's last checkpoint. The broker
    verifies each new file and puts it in place by rename. Index files and the last file of each queue are not
    replaced. The exit code is 1 if a file that differs was not replaced.
    """
    from jobs.reindex.live import repair_store
    from jobs.reindex.offline import require_store

    with exiting_on_job_errors():
        require_store(path, (), delay_level, check=True)
    with exiting_on_job_errors(), _session(executors) as spark:
        done = repair_store(spark, path, nameservers=nameserver, message_delay_level=delay_level)
    if as_json:
        typer.echo(json.dumps(done.as_json(), ensure_ascii=False))
    else:
        for finding in done.damage:
            typer.echo(f"damaged: {_line(finding)}")
        for file in done.replaced:
            typer.echo(f"replaced: {file.path(Path())}")
        for file, reason in done.kept:
            typer.echo(f"kept: {file.path(Path())}: {reason}")
        typer.echo(
            f"{done.store}: {len(done.replaced):,} files replaced, {len(done.kept):,} kept; {done.queues:,}"
            f" queues compared up to offset {done.log_end:,} of the log"
        )
    raise typer.Exit(EXIT_FAILED if done.kept else 0)


@app.command(
    epilog=job_examples(
        "raymq reindex keys orders /data/orders-by-customer --field customer.id",
        "python -m jobs.reindex keys orders s3a://bucket/orders-by-key --property KEYS --overwrite",
    )
)
def keys(
    topic: Topic,
    path: Annotated[str, typer.Argument(help="Directory for the Parquet files.", show_default=False)],
    property_name: Property = None,
    field: Field = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    committed: Committed = False,
    nameserver: Nameserver = None,
    executors: Executors = 0,
    as_json: AsJson = False,
) -> None:
    """Index a topic over a property or a JSON field: key, topic, broker, queue, offset, position.

    The index is a directory of Parquet files, which are sorted by key.
    """
    from jobs.reindex.key_index import index_keys

    with exiting_on_job_errors(), _session(executors) as spark:
        done = index_keys(
            spark,
            topic,
            path,
            property=property_name,
            json_field=field,
            nameservers=nameserver,
            mode="overwrite" if overwrite else "errorifexists",
            committed=committed,
        )
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(
            f"{done.path}: {done.entries:,} entries for {done.messages_with_key:,} of {done.messages:,}"
            f" messages of topic {topic}"
        )


@app.command(
    epilog=job_examples(
        "raymq reindex topic orders orders-16 --queues 16 --property KEYS",
        "python -m jobs.reindex topic orders orders-16 --queues 16 --field customer.id --spread-missing",
    )
)
def topic(
    source: Topic,
    target: Annotated[str, typer.Argument(help="New topic.", show_default=False)],
    queues: Annotated[
        int, typer.Option("--queues", min=1, max=65_535, help="Number of queues on each broker.")
    ],
    property_name: Property = None,
    field: Field = None,
    spread_missing: Annotated[
        bool, typer.Option("--spread-missing", help="Spread messages without a key over all queues.")
    ] = False,
    committed: Committed = False,
    nameserver: Nameserver = None,
    executors: Executors = 0,
    as_json: AsJson = False,
) -> None:
    """Copy a topic into a new topic with another number of queues, in order for each key.

    All messages with one key get into one queue. Fails, before the topic is created, if messages have no key.
    """
    from jobs.reindex.reshard import reshard_topic

    with exiting_on_job_errors(), _session(executors) as spark:
        done = reshard_topic(
            spark,
            source,
            target,
            queues,
            property=property_name,
            json_field=field,
            missing="spread" if spread_missing else "fail",
            nameservers=nameserver,
            committed=committed,
        )
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(f"{source} → {target}: {done.rows:,} messages, committed as job {done.job_id}")


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
def _session(executors: int) -> Iterator[SparkSession]:
    """Yield a local Spark session, or a RayDP session with `executors` executors if it is not 0."""
    import os

    from jobs.spark.session import local_session, raydp_session

    if executors:
        import ray

        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR")
        with raydp_session("raymq-reindex", executors) as spark:
            yield spark
        return
    with local_session("raymq-reindex", os.cpu_count() or 1) as spark:
        yield spark
