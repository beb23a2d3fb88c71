"""Decode fetched records into messages with decompressed bodies, in pure Python.

`store.kernels.records_to_messages` is the compiled equivalent.
"""

from store.message.buffers import Buffer
from store.message.compression import try_decompress
from store.message.message import MessageExt
from store.message.record import decode_record
from store.message.sys_flag import is_compressed
from store.store_errors import RecordDamaged


def decode_messages(
    records: Buffer, position: int, count: int, broker_name: str
) -> tuple[list[MessageExt], int]:
    """Decode up to `count` records into messages, starting at byte `position` of `records`.

    Decoding stops before a damaged record, unless it is the first one, and after a compressed body, so that
    the caller can limit the bytes that bodies decompress to. A body that cannot be decompressed is returned
    as stored: `MessageExt.body_error` is the reason.

    Returns:
        The messages, and the byte position of the next record.

    Raises:
        RecordDamaged: The first record is damaged.
    """
    messages: list[MessageExt] = []
    while position < len(records) and len(messages) < count:
        try:
            message = decode_record(records, position, broker_name=broker_name)
        except RecordDamaged:
            if messages:
                break
            raise
        messages.append(message)
        position += message.store_size
        if is_compressed(message.sys_flag):
            message.body, message.body_error = try_decompress(message.body, message.sys_flag)
            break
    return messages, position


def decode_all(records: Buffer, broker_name: str, *, decompresses: bool = True) -> list[MessageExt]:
    """Decode all of `records` as `decode_messages` does. Raises RecordDamaged if any of them is damaged.

    Without `decompresses`, bodies stay as they are stored.
    """
    messages: list[MessageExt] = []
    position = 0
    while position < len(records):
        if decompresses:
            found, position = decode_messages(records, position, len(records), broker_name)
            messages += found
        else:
            messages.append(decode_record(records, position, broker_name=broker_name))
            position += messages[-1].store_size
    return messages
