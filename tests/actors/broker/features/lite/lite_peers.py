"""Helpers: lite topics of a broker over its socket, with the fields of RocketMQ's proxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from store.message.pop_records import ORDER_REVIVE_QUEUE, Receipt
from store.message.properties import MessageConst
from store.message.record import decode_records
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.conftest import ClockAtRest

TOPIC, GROUP, CLIENT = "LiteT", "LiteG", "cid1"
INVISIBLE_MS = 60_000


Story = Callable[[Peer], Awaitable[None]]


@dataclass(frozen=True)
class LiteMessage:
    """A received lite message."""

    name: str
    offset: int
    body: bytes
    pop_ms: int
    count: int


async def create_topic(peer: Peer, topic: str = TOPIC, message_type: str = "LITE", **fields: str) -> None:
    attributes = {"message.type": message_type, **fields}
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
        "attributes": ",".join(f"+{name}={value}" for name, value in attributes.items()),
    }  # fmt: skip
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0


async def create_group(peer: Peer, group: str = GROUP, topic: str = TOPIC, **attributes: str) -> None:
    """Create a lite group; `attributes` have names such as `sub_model` for `lite.sub.model`."""
    changes = {"lite_bind_topic": topic} | {f"lite_{name}": value for name, value in attributes.items()}
    content = {
        "groupName": group,
        "attributes": {f"+{name.replace('_', '.')}": value for name, value in changes.items()},
    }
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    response = await peer.ask(code, body=orjson.dumps(content))
    assert response.code == 0, response.remark


async def send(peer: Peer, name: str, *texts: str, topic: str = TOPIC) -> None:
    for text in texts:
        properties = f"{MessageConst.LITE_TOPIC}\x01{name}\x02"
        response = await peer.send(topic, text.encode(), 2, properties)
        assert response.code == 0, response.remark


async def sync(
    peer: Peer,
    action: str,
    *names: str,
    client: str = CLIENT,
    group: str = GROUP,
    topic: str = TOPIC,
    **fields: Any,
) -> RemotingCommand:
    entry = {
        "action": action, "clientId": client, "group": group, "topic": topic, "liteTopicSet": names,
        "version": 0, **fields,
    }  # fmt: skip
    return await peer.ask(RequestCode.LITE_SUBSCRIPTION_CTL, body=orjson.dumps({"subscriptionSet": [entry]}))


async def pop_response(peer: Peer, client: str = CLIENT, **fields: Any) -> RemotingCommand:
    ext = {
        "clientId": client, "consumerGroup": GROUP, "topic": TOPIC, "maxMsgNum": 32,
        "invisibleTime": INVISIBLE_MS, "pollTime": 0, "bornTime": 0,
    } | fields  # fmt: skip
    return await peer.ask(RequestCode.POP_LITE_MESSAGE, {name: str(value) for name, value in ext.items()})


def received(response: RemotingCommand) -> list[LiteMessage]:
    counts = response.ext["orderCountInfo"].split(";")
    messages = list(decode_records(response.body))
    assert len(counts) == len(messages)
    return [
        LiteMessage(
            each.properties[MessageConst.LITE_TOPIC],
            int(each.properties[MessageConst.INNER_MULTI_QUEUE_OFFSET]),
            each.body,
            int(response.ext["popTime"]),
            int(count.split(" ")[2]) if " " in count else 0,
        )
        for each, count in zip(messages, counts, strict=True)
    ]


async def pop(peer: Peer, client: str = CLIENT, **fields: Any) -> list[LiteMessage]:
    response = await pop_response(peer, client, **fields)
    return received(response) if response.body else []


def _fields(each: LiteMessage, revive_queue: int) -> dict[str, str]:
    receipt = Receipt(0, each.pop_ms, INVISIBLE_MS, revive_queue, "0", "broker-a", 0, each.offset)
    return {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "offset": str(each.offset),
        "liteTopic": each.name, "extraInfo": receipt.encode(),
    }  # fmt: skip


async def ack(
    peer: Peer, each: LiteMessage, revive_queue: int = ORDER_REVIVE_QUEUE, **fields: str
) -> RemotingCommand:
    return await peer.ask(RequestCode.ACK_MESSAGE, _fields(each, revive_queue) | fields)


async def change(peer: Peer, each: LiteMessage, invisible_ms: int, **fields: str) -> RemotingCommand:
    ext = _fields(each, ORDER_REVIVE_QUEUE) | {"invisibleTime": str(invisible_ms)} | fields
    return await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)


def with_lite_broker(
    story: Story, tmp_path: Path, clock: ClockAtRest | None = None, **attributes: str
) -> None:
    async def prepared(peer: Peer) -> None:
        await create_topic(peer)
        await create_group(peer, **attributes)
        await story(peer)

    with_broker(prepared, settings_of(tmp_path), clock)


async def end_of(peer: Peer, name: str, topic: str = TOPIC) -> int:
    """Return the end offset of a lite topic."""
    peer.store.dispatch_now()
    response = await peer.ask(RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": topic, "liteTopic": name})
    assert response.code == 0, response.remark
    return int(orjson.loads(response.body)["topicOffset"]["maxOffset"])
