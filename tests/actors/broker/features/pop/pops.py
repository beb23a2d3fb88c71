"""Helpers: pop messages of a broker over its socket, and ack them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.wire.bodies.pops import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    PopMessageHeader,
    parse_start_offsets,
)
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import QueryConsumerOffsetHeader
from store.message.message import MessageExt
from store.message.pop_records import NORMAL, RETRY_V1, Receipt, pop_retry_topic
from store.message.record import decode_records
from tests.actors.broker.brokers import Peer

GROUP = "PopG"
INVISIBLE_MS = 60_000


@dataclass(frozen=True)
class Popped:
    """A popped message with its receipt."""

    message: MessageExt
    receipt: Receipt

    @property
    def topic(self) -> str:
        """The topic in which the message is stored."""
        is_retry = self.receipt.kind == RETRY_V1
        return pop_retry_topic(GROUP, self.message.topic) if is_retry else self.message.topic

    @property
    def body(self) -> bytes:
        return self.message.body


async def pop_response(peer: Peer, topic: str = "T", **fields: Any) -> RemotingCommand:
    """Return the response to a pop of all queues that does not wait."""
    defaults: dict[str, Any] = {
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": INVISIBLE_MS,
        "poll_time": 0,
    }
    header = PopMessageHeader(fields.pop("group", GROUP), topic, **(defaults | fields))
    return await peer.ask(RequestCode.POP_MESSAGE, header.to_ext())


def parse_message_offsets(text: str) -> dict[tuple[str, int], list[int]]:
    """Return the offsets in the field `msgOffsetInfo`, by kind and queue id."""
    found: dict[tuple[str, int], list[int]] = {}
    for entry in filter(None, text.split(";")):
        kind, queue_id, offsets = entry.split(" ")
        found[kind, int(queue_id)] = [int(offset) for offset in offsets.split(",")]
    return found


def popped(response: RemotingCommand) -> list[Popped]:
    """Return the messages of a response with their receipts, as RocketMQ's client makes them."""
    ext = response.ext
    starts = parse_start_offsets(ext.get("startOffsetInfo", ""))
    offsets = parse_message_offsets(ext.get("msgOffsetInfo", ""))
    found = []
    for message in decode_records(response.body):
        stored = message.properties.get("POP_CK")
        if stored is None:
            assert message.queue_offset in offsets[NORMAL, message.queue_id]
            receipt = Receipt(
                starts[NORMAL, message.queue_id], int(ext["popTime"]), int(ext["invisibleTime"]),
                int(ext["reviveQid"]), NORMAL, "broker-a", message.queue_id, message.queue_offset,
            )  # fmt: skip
        else:
            receipt = Receipt.decode(stored)
            assert message.queue_offset in offsets[receipt.kind, message.queue_id]
        found.append(Popped(message, receipt))
    return found


async def pop(peer: Peer, topic: str = "T", **fields: Any) -> list[Popped]:
    return popped(await pop_response(peer, topic, **fields))


def ack_header(each: Popped) -> AckMessageHeader:
    receipt = each.receipt
    return AckMessageHeader(GROUP, each.topic, receipt.queue_id, receipt.encode(), receipt.offset)


async def ack(peer: Peer, each: Popped, **fields: Any) -> RemotingCommand:
    return await peer.ask(RequestCode.ACK_MESSAGE, ack_header(each).to_ext() | fields)


async def change(peer: Peer, each: Popped, invisible_ms: int, **fields: Any) -> RemotingCommand:
    receipt = each.receipt
    header = ChangeInvisibleTimeHeader(
        GROUP, each.topic, receipt.queue_id, receipt.encode(), receipt.offset, invisible_ms
    )
    return await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext() | fields)


def changed(each: Popped, response: RemotingCommand) -> Popped:
    """Return the message with the receipt that RocketMQ's client makes after a change."""
    ext = response.ext
    receipt = each.receipt._replace(
        start_offset=each.receipt.offset,
        pop_ms=int(ext["popTime"]),
        invisible_ms=int(ext["invisibleTime"]),
        revive_queue=int(ext["reviveQid"]),
    )
    return Popped(each.message, receipt)


async def committed(peer: Peer, topic: str = "T", queue_id: int = 0) -> int | None:
    ext = QueryConsumerOffsetHeader(GROUP, topic, queue_id, set_zero_if_not_found=False).to_ext()
    response = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return int(response.ext["offset"]) if response.code == 0 else None


def bodies(messages: list[Popped]) -> list[bytes]:
    return [each.body for each in messages]


async def send(peer: Peer, *texts: str, topic: str = "T", **fields: Any) -> None:
    for text in texts:
        assert (await peer.send(topic, text.encode(), **fields)).code == 0
