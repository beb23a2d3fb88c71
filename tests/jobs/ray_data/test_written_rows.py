"""Blocks of different functions become one table, or the error names the column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from jobs.job_errors import WriteFailed
from jobs.writing.partition_writer import join_blocks, select_columns
from jobs.writing.write_job import WriteColumns

COLUMNS = WriteColumns("body", "key", None, None, "properties")


def joined(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    tables = [select_columns(pa.table({"properties": [None], **each}), COLUMNS) for each in blocks]
    return join_blocks(tables).to_pylist()


def test_types_of_blocks_are_unified() -> None:
    rows = joined(
        {"body": [b"1"], "key": pa.nulls(1), "more": [1]},
        {"body": pa.array([b"2"], pa.large_binary()), "key": ["k"]},
        {"body": pa.array([b"3"]).dictionary_encode(), "key": pa.array(["l"]).dictionary_encode()},
    )
    assert [(row["body"], row["key"]) for row in rows] == [(b"1", None), (b"2", "k"), (b"3", "l")]


@pytest.mark.parametrize(
    "given",
    [
        [{"a": "1", "b": None}],
        [[("a", "1")]],
        [[{"key": "a", "value": "1"}]],
        pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string())),
    ],
    ids=["struct", "pairs", "structs", "map"],
)
def test_properties_may_be_structs_lists_or_maps(given: Any) -> None:
    if isinstance(given, list) and isinstance(given[0], list) and isinstance(given[0][0], tuple):
        given = pa.array([[list(pair) for pair in row] for row in given])
    [row] = joined({"body": ["x"], "key": ["k"], "properties": given})
    assert row["properties"] == [("a", "1")]


def test_columns_without_any_value_and_views_have_types_that_can_be_sent() -> None:
    columns = WriteColumns("body", None, None, None, "properties", delay="delay")
    empty = pa.table({"body": ["x"], "properties": pa.nulls(1), "delay": pa.nulls(1)})
    viewed = empty.set_column(0, "body", pa.array(["y"], pa.string_view()))
    table = join_blocks([select_columns(each, columns) for each in (empty, viewed)])
    assert table["body"].to_pylist() == ["x", "y"]
    assert pa.types.is_map(table.schema.field("properties").type)
    assert pa.types.is_integer(table.schema.field("delay").type)


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ({"body": ["x"]}, "no column 'key'"),
        ({"key": ["x"]}, "no column 'body'"),
        ({"body": ["x"], "key": ["k"], "properties": [{"a": 1}]}, "column 'properties'"),
    ],
)
def test_fault_of_a_block_names_the_column(block: dict[str, Any], fault: str) -> None:
    with pytest.raises(WriteFailed, match=fault):
        joined(block)


def test_columns_that_cannot_be_unified_are_named() -> None:
    with pytest.raises(WriteFailed, match="body"):
        joined({"body": ["x"], "key": ["k"]}, {"body": [1.5], "key": ["k"]})
