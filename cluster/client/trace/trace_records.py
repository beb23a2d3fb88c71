"""Trace records: the body of a message in the trace topic (RocketMQ TraceDataEncoder).

A body has any number of records, which end with 0x02. The fields of a record are separated by 0x01:

    Pub        time region group topic id tags keys broker body-bytes took type offset-id ok
    SubBefore  time region group call id retries keys
    SubAfter   call id took ok keys code time group

Times and durations are in milliseconds, `ok` is `true` or `false`. Java writes `null` for tags and keys that
a message does not have. The number of fields at the end of Pub and SubAfter depends on the client's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from store.message.properties import NAME_VALUE_SEPARATOR as FIELD_END
from store.message.properties import PROPERTY_SEPARATOR as RECORD_END

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_NULL = "null"


class MessageType(IntEnum):
    """Kind of a sent message, with the number of RocketMQ's MessageType."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeCode(IntEnum):
    """Outcome of a listener call, with the number of RocketMQ's ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Pub:
    """A producer has sent a message.

    Attributes:
        time_ms: Start of the send, in ms since the epoch.
        region_id: Region of the broker.
        group: The producer group.
        topic: The topic.
        msg_id: Id that the producer gave the message (UNIQ_KEY).
        tags: Tag of the message; None if it has none.
        keys: Keys of the message, separated by spaces; None if it has none.
        store_host: `host:port` of the broker.
        body_bytes: Size of the body.
        took_ms: Duration of the send.
        message_type: Kind of the message.
        offset_msg_id: Id that the broker gave the message.
        is_success: True if the status of the send is SEND_OK.
    """

    time_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    took_ms: int
    message_type: MessageType
    offset_msg_id: str
    is_success: bool

    def encode(self) -> str:
        """Return the record with its end mark."""
        return _record(
            "Pub", self.time_ms, self.region_id, self.group, self.topic, self.msg_id, self.tags, self.keys,
            self.store_host, self.body_bytes, self.took_ms, int(self.message_type), self.offset_msg_id,
            self.is_success,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubBefore:
    """A consumer is about to call its listener with a message.

    Attributes:
        time_ms: Time of the call, in ms since the epoch.
        region_id: Region of the broker.
        group: The consumer group.
        call_id: Id of the listener call, which the SubAfter record has too.
        msg_id: Id that the producer gave the message.
        retries: Number of earlier deliveries of the message to the group.
        keys: Keys of the message; None if it has none.
    """

    time_ms: int
    region_id: str
    group: str
    call_id: str
    msg_id: str
    retries: int
    keys: str | None

    def encode(self) -> str:
        """Return the record with its end mark."""
        return _record(
            "SubBefore", self.time_ms, self.region_id, self.group, self.call_id, self.msg_id, self.retries,
            self.keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubAfter:
    """The listener of a consumer has returned.

    Attributes:
        call_id: Id of the listener call.
        msg_id: Id that the producer gave the message.
        took_ms: Duration of the call, divided by the number of its messages.
        is_success: True if the messages are consumed.
        keys: Keys of the message; None if it has none.
        code: Outcome of the call.
        time_ms: Time of the return, in ms since the epoch.
        group: The consumer group.
    """

    call_id: str
    msg_id: str
    took_ms: int
    is_success: bool
    keys: str | None
    code: ConsumeCode
    time_ms: int
    group: str

    def encode(self) -> str:
        """Return the record with its end mark."""
        return _record(
            "SubAfter", self.call_id, self.msg_id, self.took_ms, self.is_success, self.keys, int(self.code),
            self.time_ms, self.group,
        )  # fmt: skip


TraceRecord: TypeAlias = Pub | SubBefore | SubAfter


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Return the records in the body of a trace message.

    Records of other kinds (EndTransaction, Recall) and malformed records are left out: any client may write
    to the trace topic.
    """
    found: list[TraceRecord] = []
    for text in body.decode("utf-8", "replace").split(RECORD_END):
        kind, *fields = text.split(FIELD_END)
        try:
            if kind == "Pub":
                found.append(_pub(fields))
            elif kind == "SubBefore":
                found.append(_sub_before(fields))
            elif kind == "SubAfter":
                found.append(_sub_after(fields))
        except (ValueError, IndexError):
            continue
    return found


def _record(kind: str, *fields: str | int | bool | None) -> str:
    return FIELD_END.join((kind, *map(_text, fields))) + RECORD_END


def _text(value: str | int | bool | None) -> str:
    if value is None:
        return _NULL
    return str(value).lower() if isinstance(value, bool) else str(value)


def _optional(text: str) -> str | None:
    return None if text in ("", _NULL) else text


def _pub(fields: Sequence[str]) -> Pub:
    time_ms, region_id, group, topic, msg_id, tags, keys, store_host, size, took_ms, kind, *rest = fields
    # Old clients write no offset id; others write the client's address after the last field.
    offset_msg_id, is_success = ("", rest[0]) if len(rest) == 1 else (rest[0], rest[1])
    return Pub(
        int(time_ms), region_id, group, topic, msg_id, _optional(tags), _optional(keys), store_host,
        int(size), int(took_ms), MessageType(int(kind)), offset_msg_id, is_success == "true",
    )  # fmt: skip


def _sub_before(fields: Sequence[str]) -> SubBefore:
    time_ms, region_id, group, call_id, msg_id, retries, keys, *_ = fields
    return SubBefore(int(time_ms), region_id, group, call_id, msg_id, int(retries), _optional(keys))


def _sub_after(fields: Sequence[str]) -> SubAfter:
    call_id, msg_id, took_ms, is_success, keys, *rest = fields
    code, time_ms, group, *_ = (*rest, *("0", "0", "")[len(rest) :])
    return SubAfter(
        call_id, msg_id, int(took_ms), is_success == "true", _optional(keys), ConsumeCode(int(code)),
        int(time_ms), group,
    )  # fmt: skip
