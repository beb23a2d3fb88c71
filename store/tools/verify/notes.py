"""Check the small files of a store: checkpoint, epoch, `config/*.json` and raymq.derived."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.common.clock import Clock, SystemClock
from store.consumequeue.table import ConsumeQueueTable
from store.dispatch.saved_sink import check_state, state_files
from store.index.index_file import IndexFile
from store.message.crc import running_crc
from store.message.json_text import parse_rocketmq_json
from store.metadata import ConsumerOffsetTable, SubscriptionGroupTable, TopicConfigTable
from store.ownership.identity import EPOCH_FILE, StoreName
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
    root: Path, tail: Tail, index_end_ms: int | None, report: Report, dispatched: Tail | None
) -> None:
    """Report fields of the checkpoint file that are after the end of the log.

    If RayMQ closed the store cleanly, `dispatched` is the part of the log that it has dispatched: report all
    fields that do not equal its end.
    """
    path = root / CHECKPOINT
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if len(content) != CHECKPOINT_BYTES:
        reason = f"the file has {len(content):,} bytes instead of {CHECKPOINT_BYTES:,}"
        report.add(path, -1, len(content), "file", reason)
        return
    if any(content[_USED_BYTES:]):
        place = next(at for at in range(_USED_BYTES, CHECKPOINT_BYTES) if content[at])
        report.add(path, place, CHECKPOINT_BYTES - place, "checkpoint", "data after the last field")
    found = StoreCheckpoint.read(path)
    last_ms = tail.last_timestamp
    limits = (last_ms, last_ms, last_ms, tail.position, tail.position)
    end = dispatched or tail
    wanted = (end.last_timestamp, end.last_timestamp, index_end_ms, None, max(end.last_record, 0))
    exact = dispatched is not None and dispatched.last_record >= 0
    for number, (name, attribute) in enumerate(_FIELDS):
        value = getattr(found, attribute)
        if exact and wanted[number] is not None and value != wanted[number]:
            reason = f"{name} is {value:,}, but the end of the log requires {wanted[number]:,}"
            report.add(path, 8 * number, 8, "checkpoint", reason)
        elif not -1 <= value <= limits[number]:
            reason = f"{name} is {value:,}, but the log ends at {limits[number]:,}"
            report.add(path, 8 * number, 8, "checkpoint", reason)


def check_small_files(root: Path, report: Report) -> None:
    """Report a damaged epoch file, and damaged files in `config` (tables and their backups)."""
    epoch = root / EPOCH_FILE
    if epoch.exists() and not epoch.read_text(errors="replace").strip().isdigit():
        report.add(epoch, -1, epoch.stat().st_size, "notes", "does not contain a number")
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
            report.add(path, -1, path.stat().st_size, "config", f"is not a valid table: {error}")


def check_sinks(root: Path, name: StoreName, tail: Tail, report: Report) -> None:
    """Report files of saved sinks that are damaged, of another store, or after the end of the log."""
    for path in state_files(root):
        try:
            check_state(path, name.store_id, tail.position)
        except ValueError as error:
            report.add(path, -1, path.stat().st_size, "notes", str(error))


def known_topics(root: Path) -> set[str] | None:
    """Return the names in topics.json, or None if the file is missing or damaged."""
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
    """Report entries of raymq.derived that are after the end of the log or belong to missing queues.

    If `exact` is True, because the store was closed cleanly, report all differences between the file and the
    queues.
    """
    path = summary_path(root)
    if summary is None:
        if path.exists():
            report.add(path, -1, path.stat().st_size, "notes", "is damaged, or belongs to another store")
        return
    if summary.position > tail.position or (exact and summary.position != tail.position):
        reason = f"position is {summary.position:,}, but the log ends at {tail.position:,}"
        report.add(path, -1, 0, "notes", reason)
    for (topic, queue_id), note in summary.queues.items():
        queue = queues.find(topic, queue_id)
        there = queue.next_offset if isinstance(queue, CheckedQueue) else 0
        if exact and isinstance(queue, CheckedQueue) and queue.bases:
            crc = _crcs(queue, note.first_offset, note.next_offset)
            if note.next_offset < there or crc != note.crcs:
                reason = f"its entry for queue {topic}-{queue_id} does not match the queue"
                report.add(path, -1, 0, "notes", reason)
        elif queue is None:
            report.add(
                path, -1, 0, "notes", f"it has an entry for queue {topic}-{queue_id}, which does not exist"
            )


def check_index_notes(
    root: Path, summary: DerivedSummary, log_min: int, sizes: StoreSizes, report: Report, *, exact: bool
) -> None:
    """Report index files that are listed in raymq.derived but are missing.

    If `exact` is True, because the store was closed cleanly, also report differences between entry and file.
    """
    for index_note in summary.index_files or []:
        index_path = root / INDEX / index_note.name
        if not index_path.exists() and index_note.end_physical_offset < log_min:
            continue  # retention has removed it together with its records
        if not index_path.exists():
            report.add(index_path, -1, 0, "file", "the file is missing")
            continue
        if not exact:
            continue
        try:
            file = IndexFile(index_path, sizes.index_slots, sizes.index_entries, copy_on_write=True)
        except StoreError:
            continue  # its wrong size has already been reported
        held = file.snapshot()
        if held._replace(time_ns=index_note.time_ns) != index_note:
            reason = f"its entry for index file {index_note.name} does not match the file"
            report.add(summary_path(root), -1, 0, "notes", reason)
        file.close()


def _crcs(queue: CheckedQueue, first: int, end: int) -> list[int]:
    """Return the CRC-32 of the units [first, end) of a queue, as one value per consume queue file."""
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
