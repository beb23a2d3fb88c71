"""Decode bodies that are Avro data without a header, as Spark's `from_avro` does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from jobs.job_errors import OptionInvalid


def avro_decoder(avro_schema: str) -> Callable[[bytes], object]:
    """Return a function that decodes one value written with `avro_schema`, a record schema as JSON.

    The function raises ValueError for bytes after the value, and the errors of fastavro. Raises
    `OptionInvalid` if fastavro is not installed or the schema is invalid.
    """
    try:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as error:
        raise OptionInvalid(
            "format='avro' needs the package fastavro, which is not installed: run `pip install fastavro`,"
            " here and on all executors"
        ) from error
    try:
        schema = fastavro.parse_schema(json.loads(avro_schema))
    except (SchemaParseException, UnknownType, TypeError, ValueError) as error:
        raise OptionInvalid(f"avroSchema={avro_schema!r} is not an Avro schema as JSON: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise OptionInvalid(f"avroSchema={avro_schema!r} is not a record: the body must have named fields")

    def decode(body: bytes) -> object:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, schema, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the Avro value")
        return value

    return decode
