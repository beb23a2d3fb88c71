"""BodyDecoder: decodes the bodies of a batch in a Python worker and converts them to typed Arrow columns."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jobs.job_errors import BodyInvalid, OptionInvalid
from jobs.reading.row_filters import DROPMALFORMED, FAILFAST
from jobs.reading.schema import BODY_ERROR

Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for Spark's `mapInArrow`."""
Decode = Callable[[bytes], object]
CONVERSION_ERRORS = (pa.ArrowException, ArithmeticError, TypeError, ValueError)
SHOWN_BYTES = 60
JSON = "json"


class BodyDecoder:
    """Replaces the column `body` of a batch of messages by typed columns.

    Spark pickles this object and sends it to the workers.
    """

    def __init__(
        self,
        columns: Sequence[str],
        fields: pa.Schema,
        body_format: str,
        avro_schema: str,
        mode: str,
        corrupt: str | None,
    ) -> None:
        """Create a decoder.

        Args:
            columns: The columns of the message to keep.
            fields: Names and types of the typed columns.
            body_format: "json", "msgpack" or "avro".
            avro_schema: The Avro schema of the bodies as JSON.
            mode: One of `jobs.reading.row_filters.MODES`.
            corrupt: The typed column that contains malformed bodies as base64, or None.
        """
        self._columns = list(columns)
        self._fields = fields
        self._format = body_format
        self._avro_schema = avro_schema
        self._mode = mode
        self._corrupt = corrupt
        self._decode: Decode | None = None

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with typed columns. Raises `BodyInvalid` in the mode FAILFAST."""
        bodies = batch.column("body").to_pylist()
        arrays, faults = self.typed_columns(bodies, batch.column(BODY_ERROR).to_pylist())
        if faults and self._mode == FAILFAST:
            self._fail(batch, bodies, faults)
        names = [field.name for field in self._fields if field.name != self._corrupt]
        typed = dict(zip(names, arrays, strict=True))
        if self._corrupt is not None:
            texts = [
                base64.b64encode(body).decode() if row in faults else None for row, body in enumerate(bodies)
            ]
            typed[self._corrupt] = pa.array(texts, pa.string())
        kept = [batch.column(name) for name in self._columns]
        decoded = pa.RecordBatch.from_arrays(
            [*kept, *(typed[name] for name in self._fields.names)],
            names=[*self._columns, *self._fields.names],
        )
        if faults and self._mode == DROPMALFORMED:
            valid: NDArray[np.bool_] = np.ones(len(bodies), np.bool_)
            valid[list(faults)] = False
            decoded = decoded.filter(pa.array(valid))
        return decoded

    def typed_columns(
        self, bodies: Sequence[bytes], errors: Sequence[str | None]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the typed columns of bodies, and by row the reasons why bodies cannot be decoded.

        `errors` are the reasons why bodies cannot be decompressed. The values of such rows are null.
        """
        if self._decode is None:
            self._decode = decoder_of(self._format, self._avro_schema)
        faults: dict[int, str] = {}
        values = [
            self._value(row, body, error, faults)
            for row, (body, error) in enumerate(zip(bodies, errors, strict=True))
        ]
        arrays = [
            self._column(field, values, faults) for field in self._fields if field.name != self._corrupt
        ]
        return arrays, faults

    def _value(
        self, row: int, body: bytes, error: str | None, faults: dict[int, str]
    ) -> Mapping[str, object]:
        assert self._decode is not None
        if error is not None:
            faults[row] = error
            return {}
        try:
            value = self._decode(body)
        except (ArithmeticError, EOFError, LookupError, MemoryError, TypeError, ValueError) as error:
            faults[row] = f"{type(error).__name__}: {error}"
            return {}
        if not isinstance(value, dict):
            faults[row] = f"it is a {type(value).__name__}, not a map of fields"
            return {}
        return value

    def _column(
        self, field: pa.Field, values: Sequence[Mapping[str, object]], faults: dict[int, str]
    ) -> pa.Array:
        column = [value.get(field.name) for value in values]
        try:
            return self._array(column, field.type)
        except CONVERSION_ERRORS:
            pass
        for row, value in enumerate(column):
            try:
                self._array([value], field.type)
            except CONVERSION_ERRORS as error:
                faults.setdefault(row, f"field {field.name} is no {field.type}: {error}")
                column[row] = None
        return self._array(column, field.type)

    def _array(self, values: Sequence[object], kind: pa.DataType) -> pa.Array:
        # JSON has texts for times and decimals
        if self._format == JSON and (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
            texts = [value if value is None or isinstance(value, str) else str(value) for value in values]
            return pa.array(texts, pa.string()).cast(kind)
        return pa.array(values, kind)

    def _fail(self, batch: pa.RecordBatch, bodies: Sequence[bytes | None], faults: Mapping[int, str]) -> None:
        row = min(faults)
        place = batch.slice(row, 1).select(["topic", "brokerName", "queueId", "queueOffset"]).to_pylist()[0]
        topic, broker_name, queue_id, offset = place.values()
        fields = ", ".join(f"{each.name} {each.type}" for each in self._fields)
        raise BodyInvalid(
            f"{topic}/{broker_name}/{queue_id} offset {offset}: the body is not {self._format} with the"
            f" fields {fields}: {faults[row]}; it begins with {(bodies[row] or b'')[:SHOWN_BYTES]!r}. Correct"
            " the schema, or use mode='PERMISSIVE' or 'DROPMALFORMED'"
        )


class DecodedReader:
    """A function for `mapInArrow` that decodes the bodies of the messages which another one returns."""

    def __init__(self, reader: Mapper, decoder: BodyDecoder) -> None:
        self._reader = reader
        self._decoder = decoder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches with typed columns. Raises the errors of the reader, and `BodyInvalid`."""
        for batch in self._reader(batches):
            yield self._decoder.decode(batch)


def check_available(body_format: str, avro_schema: str) -> None:
    """Raise `OptionInvalid` if bodies of this format cannot be decoded, or the Avro schema is invalid."""
    if body_format != "avro":
        if avro_schema:
            raise OptionInvalid(f"avroSchema is given, but format={body_format!r}: give format='avro'")
        return
    if not avro_schema:
        raise OptionInvalid(
            "format='avro' needs avroSchema: the schema with which the bodies were written, as JSON"
        )
    decoder_of(body_format, avro_schema)


def decoder_of(body_format: str, avro_schema: str) -> Decode:
    """Return the function that decodes one body. Raises `OptionInvalid`."""
    if body_format == JSON:
        return msgspec.json.Decoder[Any]().decode
    if body_format == "msgpack":
        return msgspec.msgpack.Decoder[Any]().decode
    from jobs.reading.bodies.avro import avro_decoder

    return avro_decoder(avro_schema)
