"""Names and Spark types of the columns of `read_queue`."""

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
BODY_ERROR = "bodyError"
"""Why a body cannot be decompressed; null for all others. It is not among the columns by default."""
SPARK_TYPES[BODY_ERROR] = "string"


def resolve_columns(columns: Sequence[str] | None, *, may_be_empty: bool = False) -> tuple[str, ...]:
    """Return the columns to read: `columns`, or all if it is None.

    Raises `OptionInvalid` if a name is unknown or listed twice, or if the list is empty and must not be.
    """
    if columns is None:
        return ALL_COLUMNS
    if isinstance(columns, str):
        raise OptionInvalid(f"columns={columns!r} is invalid: give a list of names")
    unknown = sorted(set(columns) - set(SPARK_TYPES))
    if unknown or not (columns or may_be_empty) or len(set(columns)) != len(columns):
        fault = f"unknown: {', '.join(unknown)}" if unknown else "empty, or a column is listed twice"
        raise OptionInvalid(
            f"columns={list(columns)} is invalid ({fault}); the columns are {', '.join(SPARK_TYPES)}"
        )
    return tuple(columns)


def spark_schema(columns: Sequence[str]) -> str:
    """Return the schema of `columns`, given by name, as a Spark DDL string."""
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in columns)
