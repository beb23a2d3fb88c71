"""The columns of `read_queue`: their names, and their types in Spark."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.job_errors import OptionInvalid

SPARK_TYPES = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "commitLogOffset": "bigint",
    "body": "binary",
    "tags": "string",
    "keys": "string",
    "uniqKey": "string",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "reconsumeTimes": "int",
}
ALL_COLUMNS = tuple(SPARK_TYPES)


def chosen_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Give the columns to be read: all, where None; raises `OptionInvalid` for a name that is none."""
    if columns is None:
        return ALL_COLUMNS
    unknown = sorted(set(columns) - set(ALL_COLUMNS))
    if unknown or not columns or len(set(columns)) != len(columns):
        wrong = f"{', '.join(unknown)} unknown" if unknown else "empty, or one named twice"
        raise OptionInvalid(f"columns={list(columns)}: {wrong}; there are {', '.join(ALL_COLUMNS)}")
    return tuple(columns)


def spark_schema(columns: Sequence[str]) -> str:
    """Give the schema in Spark's own words (DDL)."""
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in columns)
