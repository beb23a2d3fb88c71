"""Messages: from the gRPC protocol to a send request's properties, and from a stored record back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from actors.gateway.grpc.calls import Call
from actors.gateway.grpc.gzip_data import GzipInvalid, declared_size

# Values are imported by name on the path of sends: an attribute of an enum takes a microsecond.
from actors.gateway.proto.definition_pb2 import (
    DELAY,
    FIFO,
    GZIP,
    IDENTITY,
    LITE,
    MD5,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Code,
    Digest,
    Message,
    MessageType,
    Resource,
)
from actors.gateway.statuses import RpcFailed, check_count
from actors.wire.header import ITEMS_MAX
from store.message.lite_topics import NAME_BYTES_MAX, is_valid_name
from store.message.message import MessageExt
from store.message.priority import priority_of
from store.message.properties import MessageConst

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size of the inflated gzip bodies of one request."""
USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
"""Size of user properties, tag and keys of a message."""
GROUP_BYTES_MAX: Final = 64
ID_CHARS_MAX: Final = 255
DELAY_MS_MAX: Final = 24 * 3600 * 1000
RECOVERY_S_MAX: Final = 3600
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DELAYS: Final = frozenset({MessageConst.DELAY, MessageConst.TIMER_DELIVER_MS, MessageConst.TIMER_DELAY_SEC})
_TIME_DIGITS_MAX: Final = 15
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The protocol has times up to the year 9999."""
_RESERVED: Final = frozenset(value for name, value in vars(MessageConst).items() if not name.startswith("_"))


def type_of(message: Message) -> MessageType:
    """Return the type that the fields of a message say, as RocketMQ's proxy determines it."""
    system = message.system_properties
    if system.message_type == TRANSACTION:
        return TRANSACTION
    if system.HasField("delivery_timestamp"):
        return DELAY
    if system.HasField("message_group"):
        return FIFO
    if system.HasField("priority"):
        return PRIORITY
    return LITE if system.HasField("lite_topic") else NORMAL


def check_message(message: Message, now_ms: int) -> None:
    """Raise RpcFailed if a field of a message to send is missing or exceeds a limit."""
    system, size = message.system_properties, len(message.body)
    if system.HasField("lite_topic"):
        check_lite_topic(system.lite_topic)
    if system.priority < 0:
        raise RpcFailed(Code.BAD_REQUEST, f"the priority is {system.priority}: it must be 0 or more")
    if not size:
        raise RpcFailed(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty: send at least one byte")
    if size > BODY_BYTES_MAX:
        raise RpcFailed(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {BODY_BYTES_MAX}: it has {size} bytes, compress or split it",
        )
    if not system.message_id.strip():
        raise RpcFailed(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty: give each message an id")
    if len(system.message_id) > ID_CHARS_MAX:
        raise RpcFailed(
            Code.ILLEGAL_MESSAGE_ID, f"the message id must have at most {ID_CHARS_MAX} characters"
        )
    _check_text(system.message_id, Code.ILLEGAL_MESSAGE_ID, "message id")
    if system.HasField("tag"):
        _check_tag(system.tag)
    check_count(system.keys, ITEMS_MAX, Code.ILLEGAL_MESSAGE_KEY, "keys of a message")
    for key in system.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "key")
        if not key.strip():
            raise RpcFailed(Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
    if system.HasField("message_group"):
        _check_group(system.message_group)
    _check_times(message, now_ms)
    _check_properties(message)


def _check_tag(tag: str) -> None:
    _check_text(tag, Code.ILLEGAL_MESSAGE_TAG, "tag")
    if not tag.strip():
        raise RpcFailed(
            Code.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace: omit an empty tag"
        )
    if "|" in tag:
        raise RpcFailed(Code.ILLEGAL_MESSAGE_TAG, f"tag cannot contain '|': {tag[:40]!r} does")


def _check_group(group: str) -> None:
    _check_text(group, Code.ILLEGAL_MESSAGE_GROUP, "message group")
    group_bytes = len(group.strip().encode())
    if not group_bytes:
        raise RpcFailed(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if group_bytes > GROUP_BYTES_MAX:
        raise RpcFailed(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group exceed the max size {GROUP_BYTES_MAX}: it has {group_bytes} bytes",
        )


def _check_times(message: Message, now_ms: int) -> None:
    system = message.system_properties
    _milliseconds(system.born_timestamp, Code.BAD_REQUEST, "born timestamp")
    if system.HasField("delivery_timestamp"):
        delay_ms = (
            _milliseconds(system.delivery_timestamp, Code.ILLEGAL_DELIVERY_TIME, "delivery time") - now_ms
        )
        if delay_ms > DELAY_MS_MAX:
            raise RpcFailed(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {DELAY_MS_MAX}: "
                f"the delivery time is {delay_ms} ms from now",
            )
    recovery_s = system.orphaned_transaction_recovery_duration.seconds
    if recovery_s > RECOVERY_S_MAX:
        raise RpcFailed(
            Code.BAD_REQUEST,
            f"the max transaction recovery time of message is too large, max is {RECOVERY_S_MAX}: "
            f"it is {recovery_s} s",
        )
    if recovery_s < 0:
        raise RpcFailed(Code.BAD_REQUEST, f"the transaction recovery time of {recovery_s} s is negative")


def _milliseconds(timestamp: Timestamp, code: Code, name: str) -> int:
    try:
        return timestamp.ToMilliseconds()
    except ValueError as error:
        raise RpcFailed(code, f"the {name} is not valid: {error}") from None


def _check_properties(message: Message) -> None:
    """Raise RpcFailed if a user property is not valid, or they, tag and keys are too large together."""
    properties, system = message.user_properties, message.system_properties
    if len(properties) > USER_PROPERTIES_MAX:
        raise RpcFailed(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {USER_PROPERTIES_MAX}: there are {len(properties)}",
        )
    size = len((system.tag + "".join(system.keys)).encode())
    for name, value in properties.items():
        _check_text(name, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property")
        _check_text(value, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the value of property")
        if name in _RESERVED:
            raise RpcFailed(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if not name:
            raise RpcFailed(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of a property is empty")
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise RpcFailed(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {PROPERTIES_BYTES_MAX}: user properties, "
            f"tag and keys have {size} bytes",
        )


def check_lite_topic(name: str) -> None:
    """Raise RpcFailed if a lite topic may not have this name."""
    if not is_valid_name(name):
        raise RpcFailed(
            Code.ILLEGAL_LITE_TOPIC,
            f"the lite topic {name[:100]!r} has an invalid name: use 1 to {NAME_BYTES_MAX} of the characters "
            "a-z, A-Z, 0-9, _ and -",
        )


def _check_text(text: str, code: Code, kind: str) -> None:
    if _CONTROL.search(text):
        raise RpcFailed(code, f"{kind} cannot contain control character: remove it")


async def inflate_bodies(call: Call, messages: Iterable[Message]) -> None:
    """Replace gzip bodies by plain ones: RocketMQ's remoting clients cannot read gzip. Raises RpcFailed."""
    packed = [each for each in messages if each.system_properties.body_encoding == GZIP]
    if not packed:
        return
    sizes = [declared_size(each.body) for each in packed]
    if max(sizes) > BODY_BYTES_MAX or sum(sizes) > INFLATED_BYTES_MAX:
        raise RpcFailed(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the gzip bodies inflate to {max(sizes):,} bytes, {sum(sizes):,} in all, over the limits of "
            f"{BODY_BYTES_MAX:,} and {INFLATED_BYTES_MAX:,}: send fewer at a time",
        )
    try:
        bodies = await call.inflate([each.body for each in packed])
    except GzipInvalid as error:
        raise RpcFailed(Code.MESSAGE_CORRUPTED, f"the body is {error}") from None
    for message, body in zip(packed, bodies, strict=True):
        message.body = body


def stored_properties(message: Message, producer_group: str) -> dict[str, str]:
    """Return the properties with which a checked message is stored."""
    system, kind = message.system_properties, type_of(message)
    found = dict(message.user_properties)
    found[MessageConst.UNIQ_KEY] = system.message_id
    if system.HasField("tag"):
        found[MessageConst.TAGS] = system.tag
    if system.keys:
        found[MessageConst.KEYS] = " ".join(system.keys)
    if kind == TRANSACTION:
        found[MessageConst.TRANSACTION_PREPARED] = "true"
        found[MessageConst.PRODUCER_GROUP] = producer_group
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            found[MessageConst.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(seconds)
    if kind == DELAY:
        found[MessageConst.TIMER_DELIVER_MS] = str(system.delivery_timestamp.ToMilliseconds())
    if system.HasField("message_group"):
        found[MessageConst.SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        found[MessageConst.PRIORITY] = str(system.priority)
    if system.HasField("lite_topic"):
        found[MessageConst.LITE_TOPIC] = system.lite_topic
    if 0 < len(system.born_host) <= ID_CHARS_MAX and not _CONTROL.search(system.born_host):
        found[MessageConst.BORN_HOST] = system.born_host
    if system.HasField("trace_context") and "\x01" not in system.trace_context:
        found["TRACE_CONTEXT"] = system.trace_context.replace("\x02", "")
    return found


def message_of(record: MessageExt, resource: Resource) -> Message:
    """Return the message of a stored record; its topic is `resource`."""
    properties, body = record.properties, bytes(record.body)
    message = Message(topic=resource, body=body)
    for name, value in properties.items():
        if name not in _RESERVED and name != "TRACE_CONTEXT":
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = properties.get(MessageConst.UNIQ_KEY) or record.msg_id
    system.body_encoding = IDENTITY
    system.body_digest.CopyFrom(
        Digest(type=MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper())
    )
    if MessageConst.TAGS in properties:
        system.tag = properties[MessageConst.TAGS]
    system.keys.extend(properties.get(MessageConst.KEYS, "").split())
    system.message_type = _stored_type(properties)
    if MessageConst.SHARDING_KEY in properties:
        system.message_group = properties[MessageConst.SHARDING_KEY]
    if (priority := priority_of(properties)) is not None:
        system.priority = priority
    if MessageConst.LITE_TOPIC in properties:
        system.lite_topic = properties[MessageConst.LITE_TOPIC]
    system.born_timestamp.FromMilliseconds(record.born_timestamp)
    system.born_host = properties.get(MessageConst.BORN_HOST, "").strip() or record.born_host.ip
    system.store_timestamp.FromMilliseconds(record.store_timestamp)
    system.store_host = str(record.store_host)
    delivery_ms = _delivery_ms(record)
    if delivery_ms is not None:
        system.delivery_timestamp.FromMilliseconds(delivery_ms)
    if MessageConst.DLQ_ORIGIN_TOPIC in properties and MessageConst.DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[MessageConst.DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[MessageConst.DLQ_ORIGIN_MESSAGE_ID]
    system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
    system.delivery_attempt = record.reconsume_times + 1
    if "TRACE_CONTEXT" in properties:
        system.trace_context = properties["TRACE_CONTEXT"]
    return message


def _stored_type(properties: Mapping[str, str]) -> MessageType:
    if properties.get(MessageConst.TRANSACTION_PREPARED) == "true":
        return TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return DELAY
    if MessageConst.SHARDING_KEY in properties:
        return FIFO
    if priority_of(properties) is not None:
        return PRIORITY
    return LITE if MessageConst.LITE_TOPIC in properties else NORMAL


def _delivery_ms(record: MessageExt) -> int | None:
    """Return the delivery time; None if the message has none, or one that the protocol cannot represent."""
    properties = record.properties
    deliver_ms = properties.get(MessageConst.TIMER_DELIVER_MS)
    text = properties.get(MessageConst.TIMER_DELAY_SEC, "") if deliver_ms is None else deliver_ms
    if not text.isascii() or not text.isdigit() or len(text) > _TIME_DIGITS_MAX:
        return None
    found = int(text) if deliver_ms is not None else record.born_timestamp + int(text) * 1000
    return found if found <= _TIME_MS_MAX else None
