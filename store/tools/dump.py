"""Print the messages of a store, or find messages by key, without changing the store."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.unit import UNIT, Unit
from store.message.compression import decompress
from store.message.crc import crc32
from store.message.fetched import decode_messages
from store.message.message import MessageExt
from store.message.record import decode_record
from store.message.sys_flag import is_compressed
from store.ownership.identity import read_name
from store.store_errors import MessageInvalid, StoreError
from store.tools.image import StoreImage

_UNITS_AT_ONCE = 4096

Line = dict[str, Any]


def dump(root: Path, log_paths: Sequence[Path] = ()) -> Iterator[Line]:
    """Yield one dict for each message in the consume queues, in order of topic, queue and offset.

    Records that are not dispatched yet, because recovery would do that, are included. If the record of a
    message is damaged, the dict has the fields of the consume queue unit and `damage`, the reason.

    `log_paths` are the directories of the CommitLog; give them for a store of RocketMQ if they are not
    `commitlog`. Raises StoreError if there is no store at `root`.
    """
    image = StoreImage(root, log_paths)
    try:
        for queue in image.load_queues():
            yield from _dump_queue(image, queue)
    finally:
        image.close()


def stored_messages(
    root: Path, log_paths: Sequence[Path] = (), *, topic: str | None = None, begin: int = 0
) -> Iterator[MessageExt | StoreError]:
    """Yield the messages of the consume queues, or of those of one topic, with decompressed bodies.

    They are in order of topic, queue and offset; only those that end after the CommitLog offset `begin` are
    included. For a damaged record an error with its place is yielded instead.

    `log_paths` are the directories of the CommitLog, as for `dump`. Raises StoreError if there is no store at
    `root`.
    """
    image = StoreImage(root, log_paths)
    name = read_name(root)
    broker = name.identity.broker if name is not None else ""
    try:
        for queue in image.load_queues():
            if topic is None or queue.topic == topic:
                for _, unit in _units(queue):
                    if unit.physical_offset + unit.size > begin:
                        yield _message(image, unit, broker)
    finally:
        image.close()


def _message(image: StoreImage, unit: Unit, broker: str) -> MessageExt | StoreError:
    try:
        record = image.log.slice(unit.physical_offset, unit.size)
        return decode_messages(record, 0, 1, broker)[0][0]
    except StoreError as error:
        return error


def query(root: Path, topic: str, key: str, log_paths: Sequence[Path] = ()) -> Iterator[Line]:
    """Yield one dict with the CommitLog offsets of all records of `topic` that have this key.

    Raises StoreError if there is no store at `root`.
    """
    image = StoreImage(root, log_paths)
    try:
        yield {"queryTopic": topic, "queryKey": key, "commitLogOffsets": image.query_by_key(topic, key)}
    finally:
        image.close()


def _dump_queue(image: StoreImage, queue: ConsumeQueue) -> Iterator[Line]:
    for offset, unit in _units(queue):
        yield _line(image, queue, offset, unit)


def _units(queue: ConsumeQueue) -> Iterator[tuple[int, Unit]]:
    """Yield the queue offset and the unit of each message of a queue."""
    offset = queue.min_offset
    while units := queue.read_units(offset, _UNITS_AT_ONCE):
        for fields in UNIT.iter_unpack(units):
            unit = Unit(*fields)
            if not unit.is_filler:
                yield offset, unit
            offset += 1


def _line(image: StoreImage, queue: ConsumeQueue, offset: int, unit: Unit) -> Line:
    line: Line = {
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "commitLogOffset": unit.physical_offset,
        "storeSize": unit.size,
        "tagsCode": unit.tags_code,
    }
    try:
        record = image.log.slice(unit.physical_offset, unit.size)
        message = decode_record(record, check_crc=False)
    except StoreError as error:
        return line | {"damage": str(error)}
    return line | _message_fields(message)


def _message_fields(message: MessageExt) -> Line:
    properties = message.properties
    fields: Line = {
        "msgTopic": message.topic,
        "msgQueueId": message.queue_id,
        "msgQueueOffset": message.queue_offset,
        "msgId": message.offset_msg_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": dict(sorted(properties.items())),
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "bodyCRCok": crc32(message.body) == message.body_crc,
        "bodyLen": len(message.body),
        "bodySha1": _sha1(message.body),
    }
    if is_compressed(message.sys_flag):
        try:
            plain = decompress(message.body, message.sys_flag)
        except MessageInvalid as error:
            return fields | {"damage": error.remark}
        fields |= {"plainBodyLen": len(plain), "plainBodySha1": _sha1(plain)}
    return fields


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
