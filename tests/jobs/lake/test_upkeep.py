"""Upkeep of a table: its rows, its state and what readers use stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.job_errors import CommitConflict
from jobs.lake import upkeep
from jobs.lake.bodies import LakeBodies
from jobs.lake.lake_table import LakeGap, LakeTable
from jobs.lake.upkeep import compact, expire, remove_orphans
from tests.jobs.lake.lake_files import QUEUE, TOPIC, catalog_of, offsets_in, table_of, write_rows

GAP = LakeGap("broker-a", 0, 0, 10)


def with_files(table: LakeTable, count: int) -> LakeTable:
    """Add `count` files of ten rows each, in one commit each."""
    for number in range(1, count + 1):
        begin = number * 10
        file = write_rows(table, reversed(range(begin, begin + 10)), f"file-{100 - number}")
        table.commit([file], {QUEUE: begin + 10}, [GAP], table.state())
    return table


def files_in(table: LakeTable) -> list[str]:
    table.refresh()
    return [each.file.file_path for each in table.iceberg.scan().plan_files()]


def offsets_of(file: str) -> list[int]:
    offsets: list[int] = pq.read_table(file.removeprefix("file://"), columns=["offset"])["offset"].to_pylist()
    return offsets


def names_on_disk(table: LakeTable) -> set[str]:
    return {each.name for each in Path(table.location.removeprefix("file://"), "data").rglob("*.parquet")}


def test_compaction_keeps_rows_state_and_their_order(tmp_path: Path) -> None:
    table = with_files(table_of(catalog_of(tmp_path)), 8)
    before = table.state()
    result = compact(table)
    assert (result.files_before, result.files_after, result.rows) == (8, 1, 80)
    assert offsets_in(table) == list(range(10, 90))
    assert [offsets_of(file) for file in files_in(table)] == [list(range(10, 90))]
    after = table.state()
    assert (after.offsets, after.gaps) == (before.offsets, before.gaps) == ({QUEUE: 90}, (GAP,))
    assert compact(table).files_before == 0


def test_compaction_waits_for_enough_small_files_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_files(table_of(catalog_of(tmp_path)), 6)
    assert compact(table).files_before == 0
    monkeypatch.setattr(upkeep, "GROUP_ROWS_MAX", 20)
    result = compact(table, files_min=2, groups_max=2)
    assert (result.files_before, result.files_after) == (4, 2)
    assert offsets_in(table) == list(range(10, 70))
    # groups follow the times of rows, not the names of files: a queue's files do not overlap
    assert sorted(sorted(offsets_of(file)) for file in files_in(table)) == [
        list(range(begin, begin + count)) for begin, count in ((10, 20), (30, 20), (50, 10), (60, 10))
    ]


def test_compaction_that_meets_a_commit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path)
    table, other = with_files(table_of(catalog), 3), table_of(catalog)
    commit = LakeTable.commit

    def commit_other_first(self: LakeTable, *given: object) -> object:
        monkeypatch.undo()
        file = write_rows(other, range(40, 50), "meanwhile")
        other.commit([file], {QUEUE: 50}, [GAP], other.state())
        return commit(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(LakeTable, "commit", commit_other_first)
    with pytest.raises(CommitConflict):
        compact(table, files_min=2)
    assert offsets_in(table) == list(range(10, 50))
    assert names_on_disk(table) == {Path(each).name for each in files_in(table)}


def test_compaction_fills_columns_that_were_added_later(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    with_files(table_of(catalog), 2)
    table = LakeTable.create(catalog, "raymq", TOPIC, bodies=LakeBodies("id BIGINT"))
    assert compact(table, files_min=2).rows == 20
    assert table.iceberg.scan().to_arrow()["id"].null_count == 20


def test_expiry_keeps_the_newest_snapshots_and_the_state(tmp_path: Path) -> None:
    table = with_files(table_of(catalog_of(tmp_path)), 5)
    before = table.state()
    assert expire(table, timedelta(hours=1), kept_min=2) == 0
    later = datetime.now(UTC) + timedelta(hours=2)
    assert expire(table, timedelta(hours=1), later, kept_min=2) == 3
    assert table.state() == before
    assert len(table.iceberg.snapshots()) == 2
    assert offsets_in(table) == list(range(10, 60))


def test_orphans_are_deleted_after_a_day_and_no_other_file(tmp_path: Path) -> None:
    table = with_files(table_of(catalog_of(tmp_path)), 4)
    compact(table, files_min=2)
    write_rows(table, range(100, 110), "killed-writer")
    now = datetime.now(UTC)
    assert remove_orphans(table, now=now) == 0
    # the snapshots before the compaction still have the small files
    assert remove_orphans(table, now=now + timedelta(days=2)) == 1
    assert "killed-writer.parquet" not in names_on_disk(table)
    expire(table, timedelta(0), now + timedelta(days=2), kept_min=1)
    assert remove_orphans(table, now=now + timedelta(days=2)) > 4
    assert names_on_disk(table) == {Path(each).name for each in files_in(table)}
    assert offsets_in(table) == list(range(10, 50))
    table.commit([write_rows(table, range(50, 60), "next")], {QUEUE: 60}, [GAP], table.state())
    assert offsets_in(table) == list(range(10, 60))
