"""Codec of a batch: the body of one request that stores many messages (docs/store-format.md#batch).

A batch is a sequence of elements, one per message. All numbers are big-endian. magic and bodyCRC are 0: the
broker computes them when it stores the message.

    0           4       8         12     16           20
    | totalSize | magic | bodyCRC | flag | bodyLength | body | propertiesLength i16 | properties |
"""

from collections.abc import Sequence
from struct import Struct

from store.message.message import Message
from store.message.properties import properties_texts
from store.message.validate import check_properties

FLAG = 12
BODY_LENGTH = 16
ELEMENT_HEADER_BYTES = 20
MIN_ELEMENT_BYTES = ELEMENT_HEADER_BYTES + 2

_HEADER = Struct(">i8xii")
_SHORT = Struct(">h")


def encode_batch(messages: Sequence[Message]) -> bytes:
    """Return the body of a batch request. Raises MessageInvalid if a message's properties are too long."""
    return encode_elements(messages, properties_texts([message.properties for message in messages]))


def encode_elements(
    messages: Sequence[Message], properties: Sequence[str], *, reserved_bytes: int = 0
) -> bytes:
    """Return the body of a batch request, with `properties[i]` in place of the properties of `messages[i]`.

    Args:
        messages: The messages; only `body` and `flag` are used.
        properties: One property string per message.
        reserved_bytes: Bytes of the properties limit to leave free for properties that the broker adds.

    Raises:
        MessageInvalid: A property string is longer than the limit less `reserved_bytes`.
    """
    encoded = [text.encode("utf-8", "replace") for text in properties]  # "?" for a lone surrogate, as in Java
    check_properties(max(encoded, key=len, default=b""), reserved_bytes)
    parts: list[bytes] = []
    pack_header, pack_short = _HEADER.pack, _SHORT.pack
    for message, text in zip(messages, encoded, strict=True):
        body, text_bytes = message.body, len(text)
        body_bytes = len(body)
        header = pack_header(MIN_ELEMENT_BYTES + body_bytes + text_bytes, message.flag, body_bytes)
        parts += (header, body, pack_short(text_bytes), text)
    return b"".join(parts)
