"""Headers and bodies of POP requests.

The response to POP_MESSAGE names the claimed messages in two fields, with an entry per queue:

    startOffsetInfo  kind queueId startOffset;…
    msgOffsetInfo    kind queueId offset,offset,…;…
    orderCountInfo   kind qo<queueId>%<offset> count;… and kind queueId count   (ordered pops)

The kind is 0 for the requested topic, 1 or 2 for its retry topic. The consumer makes the receipts from them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.header import FrameText, Group, Header, Int, Long, Name, Text, Topic
from actors.wire.json_fields import get_objects, get_str, load_request
from actors.wire.remoting_errors import Refused
from store.message.fetched import decode_all
from store.message.message import MessageExt
from store.message.pop_records import MESSAGES_MAX, NORMAL, ClaimKey, Receipt, real_topic
from store.message.properties import MessageConst
from store.store_errors import MessageInvalid

START_OFFSETS: Final = "startOffsetInfo"
ORDER_COUNTS = "orderCountInfo"

INIT_MAX: Final = 1
"""`initMode`: a new group begins at the end of the queues; 0: at their beginning."""

_BATCH_VALUES_MAX: Final = 100_000


class PopMessageHeader(Header):
    """Header of POP_MESSAGE (200050); `queue_id` -1 means all read queues. Times are in ms."""

    consumer_group: Group
    topic: Topic
    queue_id: Int
    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long = 0
    init_mode: Int = 0
    exp_type: Name = "TAG"
    exp: FrameText = "*"
    order: bool = False
    attempt_id: Name = ""


class PeekMessageHeader(Header):
    """Header of PEEK_MESSAGE (200052)."""

    consumer_group: Group
    topic: Topic
    queue_id: Int
    max_msg_nums: Int


class PopResponse(Header):
    """Header of the response to POP_MESSAGE."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    rest_num: Long
    start_offset_info: FrameText = ""
    msg_offset_info: FrameText = ""
    order_count_info: FrameText | None = None


class AckMessageHeader(Header):
    """Header of ACK_MESSAGE (200051); `topic` is the retry topic for a message from there.

    With `lite_topic`, `topic` is that of all lite topics, and `offset` is one of the lite topic.
    """

    consumer_group: Group
    topic: Topic
    queue_id: Int
    extra_info: Text
    offset: Long
    lite_topic: Name = ""


class ChangeInvisibleTimeHeader(Header):
    """Header of CHANGE_MESSAGE_INVISIBLETIME (200053); see `AckMessageHeader`.

    With `suspend`, all messages of the lite topic that are in flight become visible at the same time.
    """

    consumer_group: Group
    topic: Topic
    queue_id: Int
    extra_info: Text
    offset: Long
    invisible_time: Long
    lite_topic: Name = ""
    suspend: bool = False


class ChangeInvisibleTimeResponse(Header):
    """Header of the response to CHANGE_MESSAGE_INVISIBLETIME, for the new receipt."""

    pop_time: Long | None = None
    invisible_time: Long | None = None
    revive_qid: Int | None = None


class NotificationHeader(Header):
    """Header of NOTIFICATION (200054)."""

    consumer_group: Group
    topic: Topic
    queue_id: Int
    poll_time: Long
    born_time: Long = 0
    order: bool = False
    attempt_id: Name = ""


class NotificationResponse(Header):
    """Header of the response to NOTIFICATION."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoHeader(Header):
    """Header of POLLING_INFO (200055)."""

    consumer_group: Group
    topic: Topic
    queue_id: Int


class PollingInfoResponse(Header):
    """Header of the response to POLLING_INFO: the number of waiting pops."""

    polling_num: Int


class ClaimedQueue(NamedTuple):
    """The messages of one queue in the response to a pop."""

    kind: str
    queue_id: int
    start_offset: int
    offsets: list[int]


def start_offset_info(queues: Iterable[ClaimedQueue]) -> str:
    """Return the field START_OFFSETS."""
    return ";".join(f"{each.kind} {each.queue_id} {each.start_offset}" for each in queues)


def message_offset_info(queues: Iterable[ClaimedQueue]) -> str:
    """Return the field `msgOffsetInfo`."""
    return ";".join(f"{each.kind} {each.queue_id} {','.join(map(str, each.offsets))}" for each in queues)


def order_count_info(queue: ClaimedQueue, counts: Mapping[int, int]) -> str:
    """Return the entries of `orderCountInfo` for one queue.

    `counts` has the number of earlier deliveries by offset, without those that are 0. The last entry, for old
    clients, has the smallest number.
    """
    entries = [f"{queue.kind} qo{queue.queue_id}%{offset} {count}" for offset, count in counts.items()]
    least = min((counts.get(offset, 0) for offset in queue.offsets), default=0)
    return ";".join((*entries, f"{queue.kind} {queue.queue_id} {least}"))


def parse_start_offsets(text: str) -> dict[tuple[str, int], int]:
    """Return the start offsets in the field START_OFFSETS, by kind and queue id. Raises ValueError."""
    found: dict[tuple[str, int], int] = {}
    for entry in filter(None, text.split(";")):
        kind, queue_id, offset = entry.split(" ")
        found[kind, int(queue_id)] = int(offset)
    return found


def parse_order_counts(text: str) -> dict[tuple[int, int], int]:
    """Return the earlier deliveries in `orderCountInfo`, by queue id and offset. Raises ValueError."""
    found: dict[tuple[int, int], int] = {}
    for entry in filter(None, text.split(";")):
        _, place, count = entry.split(" ")
        if place.startswith("qo"):
            queue_id, offset = place.removeprefix("qo").split("%")
            found[int(queue_id), int(offset)] = int(count)
    return found


def popped_messages(
    ext: Mapping[str, str], body: Buffer, broker_name: str, *, decompresses: bool = True
) -> list[MessageExt]:
    """Return the messages in the response to POP_MESSAGE, each with its receipt as property POP_CK.

    Without `decompresses`, bodies stay as they are stored.

    Raises RecordDamaged, MessageInvalid, KeyError, ValueError if the response is damaged.
    """
    messages = decode_all(body, broker_name, decompresses=decompresses)
    starts = parse_start_offsets(ext.get(START_OFFSETS, ""))
    counts = parse_order_counts(ext.get(ORDER_COUNTS, ""))
    for message in messages:
        present = message.properties.get(MessageConst.POP_CK)  # the broker adds it to retries only
        if present is not None:
            Receipt.decode(present)
            continue
        receipt = Receipt(
            starts[NORMAL, message.queue_id],
            int(ext["popTime"]),
            int(ext["invisibleTime"]),
            int(ext["reviveQid"]),
            NORMAL,
            broker_name,
            message.queue_id,
            message.queue_offset,
        )
        message.properties[MessageConst.POP_CK] = receipt.encode()
        # An ordered message is delivered again from its queue, so its record does not count deliveries.
        message.reconsume_times += counts.get((message.queue_id, message.queue_offset), 0)
    return messages


def read_receipt(text: str) -> Receipt:
    """Return the receipt in `extraInfo`. Raises Refused."""
    try:
        return Receipt.decode(text)
    except MessageInvalid as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, error.remark) from error


class BatchAck(NamedTuple):
    """The acks of one claim in the body of BATCH_ACK_MESSAGE."""

    group: str
    requested_topic: str
    kind: str
    key: ClaimKey
    invisible_ms: int
    revive_queue: int
    offsets: list[int]


def decode_batch_acks(body: Buffer) -> list[BatchAck]:
    """Return the acks in the body of BATCH_ACK_MESSAGE. Raises Refused."""
    content = load_request(body, "batch of acks", _BATCH_VALUES_MAX)
    return [_batch_ack(fields) for fields in get_objects(content, "acks")]


def encode_batch_acks(broker_name: str, acks: Iterable[BatchAck]) -> dict[str, Any]:
    """Return the body of BATCH_ACK_MESSAGE as JSON content."""
    return {
        "brokerName": broker_name,
        "acks": [
            {
                "c": ack.group,
                "t": ack.requested_topic,
                "r": ack.kind,
                "so": ack.key.start_offset,
                "q": ack.key.queue_id,
                "rq": ack.revive_queue,
                "pt": ack.key.pop_ms,
                "it": ack.invisible_ms,
                "b": base64.b64encode(
                    _bit_set(offset - ack.key.start_offset for offset in ack.offsets)
                ).decode(),
            }
            for ack in acks
        ],
    }


def _batch_ack(fields: Mapping[str, Any]) -> BatchAck:
    group, topic = _text(fields, "c", "consumerGroup"), _text(fields, "t", "topic")
    kind = _text(fields, "r", "retry") or "0"
    start, queue_id = _number(fields, "so", "startOffset"), _number(fields, "q", "queueId")
    key = ClaimKey(real_topic(topic, group, kind), group, queue_id, start, _number(fields, "pt", "popTime"))
    offsets = [start + bit for bit in _bits(_text(fields, "b", "bitSet"))]
    invisible_ms = _number(fields, "it", "invisibleTime")
    return BatchAck(group, topic, kind, key, invisible_ms, _number(fields, "rq", "reviveQueueId"), offsets)


def _text(fields: Mapping[str, Any], name: str, long_name: str) -> str:
    return get_str(fields, name if name in fields else long_name)


def _number(fields: Mapping[str, Any], name: str, long_name: str) -> int:
    value = fields.get(name, fields.get(long_name, 0))
    if type(value) is not int or not 0 <= value < 2**63:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"`{name}` of a batch ack is {value!r:.100}, not a number"
        )
    return value


def _bits(text: str) -> Iterator[int]:
    """Yield the set bits of a Java BitSet in base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"the bits {text[:100]!r} of a batch ack are not base64"
        ) from error
    bits = int.from_bytes(data[: 2 * MESSAGES_MAX], "little")  # a filtered claim has gaps
    return (index for index in range(bits.bit_length()) if bits >> index & 1)


def _bit_set(bits: Iterable[int]) -> bytes:
    number = sum(1 << bit for bit in bits)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")
