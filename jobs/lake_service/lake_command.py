"""`raymq lake`: the Iceberg tables of topics.

The exit code is 0 if the command succeeded, 1 if it failed, and 2 if it was refused.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cluster.counted import counted
from jobs.console import (
    EXIT_REFUSED,
    AsJson,
    Nameserver,
    exiting_on_job_errors,
    job_examples,
    print_result,
    progress_bar,
)
from jobs.reading.options.lake_options import NAMESPACE, WAREHOUSE

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from jobs.lake.lake_table import LakeTable
    from jobs.reading.splits import QueueState

app = typer.Typer(no_args_is_help=True, help="Iceberg tables of topics: status, backfill, upkeep, drop.")

Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]
Topics = Annotated[
    list[str] | None, typer.Argument(help="Topics; all that have a table by default.", show_default=False)
]
Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse",
        envvar="RAYMQ_LAKE_WAREHOUSE",
        help="Directory of the tables (below RAYMQ_HOME, or absolute), or a URI such as s3://bucket/lake.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        metavar="KEY=VALUE",
        help="Property of PyIceberg's catalog, by default SQLite in the warehouse; may be repeated."
        " Give a secret as KEY=file:PATH or KEY=env:NAME.",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of the tables.")]
BodySchema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        help="Columns in place of the body, as in Spark: 'id BIGINT, name STRING'. All later rounds of the"
        " table decode bodies so; those that cannot be decoded go to the table TOPIC_errors.",
        show_default=False,
    ),
]
BodyFormat = Annotated[
    Literal["json", "msgpack", "avro"], typer.Option("--format", help="Format of bodies with a schema.")
]
AvroSchema = Annotated[
    Path | None,
    typer.Option(
        "--avro-schema",
        exists=True,
        dir_okay=False,
        help="File with the schema of Avro bodies, as JSON.",
        show_default=False,
    ),
]


@contextmanager
def _lake(warehouse: str, properties: Sequence[str] | None, namespace: str) -> Iterator[Catalog]:
    """Yield the catalog; errors end the command."""
    from cluster.control.topology.topology import DEFAULT_CLUSTER
    from cluster.paths import home_of
    from jobs.job_errors import OptionInvalid

    with exiting_on_job_errors():
        from jobs.lake.catalogs import lake_settings, open_catalog  # PyIceberg takes half a second

        pairs = [each.partition("=") for each in properties or ()]
        if any(not (name and sign) for name, sign, _ in pairs):
            raise OptionInvalid("--catalog needs KEY=VALUE, such as --catalog type=rest")
        given = {name: value for name, _, value in pairs}
        yield open_catalog(lake_settings(warehouse, home_of(DEFAULT_CLUSTER), given, namespace))


def _tables(catalog: Catalog, namespace: str, topics: Sequence[str] | None) -> Iterator[LakeTable]:
    from jobs.job_errors import LakeInvalid
    from jobs.lake.lake_table import LakeTable
    from jobs.lake.status import topics_in

    found = topics or topics_in(catalog, namespace)
    if not found:
        place = catalog.properties["warehouse"]
        typer.echo(f"no topic has a table in the namespace {namespace} of the warehouse {place}", err=True)
    for topic in found:
        table = LakeTable.find(catalog, namespace, topic)
        if table is None:
            raise LakeInvalid(
                f"topic {topic} has no table in this lake: `raymq lake backfill {topic}` creates it"
            )
        yield table


@app.command(
    epilog=job_examples(
        "raymq lake status", "raymq lake status orders --json", "raymq lake status --warehouse DIR"
    )
)
def status(
    topics: Topics = None,
    warehouse: Warehouse = WAREHOUSE,
    catalog: Properties = None,
    namespace: Namespace = NAMESPACE,
    nameserver: Nameserver = None,
    as_json: AsJson = False,
) -> None:
    """Show rows, files, snapshot and gaps of tables, and how far they are behind their topics.

    What is unknown is shown as "–": a table is behind its topic by an unknown time if the brokers cannot be
    reached.
    """
    with _lake(warehouse, catalog, namespace) as opened:
        from jobs.lake.status import lake_status

        found = [
            lake_status(table, _queues(nameserver, table.topic), datetime.now(UTC))
            for table in _tables(opened, namespace, topics)
        ]
    if as_json:
        rows = [
            asdict(each) | {"gaps": [gap._asdict() for gap in each.gaps], "lost": each.lost} for each in found
        ]
        typer.echo(json.dumps(rows))
        return
    layout = "{:<30} {:>14} {:>7} {:>16} {:>14} {:>10} {:>10} {:>20}"
    typer.echo(layout.format("TOPIC", "ROWS", "FILES", "BYTES", "BEHIND", "SECONDS", "LOST", "SNAPSHOT"))
    for each in found:
        numbers = each.rows, each.files, each.size_bytes, each.messages_behind, each.seconds_behind, each.lost
        shown = ["–" if number is None else f"{number:,.0f}" for number in numbers]
        typer.echo(layout.format(each.topic, *shown, "–" if each.snapshot is None else str(each.snapshot)))
        for gap in each.gaps:
            typer.echo(f"  lost: {gap.broker}/{gap.queue} offsets [{gap.begin}, {gap.end})")


def _queues(nameserver: str | None, topic: str) -> Sequence[QueueState] | None:
    """Return the queues of a topic, or None if they are unknown; the reason is printed as a warning."""
    from cluster.client import ClientError
    from jobs.reading.describe import describe_topic

    try:
        return describe_topic(nameserver, topic)
    except ClientError as error:
        typer.echo(f"{topic}: {error}", err=True)
        return None


@app.command(
    epilog=job_examples(
        "raymq lake backfill orders",
        "raymq lake backfill orders --store /backup/broker-a-0",
        "raymq lake backfill orders --schema 'id BIGINT, name STRING' --format json",
    )
)
def backfill(
    topic: Topic,
    store: Annotated[
        Path | None,
        typer.Option(help="Read the store in this directory, which no broker serves.", show_default=False),
    ] = None,
    schema: BodySchema = None,
    body_format: BodyFormat = "json",
    avro_schema: AvroSchema = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="List deleted and damaged messages as gaps instead of failing."),
    ] = False,
    warehouse: Warehouse = WAREHOUSE,
    catalog: Properties = None,
    namespace: Namespace = NAMESPACE,
    nameserver: Nameserver = None,
    as_json: AsJson = False,
) -> None:
    """Write all messages of TOPIC that its table does not have yet.

    Run the command again to continue after an interruption: each message is added once, also if the lake of
    the cluster writes to the same table.
    """
    with _lake(warehouse, catalog, namespace) as opened, progress_bar(f"writing {topic}") as progress:
        from jobs.lake.bodies import bodies_of
        from jobs.lake.lake_table import LakeTable
        from jobs.lake.round import RoundOptions, stored_queues
        from jobs.reading.describe import describe_topic

        queues = partial(describe_topic, nameserver) if store is None else partial(stored_queues, store)
        find = partial(queues, topic)
        find()  # a topic that does not exist gets no table
        options = RoundOptions(
            has_broker=store is None, accept_loss=accept_loss, messages_max=BACKFILL_MESSAGES
        )
        bodies = bodies_of(schema, body_format, avro_schema.read_text() if avro_schema else "")
        table = LakeTable.create(opened, namespace, topic, bodies=bodies)
        result = _write_all(table, find, options, progress)
    if as_json:
        typer.echo(json.dumps(result))
        return
    written = f"{counted(result['rows'], 'message')} of {topic} to {counted(result['files'], 'file')}"
    typer.echo(f"wrote {written} of {table.name}")
    if result["errors"]:
        text = f"{result['errors']:,} bodies cannot be decoded: see the table {table.name}_errors"
        typer.echo(text, err=True)
    if result["lost"]:
        typer.echo(
            f"{result['lost']:,} messages were deleted or damaged before; see `raymq lake status`", err=True
        )


BACKFILL_MESSAGES = 5_000_000
"""Messages of one commit of a backfill: what an interruption repeats."""


def _write_all(
    table: LakeTable,
    find: Callable[[], Sequence[QueueState]],
    options: Any,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Run rounds until the table has all messages that the topic had at the beginning."""
    from jobs.lake.round import write_round

    totals = Counter(rows=0, files=0, errors=0, lost=0)
    while True:
        result = write_round(table, find, options=options)
        lost = sum(each.end - each.begin for each in result.gaps)
        totals.update(rows=result.rows, files=result.files, errors=result.errors, lost=lost)
        progress(totals["rows"], totals["rows"] + result.remaining)
        if not result.remaining:
            ahead = [f"{each.broker_name}/{each.queue_id}" for each in result.ahead]
            return {"topic": table.topic, **totals, "ahead": ahead}


def _print_rows(rows: Sequence[Mapping[str, Any]], layout: str, *, as_json: bool) -> None:
    for line in [json.dumps(rows)] if as_json else [layout.format(**each) for each in rows]:
        typer.echo(line)


@app.command(epilog=job_examples("raymq lake compact", "raymq lake compact orders"))
def compact(
    topics: Topics = None,
    warehouse: Warehouse = WAREHOUSE,
    catalog: Properties = None,
    namespace: Namespace = NAMESPACE,
    as_json: AsJson = False,
) -> None:
    """Replace small files of tables by larger ones, without a change of their rows.

    If the lake commits meanwhile, nothing is changed: run the command again.
    """
    with _lake(warehouse, catalog, namespace) as opened:
        from jobs.lake import upkeep

        tables = _tables(opened, namespace, topics)
        found = [asdict(upkeep.compact(each, files_min=2)) for each in tables]
    line = "{topic}: {files_before} small files became {files_after}, with {rows:,} rows"
    _print_rows(found, line, as_json=as_json)


@app.command(epilog=job_examples("raymq lake expire", "raymq lake expire orders --older-than-h 1"))
def expire(
    topics: Topics = None,
    older_than_h: Annotated[
        float,
        typer.Option(min=0.0, max=87_600.0, help="Age in hours; the newest ten snapshots are always kept."),
    ] = 6.0,
    warehouse: Warehouse = WAREHOUSE,
    catalog: Properties = None,
    namespace: Namespace = NAMESPACE,
    as_json: AsJson = False,
) -> None:
    """Remove old snapshots of tables, and files that no snapshot has for a day."""
    with _lake(warehouse, catalog, namespace) as opened:
        from jobs.lake import upkeep

        found = [
            {
                "topic": each.topic,
                "snapshots": upkeep.expire(each, timedelta(hours=older_than_h)),
                "files": upkeep.remove_orphans(each),
            }
            for each in _tables(opened, namespace, topics)
        ]
    _print_rows(found, "{topic}: removed {snapshots} snapshots and {files} files", as_json=as_json)


@app.command(epilog=job_examples("raymq lake restore orders --to orders-2025"))
def restore(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help="Topic to which the messages are sent.")],
    append: Annotated[bool, typer.Option("--append", help="Also if that topic has messages.")] = False,
    warehouse: Warehouse = WAREHOUSE,
    catalog: Properties = None,
    namespace: Namespace = NAMESPACE,
    nameserver: Nameserver = None,
    as_json: AsJson = False,
) -> None:
    """Send the messages that the table of TOPIC has to another topic, in the order of their queues.

    The topic is created if it does not exist. Run the command again to resume an interrupted restore. Reads
    with `committed` see the messages when the command has finished.
    """
    with _lake(warehouse, catalog, namespace) as opened, progress_bar(f"restoring {topic}") as progress:
        from jobs.lake_service.restore import restore_topic

        (table,) = _tables(opened, namespace, [topic])
        receipt = restore_topic(table, to, nameservers=nameserver, append=append, progress=progress)
    line = f"restored {receipt.rows:,} messages of topic {topic} to {receipt.topic} (job {receipt.job_id})"
    print_result(receipt, line, as_json=as_json)


@app.command(epilog=job_examples("raymq lake drop orders", "raymq lake drop orders --yes --keep-files"))
def drop(
    topic: Topic,
    keep_files: Annotated[
        bool,
        typer.Option(
            "--keep-files",
            help="Only remove the table from the catalog. Move its files before the topic gets a table again,"
            " which deletes them after a day.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    warehouse: Warehouse = WAREHOUSE,
    catalog: Properties = None,
    namespace: Namespace = NAMESPACE,
) -> None:
    """Delete the table of TOPIC with its history. The topic itself is not changed.

    A lake that has the topic in `lakes:` begins the table again with the messages that the log still has, and
    brokers keep the log for it. To end both, first remove the topic there and run `raymq up`.
    """
    with _lake(warehouse, catalog, namespace) as opened:
        (table,) = _tables(opened, namespace, [topic])
        if not yes:
            _confirm(f"Delete the table {table.name} with its history? {_BEGUN_AGAIN.format(topic)}")
        table.drop(keep_files=keep_files)
    kept = f"; its files stay below {table.location}" if keep_files else ""
    typer.echo(f"deleted the table {table.name}{kept}")
    typer.echo(_BEGUN_AGAIN.format(topic), err=True)


_BEGUN_AGAIN = (
    "If topic {} is in `lakes:`, the table is begun again from what the log has; to end that, remove it"
    " there, run `raymq up`, and drop the table then."
)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        typer.echo(f"{question} Standard input is not a terminal: confirm with --yes", err=True)
        raise typer.Exit(EXIT_REFUSED)
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)
