"""Codec of a batch: the body of one request that stores many messages (docs/store-format.md#batch).

A batch is a sequence of elements, one per message. All numbers are big-endian. magic and bodyCRC are 0: the
broker computes them when it stores the message.

    0           4       8         12     16           20
    | totalSize | magic | bodyCRC | flag | bodyLength | body | propertiesLength i16 | properties |
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from store.message.buffers import Buffer
from store.message.message import Message
from store.message.properties import properties_texts
from store.message.validate import check_properties
from store.store_errors import MessageInvalid

FLAG = 12
BODY_LENGTH = 16
ELEMENT_HEADER_BYTES = 20
MIN_ELEMENT_BYTES = ELEMENT_HEADER_BYTES + 2

_HEADER = Struct(">i8xii")
_SHORT = Struct(">h")


class BatchElement(NamedTuple):
    """One message in the body of a batch request.

    The request header contains topic and queue of all messages. `properties` is the encoded property string
    (see `store.message.properties`).
    """

    flag: int
    body: bytes
    properties: bytes


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


def encode_element(message: BatchElement) -> bytes:
    """Return the bytes of one message in the body of a batch request."""
    size_bytes = MIN_ELEMENT_BYTES + len(message.body) + len(message.properties)
    header = _HEADER.pack(size_bytes, message.flag, len(message.body))
    return b"".join((header, message.body, _SHORT.pack(len(message.properties)), message.properties))


def decode_batch(body: Buffer) -> list[BatchElement]:
    """Return the messages of a batch request's body. Raises MessageInvalid if a length field is wrong."""
    elements: list[BatchElement] = []
    position = 0
    while position < len(body):
        element, position = _decode_element(body, position)
        elements.append(element)
    return elements


def _decode_element(body: Buffer, position: int) -> tuple[BatchElement, int]:
    if len(body) - position < MIN_ELEMENT_BYTES:
        raise MessageInvalid(
            f"the batch of {len(body):,} bytes ends inside the header of the message at byte {position}"
        )
    size_bytes, flag, body_length = _HEADER.unpack_from(body, position)
    start = position + ELEMENT_HEADER_BYTES
    end = position + size_bytes
    if end > len(body) or body_length < 0 or start + body_length + _SHORT.size > end:
        raise MessageInvalid(
            f"the message at byte {position} of the batch has totalSize {size_bytes} and bodyLength "
            f"{body_length}, which do not fit in the batch of {len(body):,} bytes"
        )
    properties_start = start + body_length + _SHORT.size
    (properties_length,) = _SHORT.unpack_from(body, start + body_length)
    if properties_length < 0 or properties_start + properties_length != end:
        raise MessageInvalid(
            f"the fields of the message at byte {position} of the batch do not add up to its totalSize "
            f"{size_bytes}"
        )
    element = BatchElement(flag, bytes(body[start : start + body_length]), bytes(body[properties_start:end]))
    return element, end
