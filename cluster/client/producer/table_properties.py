"""Encodes a column of property maps of an Arrow table as property strings, one for each row.

This module imports pyarrow. Import it only when a table is sent.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cluster.client.errors import ConfigInvalid
from cluster.client.producer.outbound import rejected
from store.message.properties import MessageConst
from store.store_errors import MessageInvalid

RESERVED_NAMES = sorted(
    value for name, value in vars(MessageConst).items() if name.isupper() and isinstance(value, str)
)
_SEPARATORS = "[\x01\x02]"


def encode_property_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the property string of each row of the column `name`, which contains maps of strings.

    Pairs with an empty name or value are omitted, as in RocketMQ. Names that RocketMQ reserves are also
    omitted, so that the properties of a fetched message can be sent again. Raises ConfigInvalid if the column
    does not contain maps of strings, and MessageRejected if a name or value contains a separator character.
    """
    kind = column.type
    texts = (pa.string(), pa.large_string())
    if not (pa.types.is_map(kind) and kind.key_type in texts and kind.item_type in texts):
        raise ConfigInvalid(f"column {name!r} has type {kind}: properties must have type map<string, string>")
    return pa.chunked_array([_encode(name, chunk) for chunk in column.chunks], pa.large_string())


def _encode(column: str, maps: pa.MapArray) -> pa.Array:
    # In a slice of a map array, `keys` and `items` are not sliced. The offsets select the slice's part.
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    names = maps.keys.slice(first, last - first).cast(pa.large_string())
    values = maps.items.slice(first, last - first).cast(pa.large_string())
    for texts in (names, values):
        if pc.any(pc.match_substring_regex(texts, _SEPARATORS)).as_py():
            raise rejected(
                MessageInvalid(
                    f"column {column!r}: a property contains the separator character 0x01 or 0x02: remove it"
                )
            )
    is_sent = pc.and_(
        pc.greater(pc.binary_length(names), 0),
        pc.greater(pc.coalesce(pc.binary_length(values), 0), 0),
    )
    is_sent = pc.and_not(is_sent, pc.is_in(names, pa.array(RESERVED_NAMES, pa.large_string())))
    nothing, equals, end = (pa.scalar(text, pa.large_string()) for text in ("", "\x01", "\x02"))
    pairs = pc.binary_join_element_wise(names, equals, values, end, nothing, null_handling="replace")
    pairs = pc.if_else(is_sent, pairs, nothing)
    rows = pa.LargeListArray.from_arrays(pc.cast(pc.subtract(maps.offsets, first), pa.int64()), pairs)
    # A null map may still have keys and items in the array. They must not be sent.
    return pc.if_else(maps.is_valid(), pc.binary_join(rows, nothing), nothing)
