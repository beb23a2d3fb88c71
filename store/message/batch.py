"""A batch: the body of one request that stores many messages (store format, section 1.8).

One element, big-endian; magic and bodyCRC are 0, the broker computes its own:

    0           4       8         12     16           20
    | totalSize | magic | bodyCRC | flag | bodyLength | body | propertiesLength i16 | properties |
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from store.errors import MessageIllegal
from store.message.buffers import Buffer
from store.message.message import Message
from store.message.properties import encode_properties
from store.message.record import MAX_PROPERTIES_BYTES

FLAG = 12
BODY_LENGTH = 16
ELEMENT_HEADER_BYTES = 20
MIN_ELEMENT_BYTES = ELEMENT_HEADER_BYTES + 2

_HEADER = Struct(">iiiii")
_SHORT = Struct(">h")


class BatchElement(NamedTuple):
    """One message of a batch; its topic and queue are the batch's."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(messages: Iterable[Message]) -> bytes:
    """The body of a batch request. Raises MessageIllegal when a message's properties are over the limit."""
    parts: list[bytes] = []
    for message in messages:
        parts += element_parts(message.flag, message.body, encode_properties(message.properties))
    return b"".join(parts)


def element_parts(flag: int, body: bytes, properties: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """What one message of a batch is made of. Raises MessageIllegal as `encode_batch` does."""
    properties_bytes, body_bytes = len(properties), len(body)
    if properties_bytes > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"properties of {properties_bytes:,} bytes are over the limit of {MAX_PROPERTIES_BYTES:,}"
        )
    size_bytes = MIN_ELEMENT_BYTES + body_bytes + properties_bytes
    header = _HEADER.pack(size_bytes, 0, 0, flag, body_bytes)
    return header, body, _SHORT.pack(properties_bytes), properties


def decode_batch(body: Buffer) -> list[BatchElement]:
    """The messages of a batch request's body. Raises MessageIllegal when a length does not fit."""
    elements: list[BatchElement] = []
    position = 0
    while position < len(body):
        element, position = _decode_element(body, position)
        elements.append(element)
    return elements


def _decode_element(body: Buffer, position: int) -> tuple[BatchElement, int]:
    if len(body) - position < MIN_ELEMENT_BYTES:
        raise MessageIllegal(f"the batch ends within the header of the message at byte {position}")
    size_bytes, _, _, flag, body_length = _HEADER.unpack_from(body, position)
    start = position + ELEMENT_HEADER_BYTES
    end = position + size_bytes
    if end > len(body) or body_length < 0 or start + body_length + _SHORT.size > end:
        raise MessageIllegal(
            f"the message at byte {position} of the batch claims {size_bytes} bytes, {body_length} of body"
        )
    properties_start = start + body_length + _SHORT.size
    (properties_length,) = _SHORT.unpack_from(body, start + body_length)
    if properties_length < 0 or properties_start + properties_length != end:
        raise MessageIllegal(
            f"the parts of the message at byte {position} of the batch do not add up to {size_bytes} bytes"
        )
    element = BatchElement(flag, bytes(body[start : start + body_length]), bytes(body[properties_start:end]))
    return element, end
