"""`moved`: a stored message as the record to append to another queue."""

from __future__ import annotations

from collections.abc import Mapping

from store.message.message import MessageExt
from store.message.properties import MessageConst, encode_properties
from store.message.record import RecordDraft

_OF_RECORD = (MessageConst.CRC32, MessageConst.INNER_MULTI_DISPATCH, MessageConst.INNER_MULTI_QUEUE_OFFSET)


def moved(
    message: MessageExt, topic: str, queue_id: int, properties: Mapping[str, str] | None = None
) -> RecordDraft:
    """Return a record for the queue `queue_id` of `topic` with the content of a stored message.

    It has `properties` instead of the message's own, if given. Those of the stored record alone are left out:
    its CRC, which the store computes again, and its place in a lite topic, in which the copy is not. The
    offset of a prepared transaction is 0.

    Raises MessageInvalid if a property cannot be encoded.
    """
    kept = dict(message.properties if properties is None else properties)
    for name in _OF_RECORD:
        kept.pop(name, None)
    return RecordDraft(
        topic,
        queue_id,
        message.body,
        encode_properties(kept),
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.born_host.packed,
        message.reconsume_times,
    )
