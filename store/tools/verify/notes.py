"""The small files of a store: checkpoint, names, RocketMQ's JSON, and what we noted about derived files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.clock import Clock, SystemClock
from store.consumequeue.table import ConsumeQueueTable
from store.index.index_file import IndexFile
from store.message.crc import running_crc
from store.message.json_text import parse_rocketmq_json
from store.metadata import ConsumerOffsetTable, SubscriptionGroupTable, TopicConfigTable
from store.ownership.identity import EPOCH_FILE
from store.recovery.checkpoint import CHECKPOINT_BYTES, StoreCheckpoint
from store.recovery.opening import CHECKPOINT, INDEX
from store.recovery.summary import DerivedSummary, summary_path
from store.recovery.tail import Tail
from store.store_errors import StoreError
from store.tools.layout import StoreSizes
from store.tools.verify.findings import Report
from store.tools.verify.queues import CheckedQueue

_FIELDS = (
    ("physicMsgTimestamp", "physic_msg_timestamp"),
    ("logicsMsgTimestamp", "logics_msg_timestamp"),
    ("indexMsgTimestamp", "index_msg_timestamp"),
    ("masterFlushedOffset", "master_flushed_offset"),
    ("confirmPhyOffset", "confirm_physical_offset"),
)
_USED_BYTES = 8 * len(_FIELDS)
_TABLES: dict[str, Callable[[dict[str, Any], Clock], object]] = {
    "topics.json": TopicConfigTable.from_json,
    "subscriptionGroup.json": SubscriptionGroupTable.from_json,
    "consumerOffset.json": ConsumerOffsetTable.from_json,
}
_NOT_JSON = re.compile(r"^timercheck")


def check_checkpoint(
    root: Path, tail: Tail, index_end_ms: int | None, report: Report, *, exact: bool
) -> None:
    """Nothing in it may lie behind the log's end; after an orderly end of ours (`exact`) all is known."""
    path = root / CHECKPOINT
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if len(content) != CHECKPOINT_BYTES:
        reason = f"a file of {len(content):,} bytes in place of {CHECKPOINT_BYTES:,}"
        report.add(path, -1, len(content), "file", reason)
        return
    if any(content[_USED_BYTES:]):
        place = next(at for at in range(_USED_BYTES, CHECKPOINT_BYTES) if content[at])
        report.add(
            path, place, CHECKPOINT_BYTES - place, "checkpoint", "there is something behind its fields"
        )
    found = StoreCheckpoint.read(path)
    last_ms = tail.last_timestamp
    limits = (last_ms, last_ms, last_ms, tail.position, tail.position)
    wanted = (last_ms, last_ms, index_end_ms, None, max(tail.last_record, 0))
    for number, (name, attribute) in enumerate(_FIELDS):
        value = getattr(found, attribute)
        if exact and wanted[number] is not None and value != wanted[number] and tail.last_record >= 0:
            reason = f"{name} is {value:,}, the log's end makes {wanted[number]:,}"
            report.add(path, 8 * number, 8, "checkpoint", reason)
        elif not -1 <= value <= limits[number]:
            reason = f"{name} is {value:,}, the log's end is at {limits[number]:,}"
            report.add(path, 8 * number, 8, "checkpoint", reason)


def check_small_files(root: Path, report: Report) -> None:
    """The epoch, and RocketMQ's `config/*.json` with their backups."""
    epoch = root / EPOCH_FILE
    if epoch.exists() and not epoch.read_text(errors="replace").strip().isdigit():
        report.add(epoch, -1, epoch.stat().st_size, "notes", "holds no number")
    directory = root / "config"
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if not path.is_file() or _NOT_JSON.match(path.name) or path.name.endswith(".damaged"):
            continue
        try:
            content = parse_rocketmq_json(path.read_bytes())
            make = _TABLES.get(path.name.removesuffix(".bak"))
            if make is not None:
                make(content, SystemClock())
        except (ValueError, StoreError) as error:
            report.add(path, -1, path.stat().st_size, "config", f"is not what RocketMQ writes: {error}")


def topics_known(root: Path) -> set[str] | None:
    """The topics that the broker knows; None when it left no list."""
    try:
        content = parse_rocketmq_json((root / "config" / "topics.json").read_bytes())
        return set(content["topicConfigTable"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_summary(
    root: Path,
    summary: DerivedSummary | None,
    tail: Tail,
    queues: ConsumeQueueTable,
    report: Report,
    *,
    exact: bool,
) -> None:
    """What is noted must be there; after an orderly end it must be all that there is."""
    path = summary_path(root)
    if summary is None:
        if path.exists():
            report.add(path, -1, path.stat().st_size, "notes", "cannot be read, or is of another store")
        return
    if summary.position > tail.position or (exact and summary.position != tail.position):
        reason = f"position is {summary.position:,}, the log ends at {tail.position:,}"
        report.add(path, -1, 0, "notes", reason)
    for (topic, queue_id), note in summary.queues.items():
        queue = queues.find(topic, queue_id)
        there = queue.next_offset if isinstance(queue, CheckedQueue) else 0
        if exact and isinstance(queue, CheckedQueue) and queue.bases:
            crc = _crcs(queue, note.first_offset, note.next_offset)
            if note.next_offset < there or crc != note.crcs:
                reason = f"what it says of {topic}-{queue_id} is not what the queue holds"
                report.add(path, -1, 0, "notes", reason)
        elif queue is None:
            report.add(path, -1, 0, "notes", f"{topic}-{queue_id} is noted, and there is no such queue")


def check_index_notes(
    root: Path, summary: DerivedSummary, log_min: int, sizes: StoreSizes, report: Report, *, exact: bool
) -> None:
    """Report index files that are missing or, if `exact`, differ from their notes."""
    for index_note in summary.index_files or []:
        index_path = root / INDEX / index_note.name
        if not index_path.exists() and index_note.end_physical_offset < log_min:
            continue  # it has been removed with the records that it leads to
        if not index_path.exists():
            report.add(index_path, -1, 0, "file", "the file is missing")
            continue
        if not exact:
            continue
        try:
            file = IndexFile(index_path, sizes.index_slots, sizes.index_entries, copy_on_write=True)
        except StoreError:
            continue  # its size has been told
        held = file.snapshot()
        if held._replace(time_ns=index_note.time_ns) != index_note:
            reason = f"what it says of {index_note.name} is not what the index file holds"
            report.add(summary_path(root), -1, 0, "notes", reason)
        file.close()


def _crcs(queue: CheckedQueue, first: int, end: int) -> list[int]:
    """The CRC of the units in each file."""
    crcs = []
    while first < end:
        stop = min(end, first - first % queue.units_per_file + queue.units_per_file)
        crc = 0
        while first < stop:
            units = queue.on_disk(first, stop - first)
            crc = running_crc(units, crc)
            first += len(units) // 20
        crcs.append(crc)
    return crcs
