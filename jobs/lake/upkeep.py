"""Upkeep of a table: small files are compacted, snapshots expire, files that none of them has are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyarrow.fs import FileSelector, FileType
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask

from jobs.job_errors import CommitConflict
from jobs.lake.catalogs import lake_errors
from jobs.lake.lake_table import LakeTable
from jobs.lake.write_rows import FILE_BYTES, DayFiles, FilesOf, delete_files
from jobs.reading.splits import join_small

SMALL_BYTES = FILE_BYTES // 2
FILES_MIN = 8
GROUP_ROWS_MAX = 2_000_000
"""Rows that a compaction has in memory."""
GROUPS_MAX = 16
SNAPSHOTS_KEPT = timedelta(hours=6)
SNAPSHOTS_KEPT_MIN = 10
ORPHANS_KEPT = timedelta(days=1)

_BY_OFFSET = [("broker", "ascending"), ("queue", "ascending"), ("offset", "ascending")]


@dataclass(frozen=True)
class Compaction:
    """The result of a compaction: the small files, and the files that replaced them."""

    topic: str
    files_before: int = 0
    files_after: int = 0
    rows: int = 0


def compact(table: LakeTable, files_min: int = FILES_MIN, groups_max: int = GROUPS_MAX) -> Compaction:
    """Replace small files of the same day by larger ones, in one commit; rows and offsets stay the same.

    Args:
        table: The table.
        files_min: Number of small files of a day from which on they are compacted.
        groups_max: Maximum number of files that are written; the next call continues.

    Raises:
        CommitConflict: Another writer has committed meanwhile; nothing was changed.
        LakeUnavailable: The catalog or a file cannot be used.
    """
    state = table.state()
    with lake_errors(f"the table {table.name}"):
        groups = list(_small_files(table, files_min))[:groups_max]
    replaced, written, rows = list[DataFile](), list[str](), 0
    try:
        for group in groups:
            with lake_errors(f"the table {table.name}"), DayFiles(FilesOf.table(table)) as files:
                iceberg = table.iceberg
                scan = ArrowScan(iceberg.metadata, table.io, iceberg.schema(), AlwaysTrue())
                found = scan.to_table(group).cast(table.arrow_schema).sort_by(_BY_OFFSET)
                for batch in found.combine_chunks().to_batches():
                    files.write(batch)
                result = files.close()
            written, rows = [*written, *result.files], rows + result.rows
            replaced += [each.file for each in group]
        if replaced:
            table.commit(written, state.offsets, state.gaps, state, replaced)
    except CommitConflict:
        delete_files(table.io, written)
        raise
    return Compaction(table.topic, len(replaced), len(written), rows)


def _small_files(table: LakeTable, files_min: int) -> Iterator[tuple[FileScanTask, ...]]:
    """Yield groups of small files of a day whose rows fit into one file and into memory."""
    by_day: dict[Any, list[FileScanTask]] = {}
    for task in table.iceberg.scan().plan_files():
        file = task.file
        # Files from which another tool deleted rows are left to that tool.
        if not task.delete_files and file.file_size_in_bytes < SMALL_BYTES:
            by_day.setdefault((file.spec_id, file.partition[0]), []).append(task)
    for tasks in by_day.values():
        if len(tasks) >= files_min:
            tasks.sort(key=lambda each: table.oldest_row(each.file))
            groups = join_small(tasks, _share_of_group, 1.0)
            yield from (each for each in groups if len(each) > 1)


def _share_of_group(task: FileScanTask) -> float:
    return max(task.file.record_count / GROUP_ROWS_MAX, task.file.file_size_in_bytes / FILE_BYTES)


def expire(
    table: LakeTable,
    older_than: timedelta = SNAPSHOTS_KEPT,
    now: datetime | None = None,
    kept_min: int = SNAPSHOTS_KEPT_MIN,
) -> int:
    """Remove old snapshots from the table's metadata, but the newest ones. Return the number of them.

    The files that only they have are deleted by `remove_orphans`. Raises `LakeUnavailable`.
    """
    table.refresh()
    limit = ((now or datetime.now(UTC)) - older_than).timestamp() * 1000
    snapshots = sorted(table.iceberg.metadata.snapshots, key=lambda each: each.timestamp_ms)
    kept = {each.snapshot_id for each in table.iceberg.metadata.refs.values()}
    old = [
        each.snapshot_id
        for each in snapshots[: -max(kept_min, 1)]
        if each.timestamp_ms < limit and each.snapshot_id not in kept
    ]
    if old:
        with lake_errors(f"the table {table.name}"):
            table.iceberg.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def remove_orphans(
    table: LakeTable, older_than: timedelta = ORPHANS_KEPT, now: datetime | None = None
) -> int:
    """Delete the files of the table that no snapshot has and that are old enough. Return their number.

    Younger files may belong to a round that has not committed yet. Raises `LakeUnavailable`.
    """
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        return 0  # PyIceberg's other access to files cannot list them
    limit = (now or datetime.now(UTC)) - older_than
    scheme, host, place = io.parse_location(table.location, io.properties)
    files = io.fs_by_scheme(scheme, host)
    with lake_errors(f"the table {table.name}"):
        found = [
            each
            for folder in ("data", "metadata")
            for each in files.get_file_info(
                FileSelector(f"{place}/{folder}", recursive=True, allow_not_found=True)
            )
        ]
        old = {each.path for each in found if each.type == FileType.File and each.mtime < limit}
        # Listed before the snapshots are read, so that a file that is committed meanwhile is kept.
        table.refresh()
        orphans = sorted(old - {io.parse_location(uri, io.properties)[2] for uri in _used(table)})
        for path in orphans:
            files.delete_file(path)
    return len(orphans)


def _used(table: LakeTable) -> Iterator[str]:
    """Yield the URIs of all files that a snapshot or the metadata of the table has."""
    metadata = table.iceberg.metadata
    yield table.iceberg.metadata_location
    yield from (each.metadata_file for each in metadata.metadata_log)
    yield from (each.statistics_path for each in metadata.statistics)
    yield from (each.statistics_path for each in metadata.partition_statistics)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                yield from (
                    each.data_file.file_path
                    for each in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                )
