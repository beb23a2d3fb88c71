"""Replies: handed to the client that asked, over its own connection, and stored."""

from __future__ import annotations

from pathlib import Path

from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.hot_headers import SendMessageHeader, SendMessageHeaderV1
from actors.remoting.request import RequestContext
from actors.remoting.table import RequestTable
from store.message.properties import decode_properties
from tests.actors.broker.brokers import Peer, settings_of, with_broker

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKING = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1"


async def reply(peer: Peer, properties: str = ASKING) -> RemotingCommand:
    ext = SendMessageHeader("PG", TOPIC, 0, properties, born_timestamp=7).to_ext()
    return await peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"the answer")


def asker(peer: Peer, code: int, told: list[RemotingCommand]) -> Peer:
    """A client that waits for replies, and answers them with this code."""

    def pushed(context: RequestContext) -> RemotingCommand:
        command = context.command
        command.body = bytes(command.body)
        told.append(command)
        return RemotingCommand.response(code)

    table = RequestTable()
    table.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed)
    return Peer(peer.broker, table)


def test_a_reply_reaches_who_asked_and_is_stored(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        told: list[RemotingCommand] = []
        waiting = asker(peer, ResponseCode.SUCCESS, told)
        await waiting.heartbeat("asker", "G")
        answer = await reply(peer)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext["queueOffset"] == "0"

        [pushed] = told
        header = SendMessageHeaderV1.from_ext(pushed.ext)
        assert (header.topic, header.born_timestamp, pushed.body) == (TOPIC, 7, b"the answer")
        assert decode_properties(header.properties.encode()) == {
            "REPLY_TO_CLIENT": "asker",
            "CORRELATION_ID": "c1",
            "PUSH_REPLY_TIME": pushed.ext["storeTimestamp"],
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert pushed.ext["storeHost"] == peer.broker.address
        [stored] = await peer.messages(TOPIC)
        assert stored.body == b"the answer"
        await waiting.client.close()

    with_broker(story, settings_of(tmp_path))


def test_a_reply_that_cannot_be_handed_over_says_why(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        nobody = await reply(peer)
        assert nobody.code == ResponseCode.SYSTEM_ERROR
        assert "channel of <asker> not found" in (nobody.remark or "")
        unnamed = await reply(peer, "CORRELATION_ID\x01c1")
        assert unnamed.code == ResponseCode.SYSTEM_ERROR
        assert "REPLY_TO_CLIENT" in (unnamed.remark or "")

        waiting = asker(peer, ResponseCode.SYSTEM_BUSY, [])
        await waiting.heartbeat("asker", "G")
        refused = await reply(peer)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "push reply message to asker fail" in (refused.remark or "")
        await waiting.client.close()

    with_broker(story, settings_of(tmp_path))
