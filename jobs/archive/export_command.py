"""`raymq export`: copy a topic to a directory of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.archive.directory import MESSAGES_PER_FILE
from jobs.console import (
    AsJson,
    Committed,
    Nameserver,
    exiting_on_job_errors,
    job_examples,
    print_result,
    progress_bar,
)

EPILOG = job_examples("raymq export orders /data/orders", "raymq export orders /data/orders --committed")


def command(
    topic: Annotated[str, typer.Argument(help="Topic.", show_default=False)],
    directory: Annotated[Path, typer.Argument(help="Directory of the archive, new or interrupted.")],
    committed: Committed = False,
    broker: Annotated[
        str | None, typer.Option("--broker", help="Only the queues of this broker.", show_default=False)
    ] = None,
    messages_per_file: Annotated[
        int, typer.Option("--messages-per-file", min=1, help="Maximum number of messages of a file.")
    ] = MESSAGES_PER_FILE,
    nameserver: Nameserver = None,
    as_json: AsJson = False,
) -> None:
    """Copy the messages that TOPIC has now to Parquet files, by date and queue.

    Run the command again to resume an interrupted export. Spark and Ray Data read DIRECTORY as a dataset.
    """
    from jobs.archive.export import export_topic  # numba, numpy and pyarrow take half a second

    with exiting_on_job_errors(), progress_bar(f"exporting {topic}") as progress:
        result = export_topic(
            topic,
            directory,
            nameservers=nameserver,
            committed=committed,
            broker=broker,
            messages_per_file=messages_per_file,
            progress=progress,
        )
    resumed = " (resumed)" if result.resumed else ""
    line = f"exported {result.rows:,} messages of {topic} to {result.files} files in {directory}{resumed}"
    print_result(result, line, as_json=as_json)
