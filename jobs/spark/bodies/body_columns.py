"""BodyColumns: the typed columns of a read with `schema`, and what happens to malformed bodies.

    format   decoded by                        in
    json     Spark's from_json                 Spark's JVM
    msgpack  msgspec                           the Python worker that reads the messages
    avro     fastavro, with the `avroSchema`   the same

Columns and modes are those of Spark's JSON reader: a field that the body does not have is null. A body is
malformed if it cannot be decoded, or if a value does not have the type of its field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from jobs.job_errors import OptionInvalid
from jobs.option_values import as_choice
from jobs.reading.bodies.body_decoder import JSON, BodyDecoder, DecodedReader, Mapper, check_available
from jobs.reading.row_filters import DROPMALFORMED, FAILFAST, MODES, PERMISSIVE
from jobs.reading.schema import ALL_COLUMNS, BODY_ERROR, spark_schema
from jobs.spark.keywords import ReadKeywords

FORMATS = (JSON, "msgpack", "avro")
CORRUPT_COLUMN = "spark.sql.columnNameOfCorruptRecord"
PLACE = ("topic", "brokerName", "queueId", "queueOffset")
"""The columns that name a message in error messages."""
BODY = "body"
SHOWN_CHARACTERS = 200
NULLABLE = ("nullable", "containsNull", "valueContainsNull")
"""The keys of the JSON of a schema that permit null values."""


@dataclass(frozen=True)
class BodyColumns:
    """The typed columns of a read.

    Attributes:
        columns: The columns of the message to keep before the typed columns (see `jobs.reading.schema`).
        message_schema: Names and types of these columns.
        schema: The typed columns.
        format: One of FORMATS.
        mode: One of MODES.
        corrupt: Name of the column for malformed bodies, which `schema` may contain.
        avro_schema: The schema of the bodies as JSON, for the format "avro".
    """

    columns: tuple[str, ...]
    message_schema: StructType
    schema: StructType
    format: str
    mode: str
    corrupt: str
    avro_schema: str = ""

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns of the messages that must be read."""
        needed = (*PLACE, BODY, BODY_ERROR)
        return (*self.columns, *(name for name in needed if name not in self.columns))

    @property
    def mapped_schema(self) -> str | StructType:
        """The schema of the result of `mapper`."""
        if self.format == JSON:
            return spark_schema(self.read_columns)
        return StructType([*self.message_schema.fields, *self.schema.fields])

    def mapper(self, reader: Mapper) -> Mapper:
        """Return a function that decodes what `reader` returns, if that happens in the Python worker."""
        if self.format == JSON:
            return reader
        fields = to_arrow_schema(self.schema)
        corrupt = self.corrupt if self.corrupt in self.schema.names else None
        decoder = BodyDecoder(self.columns, fields, self.format, self.avro_schema, self.mode, corrupt)
        return DecodedReader(reader, decoder)

    def finish(self, frame: DataFrame) -> DataFrame:
        """Return the result of the read for `frame`, the result of `mapper`."""
        return self._from_json(frame) if self.format == JSON else frame

    def _from_json(self, frame: DataFrame) -> DataFrame:
        schema = self.schema
        if self.corrupt not in schema.names:
            schema = StructType([*schema.fields, StructField(self.corrupt, StringType())])
        text = F.col(BODY).cast("string")
        options = {"mode": PERMISSIVE, "columnNameOfCorruptRecord": self.corrupt}
        parsed = "__parsed"
        frame = frame.withColumn(parsed, F.from_json(text, schema, options))
        # The result is null for an empty body and for the JSON text null.
        is_malformed = (
            F.col(BODY_ERROR).isNotNull() | F.col(parsed).isNull() | F.col(parsed)[self.corrupt].isNotNull()
        )
        if self.mode == DROPMALFORMED:
            frame = frame.filter(~is_malformed)
        elif self.mode == FAILFAST:
            frame = frame.filter(F.when(is_malformed, F.raise_error(self._error(text))).otherwise(True))
        is_read = F.col(BODY_ERROR).isNull()
        values = {name: F.when(is_read, F.col(parsed)[name]) for name in self.schema.names}
        if self.corrupt in values:
            values[self.corrupt] = F.when(is_malformed, text)
        typed = [value.alias(name) for name, value in values.items()]
        return frame.select(*(F.col(name) for name in self.columns), *typed)

    def _error(self, text: Column) -> Column:
        place = F.concat_ws("/", *(F.col(name) for name in PLACE[:-1]))
        shown = F.coalesce(F.substring(text, 1, SHOWN_CHARACTERS), F.lit("(no body)"))
        fields = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in self.schema.fields)
        return F.concat(
            place,
            F.lit(" offset "),
            F.col(PLACE[-1]).cast("string"),
            F.lit(f": the body is not JSON with the fields {fields}: "),
            shown,
            F.lit(". Correct the schema, or use mode='PERMISSIVE' or 'DROPMALFORMED'"),
        )


def parse_body_columns(
    spark: SparkSession, columns: Sequence[str] | None, given: ReadKeywords
) -> BodyColumns | None:
    """Return the typed columns of a read, or None for a read without a schema.

    `columns` are the columns of the message that the caller chose, or None: then all but the body are kept.
    Raises `OptionInvalid`.
    """
    schema = given.get("schema")
    if schema is None:
        unused = [name for name in ("format", "avroSchema") if name in given]
        if unused:
            raise OptionInvalid(f"{', '.join(unused)}: give also schema=, the columns of the bodies")
        return None
    chosen = as_choice("format", given.get("format"), FORMATS)
    mode = as_choice("mode", given.get("mode", PERMISSIVE), MODES)
    avro_schema = given.get("avroSchema", "")
    check_available(chosen, avro_schema)
    types = _struct_of(spark, schema)
    kept = tuple(name for name in ALL_COLUMNS if name != BODY) if columns is None else tuple(columns)
    corrupt = str(spark.conf.get(CORRUPT_COLUMN))
    _check_fields(types, kept, corrupt)
    message_schema = _struct_of(spark, spark_schema(kept)) if kept else StructType()
    return BodyColumns(kept, message_schema, types, chosen, mode, corrupt, avro_schema)


def _struct_of(spark: SparkSession, schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return StructType.fromJson(_nullable(schema.jsonValue()))
    try:
        return spark.createDataFrame([], schema).schema
    except (PySparkException, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OptionInvalid(
            f"schema={schema!r} is neither a StructType nor DDL such as 'id BIGINT, name STRING': {reason}"
        ) from error


def _nullable(schema: Any) -> Any:
    """Return the JSON value of a schema with all fields and elements nullable, as in Spark's JSON reader."""
    if isinstance(schema, list):
        return [_nullable(each) for each in schema]
    if isinstance(schema, dict):
        return {key: True if key in NULLABLE else _nullable(each) for key, each in schema.items()}
    return schema


def _check_fields(schema: StructType, columns: Sequence[str], corrupt: str) -> None:
    if not schema.fields:
        raise OptionInvalid("schema has no fields: give the columns of the bodies, such as 'id BIGINT'")
    names = {name.lower() for name in columns}
    taken = [name for name in schema.names if name.lower() in names]
    if taken:
        raise OptionInvalid(
            f"schema has the fields {', '.join(taken)}, which are also columns of the message: give columns="
            " with the columns of the message to keep, without them"
        )
    if corrupt in schema.names and schema[corrupt].dataType != StringType():
        raise OptionInvalid(f"{corrupt}, the column for malformed bodies, must have the type STRING")
