"""Decode fetched records into messages with decompressed bodies, in pure Python.

`store.kernels.records_to_messages` is the compiled equivalent.
"""

from store.message.buffers import Buffer
from store.message.compression import plain_body
from store.message.message import MessageExt
from store.message.record import decode_record
from store.store_errors import MessageInvalid, RecordDamaged


def decode_messages(
    records: Buffer, position: int, count: int, broker_name: str
) -> tuple[list[MessageExt], int]:
    """Decode up to `count` records into messages, starting at byte `position` of `records`.

    Decoding stops before a record that cannot be decoded, unless it is the first one.

    Returns:
        The messages, and the byte position of the next record.

    Raises:
        RecordDamaged: The first record is damaged.
        MessageInvalid: The body of the first record cannot be decompressed.
    """
    messages: list[MessageExt] = []
    while position < len(records) and len(messages) < count:
        try:
            message = decode_record(records, position, broker_name=broker_name)
            message.body = plain_body(message)
        except (RecordDamaged, MessageInvalid):
            if messages:
                break
            raise
        messages.append(message)
        position += message.store_size
    return messages, position
