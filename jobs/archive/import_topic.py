"""`import_topic`: send the messages of an archive to a topic, as one write job.

    <archive>/_imports/<topic>/job.json        the UNIQ_KEYs and the target of the job, before the first send
    <archive>/_imports/<topic>/<split>.json    the queue offsets of a split that is sent
    <archive>/_imports/<topic>/done.json       the job is committed

A split that was being sent at an interruption is sent again with the same UNIQ_KEYs. The commit lists each
row once, so `read_queue(committed=True)` returns each message once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cluster.client import Admin
from cluster.client.config import MIB, ClientConfig, Nameservers
from cluster.client.errors import TopicNotFound
from jobs.archive.directory import (
    IMPORTS,
    PLAN,
    ArchiveDirectory,
    ArchivePlan,
    SplitReceipt,
)
from jobs.archive.export import Progress
from jobs.job_errors import ArchiveInvalid
from jobs.option_values import as_path
from jobs.reading.describe import describe_topic
from jobs.reading.splits import QueueState
from jobs.writing.commit import WriteReceipt, commit, prepare_topic
from jobs.writing.partition_writer import PartitionReceipt, PartitionWriter
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, WriteJob, new_job
from store.common.clock import SystemClock

BATCH_ROWS = 64 * 1024
BATCH_BYTES = 16 * MIB
COLUMNS = WriteColumns("body", "keys", "tags", None, "properties")


class SavedJob(msgspec.Struct, frozen=True):
    """The job of an import: its UNIQ_KEYs, and the stores of the brokers that it sends to."""

    prefix: str
    first: int
    store_ids: list[str]


class SavedResult(msgspec.Struct, frozen=True):
    """The result of a committed import."""

    job_id: str
    rows: int


@dataclass(frozen=True)
class SentPart:
    """A part of a queue that is sent as one partition of a job: its name, and how its rows are read."""

    name: str
    broker_name: str
    queue_id: int
    rows: int
    batches: Callable[[], Iterator[pa.RecordBatch]]


def import_topic(
    directory: str | Path,
    topic: str | None = None,
    *,
    nameservers: Nameservers | None = None,
    progress: Progress = lambda done, total: None,
) -> WriteReceipt:
    """Send the messages of an archive to a topic, and commit all of them when the last one is stored.

    Queue N of the archive is sent to queue N of the topic (modulo the number of its queues), in order. The
    messages keep body, keys, tag and user properties; they get new UNIQ_KEYs and store times. An interrupted
    import is resumed when it is called again. All checksums are verified before the first message is sent.

    Args:
        directory: The archive, which must be writable: it stores the progress.
        topic: The topic, by default that of the archive. It is created, with as many queues for each broker
            as in the archive, if it does not exist.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        progress: Called with the number of messages done and the total.

    Raises:
        ArchiveInvalid: The export is not complete, a file is damaged, or the archive has already been
            imported into this topic.
        WriteFailed: Messages could not be sent. Call the function again to resume.
        CommitFailed: All messages are stored, but the manifest may not be.
        ClientError: A broker cannot be reached.
    """
    archive = ArchiveDirectory(Path(as_path("directory", directory)))
    plan, receipts = _check_archive(archive)
    topic = plan.topic if topic is None else topic
    parts = [
        SentPart(
            split.name, split.broker_name, split.queue_id, receipt.rows, partial(_batches, archive, receipt)
        )
        for split, receipt in zip(plan.splits, receipts, strict=True)
    ]
    return send_parts(archive, f"{IMPORTS}/{topic}", topic, parts, nameservers, progress)


def send_parts(
    archive: ArchiveDirectory,
    folder: str,
    topic: str,
    parts: Sequence[SentPart],
    nameservers: Nameservers | None,
    progress: Progress,
) -> WriteReceipt:
    """Send parts of queues to a topic, one after the other, as one job whose progress is in `folder`.

    Raises as `import_topic` does.
    """
    if (done := archive.load(f"{folder}/done.json", SavedResult)) is not None:
        raise ArchiveInvalid(
            f"{archive.root} was imported into topic {topic} by job {done.job_id} ({done.rows:,} messages): "
            f"delete {archive.root / folder} to import it again"
        )
    addresses = ClientConfig(nameservers).addresses()
    states = _ensure_topic(parts, topic, addresses)
    job = _job(archive, folder, topic, addresses, states)
    prepare_topic(job, "append")
    rows, total = 0, sum(each.rows for each in parts)
    sources = sorted({(each.broker_name, each.queue_id) for each in parts})
    sent: list[PartitionReceipt] = []
    for index, part in enumerate(parts):
        saved = archive.load(f"{folder}/{part.name}.json", PartitionReceipt)
        if saved is None:
            # All parts of a queue are sent to the same queue, in order.
            queue = states[sources.index((part.broker_name, part.queue_id)) % len(states)].queue
            saved = PartitionWriter(job, index, queue=queue).write(part.batches())
            archive.save(f"{folder}/{part.name}.json", saved)
        sent.append(saved)
        rows += saved.rows
        progress(rows, total)
    receipt = commit(job, sent)
    archive.save(f"{folder}/done.json", SavedResult(receipt.job_id, receipt.rows))
    return receipt


def _check_archive(archive: ArchiveDirectory) -> tuple[ArchivePlan, list[SplitReceipt]]:
    """Return plan and receipts. Raises ArchiveInvalid if the archive is incomplete or a file is damaged."""
    plan = archive.plan()
    if plan is None:
        raise ArchiveInvalid(f"{archive.root} has no {PLAN}: give a directory written by `raymq export`")
    receipts = []
    for split in plan.splits:
        receipt = archive.receipt(split)
        if receipt is None:
            raise ArchiveInvalid(
                f"the export of topic {plan.topic} to {archive.root} is not complete (split {split.name} is "
                "missing): run the export again, which resumes it"
            )
        for file in receipt.files:
            archive.check(file)
        receipts.append(receipt)
    return plan, receipts


def _ensure_topic(parts: Sequence[SentPart], topic: str, nameservers: Sequence[str]) -> list[QueueState]:
    try:
        return describe_topic(list(nameservers), topic)
    except TopicNotFound:
        queues = max((each.queue_id for each in parts), default=0) + 1
        with Admin(list(nameservers)) as admin:
            admin.create_topic(topic, queues=queues)
        return describe_topic(list(nameservers), topic)


def _job(
    archive: ArchiveDirectory, folder: str, topic: str, nameservers: Sequence[str], states: list[QueueState]
) -> WriteJob:
    """Return the job of an interrupted import, or a new one, which is saved. Raises ArchiveInvalid."""
    store_ids = sorted({each.location.store_id for each in states})
    saved = archive.load(f"{folder}/job.json", SavedJob)
    if saved is None:
        job = new_job(topic, list(nameservers), COLUMNS, BUFFER_BYTES, SystemClock().wall_ms())
        archive.save(f"{folder}/job.json", SavedJob(job.prefix, job.first, store_ids))
        return job
    if saved.store_ids != store_ids:
        raise ArchiveInvalid(
            f"{archive.root / folder} is the progress of an import into other brokers than those of topic "
            f"{topic} now: delete it to start again, which sends all messages"
        )
    return WriteJob(topic, list(nameservers), COLUMNS, BUFFER_BYTES, saved.prefix, saved.first)


def _batches(archive: ArchiveDirectory, receipt: SplitReceipt) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files of a split, in batches of about BATCH_BYTES: rows may be large."""
    for file in receipt.files:
        with pq.ParquetFile(archive.root / file.path) as parquet:
            for index in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(index)
                row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
                rows = min(max(BATCH_BYTES // row_bytes, 1), BATCH_ROWS)
                yield from parquet.iter_batches(rows, row_groups=[index])
