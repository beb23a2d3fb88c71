"""Messages as a consumer gets them: decoded in runs, bodies as their producer gave them.

Its compiled twin is `store.kernels.records_to_messages`.
"""

from store.message.buffers import Buffer
from store.message.compression import plain_body
from store.message.message import MessageExt
from store.message.record import decode_record
from store.store_errors import MessageInvalid, RecordDamaged


def decode_messages(
    records: Buffer, position: int, count: int, broker_name: str
) -> tuple[list[MessageExt], int]:
    """Up to `count` messages of `records` from `position` on, and where the next one stands.

    Raises RecordDamaged, or MessageInvalid for a body that cannot be inflated, when that is the first; a
    later one ends the run before it.
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
