"""Topic deletions: records of a replicated log that delete the queues of topics, on each replica alike.

See docs/store-format.md#deletions-of-topics.

    records of topic T | deletion of T | records of T
    in no queue                          begin again at queue offset 0

A deletion is a record of the topic `rmq_sys_raymq_meta` with the property RAYMQ_DELETED_TOPICS: the names,
separated by commas. Only brokers write it: a record with the address of a client deletes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.message.message import UNKNOWN_HOST
from store.message.properties import encode_properties
from store.message.record import decode_record

META_TOPIC: Final = "rmq_sys_raymq_meta"
META_TOPIC_BYTES: Final = META_TOPIC.encode()
DELETED_TOPICS: Final = "RAYMQ_DELETED_TOPICS"


class TopicDeletion(NamedTuple):
    """The deletion of a topic by the record at CommitLog offset `position`."""

    topic: str
    position: int


def deletion_properties(topics: Collection[str]) -> bytes:
    """Return the properties of a record that deletes these topics; empty without any."""
    return encode_properties({DELETED_TOPICS: ",".join(topics)}) if topics else b""


def deletions_in(batch: RecordBatch, meta_groups: Collection[int]) -> Iterator[TopicDeletion]:
    """Yield the deletions in a batch, in the order of the log.

    `meta_groups` are the groups of the batch with records of META_TOPIC. Raises RecordDamaged.
    """
    columns = [kernel.ROW_POSITION, kernel.ROW_SIZE, kernel.ROW_GROUP]
    for position, size, group in batch.rows[:, columns].tolist():
        if group in meta_groups:
            message = decode_record(batch.file.view[position : position + size], check_crc=False)
            if message.born_host == UNKNOWN_HOST:
                for topic in message.properties.get(DELETED_TOPICS, "").split(","):
                    if topic:
                        yield TopicDeletion(topic, batch.file.base + position)
