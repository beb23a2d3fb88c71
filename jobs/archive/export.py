"""`export_topic`: copy the messages of a topic to Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cluster.client.config import MIB, Nameservers
from jobs.archive.directory import (
    MESSAGES_PER_FILE,
    PLAN,
    ArchivedFile,
    ArchiveDirectory,
    ArchivedSplit,
    ArchivePlan,
    SplitReceipt,
    sha256_of,
)
from jobs.job_errors import ArchiveInvalid
from jobs.option_values import as_flag, as_integer, as_path
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import ReadPlan, plan_read
from jobs.reading.splits import Split, cut_splits

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 * MIB
STORE_TIMESTAMP = "storeTimestamp"

Progress = Callable[[int, int], None]
"""Called with the number of messages done so far, and the total."""


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        topic: The exported topic.
        rows: Number of messages in the archive.
        files: Number of Parquet files in the archive.
        resumed: True if splits of an earlier, interrupted export were kept.
    """

    topic: str
    rows: int
    files: int
    resumed: bool


def export_topic(
    topic: str,
    directory: str | Path,
    *,
    nameservers: Nameservers | None = None,
    committed: bool = False,
    broker: str | None = None,
    messages_per_file: int = MESSAGES_PER_FILE,
    map_files: bool = True,
    progress: Progress = lambda done, total: None,
) -> ExportResult:
    """Copy the messages that `topic` has now to Parquet files, by date and queue.

    `jobs.archive.directory` describes the files.

    If an export to this directory was interrupted, it is resumed: the messages are those that the topic had
    when the export began, and complete files are kept.

    Args:
        topic: The topic.
        directory: Directory of the archive: empty, missing, or that of an interrupted export.
        nameservers: "host:port;host:port", a list, or None for the value of the environment or the default.
        committed: Skip messages that `write_queue` did not commit.
        broker: Export only the queues of this broker.
        messages_per_file: Maximum number of messages of a file.
        map_files: Map the files of stores on this machine; if False, fetch all messages from the brokers.
        progress: Called with the number of messages done and the total.

    Raises:
        ArchiveInvalid: The directory has other files or the export of another topic, or is damaged.
        DataLoss: Messages were deleted before they were exported.
        ClientError: The topic does not exist, or a broker cannot be reached.
    """
    messages_per_file = as_integer("messages_per_file", messages_per_file, 1)
    committed, map_files = as_flag("committed", committed), as_flag("map_files", map_files)
    archive = ArchiveDirectory(Path(as_path("directory", directory)))
    options = ReadOptions(
        TopicNames((topic,)), nameservers=nameservers, committed=committed, map_files=map_files
    )
    plan = archive.plan()
    if plan is not None:
        _check_plan(archive, plan, topic, committed=committed, broker=broker)
    elif any(archive.entries()):
        raise ArchiveInvalid(f"{archive.root} is not empty and has no {PLAN}: export to a new directory")
    read = plan_read(options)
    if plan is None:
        wanted = [each for each in read.ranges if broker in (None, each.queue.broker_name)]
        splits = [
            ArchivedSplit(*each.queue[1:], each.begin, each.end)
            for each in cut_splits(wanted, 1, messages_per_file)
        ]
        plan = ArchivePlan(topic, committed, splits, broker)
        archive.root.mkdir(parents=True, exist_ok=True)
        archive.save(PLAN, plan)
    receipts, resumed = _export_splits(archive, plan, read, progress)
    return ExportResult(
        topic, sum(each.rows for each in receipts), sum(len(each.files) for each in receipts), resumed
    )


def _check_plan(
    archive: ArchiveDirectory, plan: ArchivePlan, topic: str, *, committed: bool, broker: str | None
) -> None:
    if (plan.topic, plan.committed, plan.broker) != (topic, committed, broker):
        raise ArchiveInvalid(
            f"{archive.root} is the export of topic {plan.topic} with committed={plan.committed} and "
            f"broker={plan.broker}, not of {topic} with committed={committed} and broker={broker}: "
            "export to a new directory"
        )


def _export_splits(
    archive: ArchiveDirectory, plan: ArchivePlan, read: ReadPlan, progress: Progress
) -> tuple[list[SplitReceipt], bool]:
    """Export the splits without a receipt. Return all receipts, and True if some existed already."""
    locations = {(each.queue.broker_name, each.queue.queue_id): each for each in read.ranges}
    receipts: list[SplitReceipt] = []
    done, resumed = 0, False
    for split in plan.splits:
        receipt = archive.receipt(split)
        if receipt is None:
            whole = locations.get((split.broker_name, split.queue_id))
            if whole is None:
                raise ArchiveInvalid(
                    f"{archive.root / PLAN} lists queue {split.queue}, which has no messages in topic "
                    f"{plan.topic} now: they were deleted, or this is another cluster. Use a new directory"
                )
            wanted = Split(whole.queue, split.begin, split.end, whole.location)
            receipt = _export_split(archive, split, read.reader([wanted]).read_all())
            archive.save_receipt(split, receipt)
        else:
            resumed = True
        receipts.append(receipt)
        done += split.end - split.begin
        progress(done, plan.message_count)
    return receipts, resumed


def _export_split(
    archive: ArchiveDirectory, split: ArchivedSplit, batches: Iterable[pa.RecordBatch]
) -> SplitReceipt:
    writers: dict[str, _DateFile] = {}
    for table in _row_groups(batches):
        for date, part in _by_date(table):
            if date not in writers:
                writers[date] = _DateFile(archive.root, split.path(date), part.schema)
            writers[date].write(part)
    return SplitReceipt([writers[date].finish() for date in sorted(writers)])


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of `batches` in tables of ROW_GROUP_ROWS or ROW_GROUP_BYTES, whichever is less.

    A table exceeds these by less than one batch.
    """
    held: list[pa.RecordBatch] = []
    rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        rows, held_bytes = rows + batch.num_rows, held_bytes + batch.nbytes
        if rows >= ROW_GROUP_ROWS or held_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, held_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _by_date(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield (date, rows) for each date (UTC) of the store times of a table."""
    dates = pc.strftime(table[STORE_TIMESTAMP], format="%Y-%m-%d")
    for date in pc.unique(dates).to_pylist():
        yield date, table.filter(pc.equal(dates, date))


class _DateFile:
    """A Parquet file that is renamed into place when it is complete."""

    def __init__(self, root: Path, path: str, schema: pa.Schema) -> None:
        self._root = root
        self._path = path
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        self._unfinished = target.with_name(f"_{target.name}.tmp")
        self._writer = pq.ParquetWriter(self._unfinished, schema, compression="zstd")
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._rows += rows.num_rows

    def finish(self) -> ArchivedFile:
        """Make the file durable, rename it, and return its receipt."""
        self._writer.close()
        with self._unfinished.open("rb") as file:
            os.fsync(file.fileno())
        digest = sha256_of(self._unfinished)
        self._unfinished.rename(self._root / self._path)
        return ArchivedFile(self._path, self._rows, digest)
