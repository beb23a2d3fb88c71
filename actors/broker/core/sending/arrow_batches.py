"""Converts Arrow IPC streams of untrusted callers into RocketMQ's batch encoding.

pyarrow reads what the lengths and offsets of a stream say: offsets outside a buffer end the process, and
compressed buffers of a few KB may inflate to gigabytes. Each message of the stream is therefore checked
before pyarrow reads its buffers, and each record batch is validated before its values are read.

The inflated sizes are in the metadata of a record batch, a flatbuffer. All numbers are little-endian:

    a table    i32 distance back to its vtable, then the fields
    a vtable   u16 size, u16 size of the table, then the u16 position of each field in the table; 0: absent
    Message    field 2: u32 distance to the RecordBatch
    RecordBatch  field 2: u32 distance to the buffers; field 3: present if they are compressed
    buffers    u32 count, then i64 position in the body and i64 size of each
    a compressed buffer begins with its inflated size as i64, or -1 if it is not compressed
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from actors.wire.codes import ResponseCode
from actors.wire.command import MAX_FRAME_BYTES
from actors.wire.remoting_errors import Refused
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.properties import MessageConst
from store.store_errors import MessageInvalid

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 100_000
BATCHES_MAX: Final = 1_000
PROPERTIES_MAX: Final = 8_192
"""Properties of one message. The property string of a message has at most 32,767 bytes."""
_SLICE_VALUES: Final = 256
"""Values that pyarrow converts at once. It holds Python's lock meanwhile, which delays the event loop."""
_COLUMNS: Final = frozenset({"body", "tags", "keys", "properties"})
_EXTENSION: Final = b"ARROW:extension:name"
_QUOTED_CHARS: Final = 200


def batch_of_arrow(topic: str, stream: bytes, next_uniq_key: Callable[[], str]) -> bytes:
    """Convert an Arrow IPC stream into RocketMQ's batch encoding. Call it in a thread: it may take a second.

    Raises Refused if the stream, its columns or a value of it is invalid, or if it exceeds a limit.
    """
    import pyarrow as pa  # here, because it takes a second

    try:
        batches = list(_read_batches(stream))
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        raise _invalid(f"the batch is not a valid Arrow IPC stream: {str(error)[:_QUOTED_CHARS]}") from error
    try:
        rows = (row for batch in batches for row in _rows(batch))
        return encode_batch([_message_of_row(topic, row, next_uniq_key) for row in rows])
    except MessageInvalid as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.remark) from error
    except (TypeError, ValueError) as error:
        text = str(error)[:_QUOTED_CHARS]
        raise _invalid(f"the Arrow batch contains a value of a wrong type: {text}") from error


def _read_batches(stream: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the validated record batches of a stream."""
    import pyarrow as pa

    messages = _messages(pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)))
    first = next(messages, None)
    if first is None or first.type != "schema":
        raise _invalid("the batch is not a valid Arrow IPC stream: it does not begin with a schema")
    schema = _schema(first)
    inflated_bytes = rows = 0
    for number, message in enumerate(messages):
        if message.type != "record batch":
            raise _invalid(f"the Arrow batch contains a {message.type}: only record batches are supported")
        if number >= BATCHES_MAX:
            raise _invalid(f"the Arrow batch has more than {BATCHES_MAX:,} record batches: combine them")
        inflated_bytes += _inflated_bytes(message.metadata.to_pybytes(), message.body)
        if inflated_bytes > MAX_FRAME_BYTES:
            raise _invalid(
                f"the Arrow batch inflates to more than {MAX_FRAME_BYTES:,} bytes: send smaller batches"
            )
        batch = pa.ipc.read_record_batch(message, schema)
        rows += batch.num_rows
        if rows > ROWS_MAX:
            raise _invalid(f"the Arrow batch has {rows:,} or more rows: send at most {ROWS_MAX:,}")
        batch.validate(full=True)
        yield batch


def _messages(reader: Any) -> Iterator[Any]:
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        yield message


def _schema(message: Any) -> pa.Schema:
    """Return the schema. Raises Refused if a column is unknown, or has a type that is not supported.

    Extension types are refused before the schema is read, because their classes run code. The others inflate:
    dictionaries and views refer to the same value many times.
    """
    import pyarrow as pa

    if _EXTENSION in message.metadata.to_pybytes():
        raise _invalid("the Arrow batch has a column of an extension type: convert it to its storage type")
    schema = pa.ipc.read_schema(message)
    names = schema.names
    if "body" not in names or not _COLUMNS.issuperset(names) or len(set(names)) < len(names):
        raise _invalid(
            f"columns {str(names)[:_QUOTED_CHARS]}: `body` is required; `tags`, `keys`, `properties` are "
            "optional"
        )
    for field in schema:
        kind = field.type
        is_plain = _is_text(kind) or pa.types.is_primitive(kind) or pa.types.is_null(kind)
        is_table = pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
        if not is_plain and not (is_table and field.name == "properties"):
            raise _invalid(
                f"column `{field.name}` is {str(kind)[:_QUOTED_CHARS]}: use binary or string, and a map of "
                "strings for `properties`"
            )
    return schema


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    checks = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    return any(check(kind) for check in checks)


def _inflated_bytes(metadata: bytes, body: Any) -> int:
    """Return the size of a record batch's buffers after decompression.

    Raises struct.error if the metadata are damaged.
    """

    def number(form: str, position: int, data: Any = metadata) -> int:
        if position < 0:  # would be read from the end
            raise struct.error(f"position {position} in the metadata of an Arrow message")
        (found,) = struct.unpack_from(form, data, position)
        return int(found)

    def target(table: int, field: int) -> int:
        """Return the position to which a field refers, or 0 if it is absent."""
        vtable = table - number("<i", table)
        entry = 4 + 2 * field
        distance = number("<H", vtable + entry) if entry < number("<H", vtable) else 0
        return table + distance + number("<I", table + distance) if distance else 0

    record_batch = target(number("<I", 0), 2)
    if not record_batch or not target(record_batch, 3):
        return int(body.size)
    buffers, total = target(record_batch, 2), 0
    for index in range(number("<I", buffers) if buffers else 0):
        entry = buffers + 4 + 16 * index
        position, size = number("<q", entry), number("<q", entry + 8)
        if size > 0:
            inflated = number("<q", position, body)
            total += size if inflated == -1 else inflated
            if inflated < -1 or total > MAX_FRAME_BYTES:
                return MAX_FRAME_BYTES + 1
    return total


def _rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    """Yield the rows as dictionaries."""
    import pyarrow as pa

    most = 1
    if "properties" in batch.schema.names and pa.types.is_map(batch.schema.field("properties").type):
        counts = np.diff(batch.column("properties").offsets.to_numpy())
        most = max(1, int(counts.max(initial=0)))
        if most > PROPERTIES_MAX:
            raise _invalid(f"a row has {most:,} properties: send at most {PROPERTIES_MAX:,}")
    step = max(1, _SLICE_VALUES // most)
    for start in range(0, batch.num_rows, step):
        yield from batch.slice(start, step).to_pylist()


def _message_of_row(topic: str, row: Mapping[str, Any], next_uniq_key: Callable[[], str]) -> Message:
    body = row["body"]
    if not isinstance(body, bytes | str):
        raise _invalid(f"a body is a {type(body).__name__}, not binary or a string")
    message = Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        row.get("tags"),
        row.get("keys"),
        dict(row.get("properties") or ()),
    )
    message.properties.setdefault(MessageConst.UNIQ_KEY, next_uniq_key())
    return message


def _invalid(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)
