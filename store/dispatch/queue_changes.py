"""Queue changes: records of a replicated log that change consume queues, on each replica alike.

See docs/store-format.md#changes-of-queues. They are records of the topic `rmq_sys_raymq_meta` with one of
two properties:

    RAYMQ_DELETED_TOPICS   topics, separated by commas: their queues are deleted

        records of topic T | deletion of T | records of T
        in no queue                          begin again at queue offset 0

    RAYMQ_QUEUE_ENDS       the body has the ends of queues; a queue that is shorter begins there

        deleted log files | T-0 ends at 1000 | records of T-0
                                               continue at queue offset 1000

Only brokers write them: a record with the address of a client changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

import orjson

from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.message.message import UNKNOWN_HOST, MessageExt
from store.message.properties import encode_properties
from store.message.record import decode_record
from store.store_errors import StoreError

META_TOPIC: Final = "rmq_sys_raymq_meta"
META_TOPIC_BYTES: Final = META_TOPIC.encode()
DELETED_TOPICS: Final = "RAYMQ_DELETED_TOPICS"
QUEUE_ENDS: Final = "RAYMQ_QUEUE_ENDS"
ENDS_FIELD: Final = "queueEnds"
"""The field of the body with the ends: `{"orders": [[0, 1000], [1, 998]]}`."""
ENDS_PROPERTIES: Final = encode_properties({QUEUE_ENDS: "true"})


class TopicDeletion(NamedTuple):
    """The deletion of a topic by the record at CommitLog offset `position`."""

    topic: str
    position: int


class QueueEnd(NamedTuple):
    """The queue offset after the last record of a queue before CommitLog offset `position`."""

    topic: str
    queue_id: int
    offset: int
    position: int


def deletion_properties(topics: Collection[str]) -> bytes:
    """Return the properties of a record that deletes these topics; empty without any."""
    return encode_properties({DELETED_TOPICS: ",".join(topics)}) if topics else b""


def changes_in(batch: RecordBatch, meta_groups: Collection[int]) -> Iterator[TopicDeletion | QueueEnd]:
    """Yield the changes in a batch, in the order of the log.

    `meta_groups` are the groups of the batch with records of META_TOPIC. Raises RecordDamaged, StoreError.
    """
    columns = [kernel.ROW_POSITION, kernel.ROW_SIZE, kernel.ROW_GROUP]
    for place, size, group in batch.rows[:, columns].tolist():
        if group in meta_groups:
            message = decode_record(batch.file.view[place : place + size], check_crc=False)
            if message.born_host != UNKNOWN_HOST:
                continue
            position = batch.file.base + place
            for topic in message.properties.get(DELETED_TOPICS, "").split(","):
                if topic:
                    yield TopicDeletion(topic, position)
            if QUEUE_ENDS in message.properties:
                yield from _ends_in(message, position)


def _ends_in(message: MessageExt, position: int) -> Iterator[QueueEnd]:
    try:
        topics: Any = orjson.loads(message.body)[ENDS_FIELD]
        ends = [
            QueueEnd(topic, int(queue_id), int(offset), position)
            for topic, queues in topics.items()
            for queue_id, offset in queues
        ]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"not the body of a record with ends of queues: {error!r}"
        raise StoreError(reason, position=position) from error
    yield from ends
