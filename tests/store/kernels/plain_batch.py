"""Pure-Python equivalents of the kernels that read the elements of a batch."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from store.message.batch import ELEMENT_HEADER_BYTES, MIN_ELEMENT_BYTES
from store.message.buffers import Buffer
from store.store_errors import MessageInvalid

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
