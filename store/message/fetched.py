"""Messages as a consumer gets them: decoded in runs, their properties only when somebody looks.

The plain twin is `record.decode_record`, which also has the last word on every record that is out of the
ordinary: another topic, an IPv6 host, a compressed body, damage. The loop here is written for the others,
which are nearly all.
"""

from struct import Struct

from store.errors import MessageIllegal, RecordDamaged
from store.message.compression import plain_body
from store.message.crc import crc32
from store.message.hosts import unpack_host
from store.message.message import MessageExt
from store.message.properties import MessageConst, decode_properties
from store.message.record import BODY, MIN_RECORD_BYTES, decode_record, topic_field
from store.message.sys_flag import COMPRESSED, HOST_BITS

_HEADER = Struct(">iiiiiqqiq8sq8siqi")
_SHORT = Struct(">h")
_UNIQ_KEY = MessageConst.UNIQ_KEY
_UNUSUAL = HOST_BITS | COMPRESSED


class FetchedMessage(MessageExt):
    """A MessageExt whose `properties` are decoded at the first look; equal to any MessageExt with the same
    fields.
    """

    __slots__ = ("decoded_properties", "encoded_properties")

    encoded_properties: bytes
    decoded_properties: dict[str, str] | None

    @property
    def properties(self) -> dict[str, str]:
        """All properties; RocketMQ's own among them."""
        found = self.decoded_properties
        if found is None:
            found = self.decoded_properties = decode_properties(self.encoded_properties)
        return found

    @properties.setter
    def properties(self, properties: dict[str, str]) -> None:
        self.decoded_properties = properties

    @property
    def uniq_key(self) -> str | None:
        """The id that the producer gave the message."""
        # Without the detour over `properties`: consumers ask for ids and keys of every message.
        found = self.decoded_properties
        return (self.properties if found is None else found).get(_UNIQ_KEY)

    @property
    def msg_id(self) -> str:
        """The producer's id of the message, or the broker's where the producer gave none."""
        found = self.decoded_properties
        return (self.properties if found is None else found).get(_UNIQ_KEY) or self.offset_msg_id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageExt):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in MessageExt.__match_args__)

    __hash__ = None  # type: ignore[assignment] # as every message: it may be changed


def decode_messages(
    records: bytes, position: int, count: int, topic: str, broker_name: str
) -> tuple[list[MessageExt], int]:
    """Up to `count` messages of `records` from `position` on, and where the next one stands; bodies as their
    producer gave them.

    `topic` is what most records are of. Raises RecordDamaged, or MessageIllegal for a body that cannot be
    inflated, when that is the first; a later one ends the run before it.
    """
    messages: list[MessageExt] = []
    end = len(records)
    magic_wanted, topic_bytes = topic_field(topic)
    to_properties = len(topic_bytes) + _SHORT.size
    unpack, is_topic, length_at = _HEADER.unpack_from, records.startswith, _SHORT.unpack_from
    new = FetchedMessage.__new__
    while position < end and len(messages) < count:
        if position + MIN_RECORD_BYTES <= end:
            (
                size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
                born_host, store_timestamp, store_host, reconsume_times, prepared_offset, body_bytes,
            ) = unpack(records, position)  # fmt: skip
            topic_at = position + BODY + body_bytes
            properties_at = topic_at + to_properties
            record_end = position + size
            if (
                magic == magic_wanted
                and not sys_flag & _UNUSUAL
                and body_bytes >= 0
                and properties_at <= record_end <= end
                and is_topic(topic_bytes, topic_at)
                and properties_at + length_at(records, properties_at - _SHORT.size)[0] == record_end
                and (not body_bytes or crc32(body := records[position + BODY : topic_at]) == crc)
            ):
                message = new(FetchedMessage)
                # In pairs and threes: the compiler makes no tuples of these.
                message.topic, message.body, message.flag = topic, body if body_bytes else b"", flag
                message.encoded_properties = records[properties_at:record_end]
                message.decoded_properties = None
                message.broker_name, message.queue_id = broker_name, queue_id
                message.queue_offset, message.commit_log_offset = queue_offset, physical_offset
                message.store_size, message.sys_flag, message.body_crc = size, sys_flag, crc
                message.born_timestamp, message.store_timestamp = born_timestamp, store_timestamp
                message.born_host, message.store_host = unpack_host(born_host), unpack_host(store_host)
                message.reconsume_times = reconsume_times
                message.prepared_transaction_offset = prepared_offset
                messages.append(message)
                position = record_end
                continue
        try:
            other = decode_record(records, position, broker_name=broker_name)
            other.body = plain_body(other)
        except (RecordDamaged, MessageIllegal):
            if messages:
                break
            raise
        messages.append(other)
        position += other.store_size
    return messages, position
