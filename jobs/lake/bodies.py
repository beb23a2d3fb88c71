"""LakeBodies: the schema by which the bodies of a topic become columns of its table.

It is a property of the table, so that all writers decode the bodies in the same way. Its text is Spark's:
`id BIGINT, name STRING, lines ARRAY<STRUCT<item: STRING, count: INT>>`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property

import pyarrow as pa
import pyparsing as pp

from jobs.job_errors import OptionInvalid
from jobs.option_values import as_choice
from jobs.reading.bodies.body_decoder import BodyDecoder, check_available
from jobs.reading.row_filters import PERMISSIVE
from jobs.reading.table_files import TABLE_COLUMNS

REASON = "reason"
"""The column of a table of errors that says why the body cannot be decoded."""
FORMATS = ("json", "msgpack", "avro")
_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int32(),
    "smallint": pa.int32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Iceberg has no integers of less than 32 bits."""
DIGITS_MAX = 38


@dataclass(frozen=True)
class LakeBodies:
    """How bodies are decoded. Creating it raises `OptionInvalid` if that is not possible.

    Attributes:
        schema: The columns, as a Spark DDL text.
        format: "json", "msgpack" or "avro".
        avro_schema: The schema with which Avro bodies were written, as JSON.
    """

    schema: str
    format: str = "json"
    avro_schema: str = ""

    def __post_init__(self) -> None:
        as_choice("format", self.format, FORMATS)
        check_available(self.format, self.avro_schema)
        _ = self.fields

    @cached_property
    def fields(self) -> pa.Schema:
        """Names and types of the columns."""
        try:
            found = pa.schema(list(_COLUMNS.parse_string(self.schema, parse_all=True)))
        except (pp.ParseBaseException, RecursionError) as error:
            raise OptionInvalid(
                f"schema={self.schema!r} is invalid: {error}. Give columns such as 'id BIGINT, name STRING'"
            ) from error
        if taken := {*TABLE_COLUMNS.values(), REASON}.intersection(map(str.lower, found.names)):
            raise OptionInvalid(
                f"schema={self.schema!r} is invalid: each message has a column {min(taken)} already. Give it"
                " another name"
            )
        return found

    def decoder(self) -> BodyDecoder:
        """Return a decoder of bodies."""
        return BodyDecoder((), self.fields, self.format, self.avro_schema, PERMISSIVE, None)

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LakeBodies:
        """Return the object that `to_json` wrote."""
        return cls(**json.loads(text))


def bodies_of(schema: str | None, body_format: str, avro_schema: str) -> LakeBodies | None:
    """Return how bodies are decoded; None without a schema. Raises `OptionInvalid`."""
    if schema is not None:
        return LakeBodies(schema, body_format, avro_schema)
    if body_format != FORMATS[0] or avro_schema:
        raise OptionInvalid(
            "the format of bodies is given, but no schema: give the columns, such as 'id BIGINT, name STRING'"
        )
    return None


def _grammar() -> pp.ParserElement:
    """Return the parser of the columns of a Spark DDL text, whose results are Arrow fields."""
    kind = pp.Forward()
    name = (pp.Regex(r"[A-Za-z_]\w*") | pp.QuotedString("`")).set_name("the name of a column")
    column = (name - pp.Opt(pp.Suppress(":")) + kind).set_parse_action(lambda found: pa.field(*found))
    columns = pp.DelimitedList(column)
    columns.add_condition(_has_unique_names, message="a column is there twice", fatal=True)

    def generic(word: str, arguments: pp.ParserElement) -> pp.ParserElement:
        return pp.CaselessKeyword(word).suppress() - pp.Suppress("<") - arguments - pp.Suppress(">")

    digits = pp.Suppress("(") - pp.common.integer - pp.Suppress(",") - pp.common.integer - pp.Suppress(")")
    decimal = pp.one_of("decimal numeric", caseless=True, as_keyword=True).suppress() + pp.Opt(digits)
    kind <<= (
        pp.one_of(list(_TYPES), caseless=True, as_keyword=True).add_parse_action(
            lambda found: _TYPES[found[0]]
        )
        | decimal.add_parse_action(_decimal)
        | generic("array", kind).add_parse_action(lambda found: pa.list_(found[0]))
        | generic("map", kind - pp.Suppress(",") - kind).add_parse_action(lambda found: pa.map_(*found))
        | generic("struct", columns).add_parse_action(lambda found: pa.struct(list(found)))
    ).set_name(f"one of the types {', '.join(_TYPES)}, decimal, array, map, struct")
    return columns


def _has_unique_names(found: pp.ParseResults) -> bool:
    names = [each.name.lower() for each in found]
    return len(set(names)) == len(names)


def _decimal(found: pp.ParseResults) -> pa.DataType:
    precision, scale = found or (10, 0)
    if not scale <= precision <= DIGITS_MAX or not precision:
        raise pp.ParseFatalException(f"decimal({precision}, {scale}) needs 1 to {DIGITS_MAX} digits")
    return pa.decimal128(precision, scale)


_COLUMNS = _grammar()
