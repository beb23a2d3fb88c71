"""Headers and bodies of requests about lite topics (RocketMQ RIP-83)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from actors.wire.bodies.pops import ORDER_COUNTS
from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.header import FrameText, Group, Header, Int, Long, Name, Topic
from actors.wire.json_fields import get_object, get_objects, get_str, load_request
from actors.wire.remoting_errors import Refused
from store.message.fetched import decode_all
from store.message.message import MessageExt
from store.message.pop_records import NORMAL, Receipt
from store.message.properties import MessageConst

_SYNC_VALUES_MAX: Final = 200_000


class SyncAction(StrEnum):
    """What one entry of LITE_SUBSCRIPTION_CTL does to the subscriptions of a client."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"

    @property
    def is_add(self) -> bool:
        """True if the action may subscribe lite topics."""
        return self in (SyncAction.PARTIAL_ADD, SyncAction.COMPLETE_ADD)


class PopLiteHeader(Header):
    """Header of POP_LITE_MESSAGE (200070); `topic` is that of all lite topics. Times are in ms.

    RayMQ's clients set `needs_subscription`: a broker that does not know the client, because it has just
    started, refuses the pop with SUBSCRIPTION_NOT_EXIST, and the client synchronizes its subscriptions.
    """

    client_id: Name
    consumer_group: Group
    topic: Topic
    max_msg_num: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long = 0
    attempt_id: Name = ""
    needs_subscription: bool = False


class PopLiteResponse(Header):
    """Header of the response to POP_LITE_MESSAGE.

    `order_count_info` has an item for each record: `0`, or `0 qo0%<lite offset> <earlier deliveries>`.
    """

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    order_count_info: FrameText = ""


class UnsubscribeLiteHeader(Header):
    """Header of NOTIFY_UNSUBSCRIBE_LITE (200073), which a broker sends without a response."""

    lite_topic: Name
    consumer_group: Group
    client_id: Name


class ParentTopicHeader(Header):
    """Header of GET_PARENT_TOPIC_INFO (200075).

    RayMQ's clients set `max_count`: the response then describes the first lite topics, in the order of their
    names, with `match` in these, or the one of the name `lite_topic`.
    """

    topic: Topic
    match: Name = ""
    lite_topic: Name = ""
    max_count: Int = 0


class LiteTopicHeader(Header):
    """Header of GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: Topic
    lite_topic: Name


class LiteClientHeader(Header):
    """Header of GET_LITE_CLIENT_INFO (200077)."""

    parent_topic: Topic
    group: Group
    client_id: Name
    max_count: Int = 1_000


class LiteGroupHeader(Header):
    """Header of GET_LITE_GROUP_INFO (200078)."""

    group: Group
    lite_topic: Name = ""
    top_k: Int = 0


class LiteDispatchHeader(Header):
    """Header of TRIGGER_LITE_DISPATCH (200079); all clients of the group if `client_id` is empty."""

    group: Group
    client_id: Name = ""


class SyncEntry(NamedTuple):
    """One entry of LITE_SUBSCRIPTION_CTL."""

    action: SyncAction
    client_id: str
    group: str
    topic: str
    names: Collection[str] = ()
    option: tuple[str, int] | None = None
    """Type and value of the offset option."""


def popped_lite_messages(
    ext: Mapping[str, str], body: Buffer, broker_name: str, *, decompresses: bool = True
) -> list[MessageExt]:
    """Return the messages in the response to POP_LITE_MESSAGE, each with its receipt as property POP_CK.

    Their queue offsets are those of their lite topics. See `popped_messages`.
    """
    messages = decode_all(body, broker_name, decompresses=decompresses)
    counts = [each.rpartition(" ")[2] for each in ext.get(ORDER_COUNTS, "").split(";")]
    if len(counts) != len(messages):
        counts = ["0"] * len(messages)
    for message, count in zip(messages, counts, strict=True):
        message.queue_offset = int(message.properties[MessageConst.INNER_MULTI_QUEUE_OFFSET])
        message.reconsume_times += int(count)
        receipt = Receipt(
            0, int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]), NORMAL, broker_name, 0,
            message.queue_offset,
        )  # fmt: skip
        message.properties[MessageConst.POP_CK] = receipt.encode()
    return messages


def encode_sync(entry: SyncEntry) -> bytes:
    """Return the body of LITE_SUBSCRIPTION_CTL with one entry."""
    fields = {
        "action": entry.action, "clientId": entry.client_id, "group": entry.group, "topic": entry.topic,
        "liteTopicSet": list(entry.names), "version": 0,
    }  # fmt: skip
    if entry.option is not None:
        kind, value = entry.option
        fields["offsetOption"] = {"type": kind, "value": value}
    return orjson.dumps({"subscriptionSet": [fields]})


def decode_sync(body: Buffer) -> list[SyncEntry]:
    """Return the entries in the body of LITE_SUBSCRIPTION_CTL, without incomplete ones. Raises Refused."""
    content = load_request(body, "lite subscription", _SYNC_VALUES_MAX) if body else {}
    listed = get_objects(content, "subscriptionSet")
    if not listed:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "the request has no lite subscriptions")
    entries = map(_sync_entry, listed)
    return [each for each in entries if each.client_id.strip() and each.group.strip() and each.topic.strip()]


def _sync_entry(fields: Mapping[str, Any]) -> SyncEntry:
    try:
        action = SyncAction(get_str(fields, "action", SyncAction.PARTIAL_ADD))
    except ValueError as error:
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"the action {get_str(fields, 'action')[:100]!r} of a lite subscription is not one of "
            f"{', '.join(SyncAction)}",
        ) from error
    names = fields.get("liteTopicSet") or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "the liteTopicSet of a lite subscription has no names")
    return SyncEntry(
        action, get_str(fields, "clientId"), get_str(fields, "group"), get_str(fields, "topic"), names,
        _option(get_object(fields, "offsetOption")) if fields.get("offsetOption") else None,
    )  # fmt: skip


def _option(fields: Mapping[str, Any]) -> tuple[str, int]:
    value = fields.get("value", 0)
    if type(value) is not int or not 0 <= value < 2**63:
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION, f"the value {value!r:.100} of an offset option is no offset"
        )
    return get_str(fields, "type"), value
