"""Replies are pushed to the client that sent the request message, and stored."""

from __future__ import annotations

from pathlib import Path

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader, SendMessageHeaderV1
from store.message.properties import decode_properties
from tests.actors.broker.brokers import Peer, settings_of, with_broker

TOPIC = "DefaultCluster_REPLY_TOPIC"
REPLY_PROPERTIES = "REPLY_TO_CLIENT\x01requester\x02CORRELATION_ID\x01c1"


async def reply(peer: Peer, properties: str = REPLY_PROPERTIES) -> RemotingCommand:
    ext = SendMessageHeader("PG", TOPIC, 0, properties, born_timestamp=7).to_ext()
    return await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"the reply")


def requester(peer: Peer, code: int, received: list[RemotingCommand]) -> Peer:
    """Return a client that receives pushed replies into `received` and responds with `code`."""

    def pushed(context: RequestContext) -> RemotingCommand:
        command = context.command
        command.body = bytes(command.body)
        received.append(command)
        return RemotingCommand.response(code)

    table = RequestTable()
    table.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed)
    return Peer(peer.broker, table)


def test_reply_is_pushed_to_the_requester_and_stored(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        received: list[RemotingCommand] = []
        waiting = requester(peer, ResponseCode.SUCCESS, received)
        await waiting.heartbeat("requester", "G")
        response = await reply(peer)
        assert response.code == ResponseCode.SUCCESS
        assert response.ext["queueOffset"] == "0"

        [pushed] = received
        header = SendMessageHeaderV1.from_ext(pushed.ext)
        assert (header.topic, header.born_timestamp, pushed.body) == (TOPIC, 7, b"the reply")
        assert decode_properties(header.properties.encode()) == {
            "REPLY_TO_CLIENT": "requester",
            "CORRELATION_ID": "c1",
            "PUSH_REPLY_TIME": pushed.ext["storeTimestamp"],
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert pushed.ext["storeHost"] == peer.broker.address
        [stored] = await peer.messages(TOPIC)
        assert stored.body == b"the reply"
        await waiting.client.close()

    with_broker(story, settings_of(tmp_path))


def test_undeliverable_reply_is_refused_with_the_cause(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        unknown = await reply(peer)
        assert unknown.code == ResponseCode.SYSTEM_ERROR
        assert "channel of <requester> not found" in (unknown.remark or "")
        unnamed = await reply(peer, "CORRELATION_ID\x01c1")
        assert unnamed.code == ResponseCode.SYSTEM_ERROR
        assert "REPLY_TO_CLIENT" in (unnamed.remark or "")

        waiting = requester(peer, ResponseCode.SYSTEM_BUSY, [])
        await waiting.heartbeat("requester", "G")
        refused = await reply(peer)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "push reply message to requester fail" in (refused.remark or "")
        await waiting.client.close()

    with_broker(story, settings_of(tmp_path))
