"""Messages: from the gRPC protocol to a send request's properties, and from a stored record back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from actors.gateway.grpc.calls import Call
from actors.gateway.grpc.gzip_data import GzipInvalid, declared_size
from actors.gateway.grpc.status import CallFailed, StatusCode

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
from actors.remoting.header import ITEMS_MAX
from store.message.message import MessageExt
from store.message.properties import MessageConst

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size of the inflated gzip bodies of one request."""
USER_PROPERTIES_MAX: Final = 128
USER_PROPERTIES_BYTES_MAX: Final = 16 * 1024
GROUP_BYTES_MAX: Final = 64
ID_CHARS_MAX: Final = 255
DELAY_MS_MAX: Final = 24 * 3600 * 1000
RECOVERY_S_MAX: Final = 3600
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_RESERVED: Final = frozenset(value for name, value in vars(MessageConst).items() if not name.startswith("_"))


class _MayHaveLiteTopic(Protocol):
    @property
    def lite_topic(self) -> str: ...


def type_of(message: Message) -> MessageType:
    """Return the type that the fields of a message say, as RocketMQ's proxy determines it."""
    system = message.system_properties
    if system.message_type == TRANSACTION:
        return TRANSACTION
    if system.HasField("delivery_timestamp"):
        return DELAY
    if system.HasField("message_group"):
        return FIFO
    return NORMAL


def check_message(message: Message, now_ms: int) -> None:
    """Raise RpcFailed if a field of a message to send is missing or exceeds a limit.

    Raises CallFailed if the message has a lite topic or a priority.
    """
    system, size = message.system_properties, len(message.body)
    refuse_lite(system)
    if system.HasField("priority") or system.message_type in (LITE, PRIORITY):
        raise CallFailed(
            StatusCode.UNIMPLEMENTED,
            "priorities and the message type LITE are not supported: send NORMAL, FIFO, DELAY or TRANSACTION",
        )
    if not size:
        raise RpcFailed(Code.MESSAGE_BODY_EMPTY, "the body is empty: send at least one byte")
    if size > BODY_BYTES_MAX:
        raise RpcFailed(
            Code.MESSAGE_BODY_TOO_LARGE, f"body of {size:,} bytes exceeds the limit of {BODY_BYTES_MAX:,}"
        )
    if not system.message_id.strip() or len(system.message_id) > ID_CHARS_MAX:
        raise RpcFailed(
            Code.ILLEGAL_MESSAGE_ID, f"the message id must have 1 to {ID_CHARS_MAX} characters, not blanks"
        )
    _check_text(system.message_id, Code.ILLEGAL_MESSAGE_ID, "message id")
    if system.HasField("tag"):
        _check_text(system.tag, Code.ILLEGAL_MESSAGE_TAG, "tag")
        if not system.tag.strip() or "|" in system.tag:
            raise RpcFailed(Code.ILLEGAL_MESSAGE_TAG, f"tag {system.tag[:40]!r} is blank or contains |")
    check_count(system.keys, ITEMS_MAX, Code.ILLEGAL_MESSAGE_KEY, "keys of a message")
    for key in system.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "key")
        if not key.strip():
            raise RpcFailed(Code.ILLEGAL_MESSAGE_KEY, "a key is blank")
    if system.HasField("message_group"):
        _check_text(system.message_group, Code.ILLEGAL_MESSAGE_GROUP, "message group")
        if not 0 < len(system.message_group.strip().encode()) <= GROUP_BYTES_MAX:
            raise RpcFailed(
                Code.ILLEGAL_MESSAGE_GROUP, f"the message group must have 1 to {GROUP_BYTES_MAX} bytes"
            )
    _check_times(message, now_ms)
    _check_user_properties(message)


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
                f"the delivery time is {delay_ms:,} ms from now; the limit is {DELAY_MS_MAX:,}",
            )
    recovery_s = system.orphaned_transaction_recovery_duration.seconds
    if not 0 <= recovery_s <= RECOVERY_S_MAX:
        raise RpcFailed(
            Code.BAD_REQUEST,
            f"the recovery duration of {recovery_s:,} s is not within 0 and {RECOVERY_S_MAX:,}",
        )


def _milliseconds(timestamp: Timestamp, code: Code, name: str) -> int:
    try:
        return timestamp.ToMilliseconds()
    except ValueError as error:
        raise RpcFailed(code, f"the {name} is not valid: {error}") from None


def _check_user_properties(message: Message) -> None:
    properties = message.user_properties
    if len(properties) > USER_PROPERTIES_MAX:
        raise RpcFailed(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(properties)} user properties exceed the limit of {USER_PROPERTIES_MAX}",
        )
    size = 0
    for name, value in properties.items():
        _check_text(name, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "property name")
        _check_text(value, Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name[:40]!r}")
        if not name or name in _RESERVED:
            raise RpcFailed(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property name {name[:40]!r} is empty or reserved"
            )
        size += len(name.encode()) + len(value.encode())
    if size > USER_PROPERTIES_BYTES_MAX:
        raise RpcFailed(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties of {size:,} bytes exceed the limit of {USER_PROPERTIES_BYTES_MAX:,}",
        )


def refuse_lite(given: _MayHaveLiteTopic) -> None:
    """Raise CallFailed if a part of a request names a lite topic of RocketMQ 5.5."""
    if given.lite_topic:
        raise CallFailed(
            StatusCode.UNIMPLEMENTED,
            f"lite topics, such as {given.lite_topic[:100]!r}, are not supported: use a topic",
        )


def _check_text(text: str, code: Code, kind: str) -> None:
    if _CONTROL.search(text):
        raise RpcFailed(code, f"the {kind} contains a control character")


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
    system.message_id = properties.get(MessageConst.UNIQ_KEY, "")
    system.body_encoding = IDENTITY
    system.body_digest.CopyFrom(
        Digest(type=MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper())
    )
    if MessageConst.TAGS in properties:
        system.tag = properties[MessageConst.TAGS]
    system.keys.extend(properties.get(MessageConst.KEYS, "").split())
    system.message_type = NORMAL
    if properties.get(MessageConst.TRANSACTION_PREPARED) == "true":
        system.message_type = TRANSACTION
    elif MessageConst.TIMER_DELIVER_MS in properties:
        system.message_type = DELAY
    elif MessageConst.SHARDING_KEY in properties:
        system.message_type = FIFO
        system.message_group = properties[MessageConst.SHARDING_KEY]
    system.born_timestamp.FromMilliseconds(record.born_timestamp)
    system.store_timestamp.FromMilliseconds(record.store_timestamp)
    system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
    system.delivery_attempt = record.reconsume_times + 1
    if "TRACE_CONTEXT" in properties:
        system.trace_context = properties["TRACE_CONTEXT"]
    return message
