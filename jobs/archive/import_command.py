"""`raymq import`: send the messages of an exported directory to a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.console import AsJson, Nameserver, exiting_on_job_errors, job_examples, print_result, progress_bar

EPILOG = job_examples("raymq import /data/orders", "raymq import /data/orders --topic orders-copy")


def command(
    directory: Annotated[Path, typer.Argument(help="Directory written by `raymq export`.")],
    topic: Annotated[
        str | None, typer.Option("--topic", help="Topic, by default that of the archive.")
    ] = None,
    nameserver: Nameserver = None,
    as_json: AsJson = False,
) -> None:
    """Send the messages of an archive to a topic, in the order of their queues.

    The topic is created if it does not exist. Run the command again to resume an interrupted import. Reads
    with `committed` see the messages when the command has finished.
    """
    from jobs.archive.import_topic import import_topic  # numba, numpy and pyarrow take half a second

    with exiting_on_job_errors(), progress_bar(f"importing {directory}") as progress:
        receipt = import_topic(directory, topic, nameservers=nameserver, progress=progress)
    line = f"imported {receipt.rows:,} messages into topic {receipt.topic} (job {receipt.job_id})"
    print_result(receipt, line, as_json=as_json)
