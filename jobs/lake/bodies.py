"""LakeBodies: the schema by which the bodies of a topic become columns of its table.

It is a property of the table, so that all writers decode the bodies in the same way. Its text is Spark's:
`id BIGINT, name STRING, lines ARRAY<STRUCT<item: STRING, count: INT>>`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

import pyarrow as pa

from jobs.job_errors import OptionInvalid
from jobs.option_values import as_choice
from jobs.reading.bodies.body_decoder import BodyDecoder, check_available
from jobs.reading.row_filters import PERMISSIVE

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
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|`[^`]+`|[0-9]+|[<>(),:])")


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

    @property
    def fields(self) -> pa.Schema:
        """Names and types of the columns."""
        return pa.schema(_Ddl(self.schema).fields())

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


class _Ddl:
    """Parses the columns of a Spark DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def fields(self) -> list[pa.Field]:
        """Return the columns. Raises `OptionInvalid`."""
        found = self._fields(end="")
        names = [each.name.lower() for each in found]
        if len(set(names)) != len(names):
            raise self._invalid("a column is there twice")
        return found

    def _fields(self, end: str) -> list[pa.Field]:
        found = []
        while True:
            name = self._next().strip("`")
            if not name or not (name[0].isalpha() or name[0] == "_"):
                raise self._invalid("a column needs a name")
            if self._peek() == ":":
                self._next()
            found.append(pa.field(name, self._type()))
            following = self._next()
            if following == end:
                return found
            if following != ",":
                raise self._invalid(f"{following or 'its end'} is unexpected")

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name == "array":
            return pa.list_(self._arguments("<", ">", 1)[0])
        if name == "map":
            return pa.map_(*self._arguments("<", ">", 2))
        if name == "struct":
            self._expect("<")
            return pa.struct(self._fields(end=">"))
        if name in ("decimal", "numeric"):
            return self._decimal()
        if name not in _TYPES:
            raise self._invalid(
                f"{name or 'its end'} is no type; the types are {', '.join(_TYPES)}, decimal,"
                " array, map and struct"
            )
        return _TYPES[name]

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._expect("(")
        precision = self._next()
        self._expect(",")
        scale = self._next()
        self._expect(")")
        if not (precision.isdecimal() and scale.isdecimal() and int(scale) <= int(precision) <= 38):
            raise self._invalid("give decimal(PRECISION, SCALE) with at most 38 digits")
        return pa.decimal128(int(precision), int(scale))

    def _arguments(self, begin: str, end: str, count: int) -> list[pa.DataType]:
        self._expect(begin)
        found = [self._type()]
        for _ in range(count - 1):
            self._expect(",")
            found.append(self._type())
        self._expect(end)
        return found

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise self._invalid(f"{found or 'its end'} is unexpected instead of {token}")

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._place)
        return found[1] if found else ""

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._place)
        if found is None:
            if self._text[self._place :].strip():
                raise self._invalid(f"{self._text[self._place :].strip()[0]!r} is unexpected")
            return ""
        self._place = found.end()
        return found[1]

    def _invalid(self, reason: str) -> OptionInvalid:
        return OptionInvalid(
            f"schema={self._text!r} is invalid: {reason}. Give columns such as 'id BIGINT, name STRING'"
        )
