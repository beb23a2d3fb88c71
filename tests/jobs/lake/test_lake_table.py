"""LakeTable: each message is added once, whatever happens to the writer, the catalog or the other tools."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.io.pyarrow import parquet_files_to_data_files

from jobs.job_errors import CommitConflict, LakeInvalid, LakeUnavailable, OptionInvalid
from jobs.lake.bodies import LakeBodies
from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeGap, LakeState, LakeTable, merge_gaps
from tests.jobs.lake.lake_files import QUEUE, TOPIC, catalog_of, offsets_in, table_of, write_rows


def test_table_state_follows_commits(tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    assert table.state() == LakeState(None, {}, ())
    gap = LakeGap("broker-a", 0, 0, 10)
    state = table.commit([write_rows(table, range(10, 20), "one")], {QUEUE: 20}, [gap], table.state())
    assert (
        table_of(catalog_of(tmp_path)).state() == state == LakeState(state.snapshot_id, {QUEUE: 20}, (gap,))
    )
    # a round in which all messages were deleted has no files
    state = table.commit([], {QUEUE: 25}, [gap, LakeGap("broker-a", 0, 20, 25)], state)
    assert table.state() == state
    assert table.state().offsets == {QUEUE: 25}
    assert offsets_in(table) == list(range(10, 20))


@pytest.mark.parametrize("retries", ["0", "4"])
def test_second_writer_is_refused_also_if_the_table_permits_retries(tmp_path: Path, retries: str) -> None:
    catalog = catalog_of(tmp_path)
    first, second = table_of(catalog), table_of(catalog)
    with first.iceberg.transaction() as change:  # another tool
        change.set_properties({"commit.retry.num-retries": retries})
    began = first.state()
    first.commit([write_rows(first, range(10), "one")], {QUEUE: 10}, [], began)
    with pytest.raises(CommitConflict, match="nothing was added"):
        second.commit([write_rows(second, range(10), "two")], {QUEUE: 10}, [], began)
    assert offsets_in(second) == list(range(10))


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_writers_that_meet_in_the_catalog_add_rows_once(
    tmp_path: Path, has_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path)
    first, second = table_of(catalog), table_of(catalog)
    with first.iceberg.transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4"})
    began, begin = first.state(), 0
    if has_snapshot:
        began, begin = first.commit([write_rows(first, range(5), "zero")], {QUEUE: 5}, [], began), 5

    def commit_second_before(self: Any, *given: Any) -> Any:
        monkeypatch.undo()
        second.commit([write_rows(second, range(begin, 10), "two")], {QUEUE: 10}, [], began)
        return type(catalog).commit_table(self, *given)

    monkeypatch.setattr(type(catalog), "commit_table", commit_second_before)
    with pytest.raises(CommitConflict, match="another writer"):
        first.commit([write_rows(first, range(begin, 10), "one")], {QUEUE: 10}, [], began)
    assert offsets_in(first) == list(range(10))


def test_writer_killed_before_its_commit_leaves_the_table_unchanged(tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    began = table.state()
    write_rows(table, range(10), "lost")
    again = table_of(catalog_of(tmp_path))
    assert again.state() == began
    again.commit([write_rows(again, range(10), "again")], {QUEUE: 10}, [], again.state())
    assert offsets_in(again) == list(range(10))


def interrupted(commit: Callable[..., Any], *, lands: bool) -> Callable[..., Any]:
    """Return a commit of the catalog whose response is lost, after it landed or before."""

    def commit_table(*given: Any) -> Any:
        if lands:
            commit(*given)
        raise CommitStateUnknownException("connection reset")

    return commit_table


def test_commit_of_unknown_outcome_is_found_if_it_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path)
    table = table_of(catalog)
    files = [write_rows(table, range(10), "one")]
    with monkeypatch.context() as patched:
        patched.setattr(type(catalog), "commit_table", interrupted(type(catalog).commit_table, lands=True))
        state = table.commit(files, {QUEUE: 10}, [], table.state())
    assert table.state() == state
    table.commit([write_rows(table, range(10, 20), "two")], {QUEUE: 20}, [], state)
    assert offsets_in(table) == list(range(20))


def test_commit_of_unknown_outcome_is_repeated_if_it_did_not_land(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(tmp_path)
    table = table_of(catalog)
    files = [write_rows(table, range(10), "one")]
    with monkeypatch.context() as patched:
        patched.setattr(type(catalog), "commit_table", interrupted(type(catalog).commit_table, lands=False))
        with pytest.raises(LakeUnavailable, match="connection reset"):
            table.commit(files, {QUEUE: 10}, [], table.state())
    assert table.state() == LakeState()
    table.commit(files, {QUEUE: 10}, [], table.state())
    assert offsets_in(table) == list(range(10))


def test_locked_catalog_fails_the_commit_and_keeps_the_table(tmp_path: Path) -> None:
    database = tmp_path / "catalog.db"
    properties = {"type": "sql", "uri": f"sqlite:///{database}?timeout=0.1"}
    table = table_of(open_catalog(LakeSettings(str(tmp_path / "lake"), catalog=properties)))
    files = [write_rows(table, range(10), "one")]
    began = table.state()
    with sqlite3.connect(database) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LakeUnavailable, match="database is locked"):
            table.commit(files, {QUEUE: 10}, [], began)
        lock.rollback()
    assert table.state() == began
    table.commit(files, {QUEUE: 10}, [], began)
    assert offsets_in(table) == list(range(10))


def rewrite(table: LakeTable, path: str) -> None:
    """Replace all files by the file at `path`, without RayMQ's properties, as Spark's rewrite_data_files."""
    old = [each.file for each in table.iceberg.scan().plan_files()]
    with table.iceberg.transaction() as change, change.update_snapshot().overwrite() as update:
        for each in old:
            update.delete_data_file(each)
        for new in parquet_files_to_data_files(table.io, table.iceberg.metadata, iter([path])):
            update.append_data_file(new)


def test_state_survives_snapshots_of_other_tools_and_their_expiry(tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    ours = table.commit([write_rows(table, range(10), "one")], {QUEUE: 10}, [], table.state())
    rewrite(table, write_rows(table, range(10), "rewritten"))
    rewritten = table.state()
    assert (rewritten.offsets, rewritten.gaps) == (ours.offsets, ours.gaps)
    assert rewritten.snapshot_id not in (None, ours.snapshot_id)
    older = [
        each.snapshot_id for each in table.iceberg.snapshots() if each.snapshot_id != rewritten.snapshot_id
    ]
    table.iceberg.maintenance.expire_snapshots().by_ids(older).commit()
    assert table.state() == rewritten
    table.commit([write_rows(table, range(10, 20), "two")], {QUEUE: 20}, [], rewritten)
    assert offsets_in(table) == list(range(20))


def test_table_rolled_back_has_the_state_of_that_snapshot(tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    first = table.commit([write_rows(table, range(10), "one")], {QUEUE: 10}, [], table.state())
    table.commit([write_rows(table, range(10, 20), "two")], {QUEUE: 20}, [], first)
    assert first.snapshot_id is not None
    table.iceberg.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert table.state() == first
    table.commit([write_rows(table, range(10, 20), "again")], {QUEUE: 20}, [], first)
    assert offsets_in(table) == list(range(20))


def test_table_whose_offsets_are_unknown_is_refused(tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    table.iceberg.add_files([write_rows(table, range(10), "foreign")])
    with pytest.raises(LakeInvalid, match=r"has the property raymq\.offsets"):
        table.state()


def test_replaced_files_and_their_offsets_are_committed_together(tmp_path: Path) -> None:
    table = table_of(catalog_of(tmp_path))
    state = table.commit([write_rows(table, range(10), "one")], {QUEUE: 10}, [], table.state())
    state = table.commit([write_rows(table, range(10, 20), "two")], {QUEUE: 20}, [], state)
    small = [each.file for each in table.iceberg.scan().plan_files()]
    merged = write_rows(table, range(20), "merged")
    compacted = table.commit([merged], state.offsets, state.gaps, state, replaced=small)
    assert offsets_in(table) == list(range(20))
    assert [each.file.file_path for each in table.iceberg.scan().plan_files()] == [merged]
    assert table.state() == compacted
    with pytest.raises(CommitConflict):
        table.commit([write_rows(table, range(20, 30), "late")], {QUEUE: 30}, [], state)


def test_later_schema_adds_columns_and_widens_types(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    first = LakeTable.create(catalog, "raymq", TOPIC, bodies=LakeBodies("id INT"))
    assert first.arrow_schema.names[-2:] == ["properties", "id"]
    first.commit([write_rows(first, range(10), "one")], {QUEUE: 10}, [], first.state())
    bodies = LakeBodies("id BIGINT, name STRING, lines ARRAY<STRUCT<n: INT>>")
    later = LakeTable.create(catalog, "raymq", TOPIC, bodies=bodies)
    assert later.arrow_schema.names[-3:] == ["id", "name", "lines"]
    later.commit([write_rows(later, range(10, 20), "two")], {QUEUE: 20}, [], later.state())
    assert offsets_in(later) == list(range(20))
    with pytest.raises(OptionInvalid, match=r"does not fit the table raymq\.orders"):
        LakeTable.create(catalog, "raymq", TOPIC, bodies=LakeBodies("name DOUBLE"))


def test_metadata_names_no_column_that_is_missing(tmp_path: Path) -> None:
    """Iceberg's REST server refuses to create such a table, also if the column is added at once."""
    catalog = catalog_of(tmp_path)
    LakeTable.create(catalog, "raymq", TOPIC)
    LakeTable.create(catalog, "raymq", "typed", bodies=LakeBodies("id INT")).errors_table()
    written = [json.loads(each.read_text()) for each in tmp_path.rglob("*.metadata.json")]
    assert len({each["location"] for each in written}) == 3
    for each in written:
        columns = {field["name"] for field in each["schemas"][-1]["fields"]}
        prefix = "write.metadata.metrics.column."
        named = {key.removeprefix(prefix).split(".")[0] for key in each["properties"] if prefix in key}
        assert named <= columns


def test_table_of_another_topic_is_refused(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    table_of(catalog, "orders_errors")
    with pytest.raises(LakeInvalid, match="errors-of=None, not orders"):
        LakeTable.create(catalog, "raymq", TOPIC, suffix="_errors")


def test_adjacent_gaps_are_merged_by_queue() -> None:
    gaps = [LakeGap("b", 0, 5, 9), LakeGap("a", 0, 0, 5), LakeGap("a", 1, 5, 9), LakeGap("a", 0, 5, 7)]
    assert merge_gaps(gaps) == (LakeGap("a", 0, 0, 7), LakeGap("a", 1, 5, 9), LakeGap("b", 0, 5, 9))
