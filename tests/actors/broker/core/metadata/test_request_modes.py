"""Message request modes (mqadmin setConsumeMode): validation, listing, restart and deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.wire.admin_headers import DeleteGroupHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import DeleteTopicHeader
from store.metadata import MessageRequestModeTable
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, settings_of, with_broker


def body(topic: str, group: str, mode: str = "PULL") -> bytes:
    return orjson.dumps({"consumerGroup": group, "mode": mode, "popShareQueueNum": 0, "topic": topic})


async def modes(peer: Peer) -> dict[str, Any]:
    answer = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    table: dict[str, Any] = orjson.loads(answer.body)["messageRequestModeMap"]
    return table


def test_modes_survive_restart_and_are_deleted_with_topic_or_group(tmp_path: Path) -> None:
    async def first(peer: Peer) -> None:
        assert await modes(peer) == {}
        for topic, group in (("T", "CG"), ("T", "Other"), ("U", "CG")):
            await peer.send(topic)
            answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body(topic, group))
            assert answer.code == ResponseCode.SUCCESS
        assert (await modes(peer))["T"]["CG"] == orjson.loads(body("T", "CG"))

    async def second(peer: Peer) -> None:
        assert {topic: sorted(groups) for topic, groups in (await modes(peer)).items()} == {
            "T": ["CG", "Other"],
            "U": ["CG"],
        }
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("CG").to_ext())
        assert (await modes(peer)).keys() == {"T"}
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
        assert await modes(peer) == {}

    with_broker(first, settings_of(tmp_path))
    with_broker(second, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("content", "code", "remark"),
    [
        (body("T", "CG", "PUSH"), "INVALID_PARAMETER", "request mode 'PUSH' does not exist: use PULL or POP"),
        (body("NoTopic", "CG"), "TOPIC_NOT_EXIST", "NoTopic"),
        (body("%RETRY%CG", "CG"), "NO_PERMISSION", "retry topic is not allowed to set mode"),
        (b'{"topic":"T"}', "INVALID_PARAMETER", "consumerGroup is missing"),
        (b'{"topic":"T","consumerGroup":7}', "INVALID_PARAMETER", "consumerGroup is 7"),
        (b"POP", "SYSTEM_ERROR", "the body is not a valid message request mode"),
    ],
)
def test_invalid_request_mode_is_refused(tmp_path: Path, content: bytes, code: str, remark: str) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=content)
        assert (answer.code, remark in answer.remark) == (ResponseCode[code], True), answer.remark
        assert await modes(peer) == {}

    with_broker(story, settings_of(tmp_path))


def test_rocketmqs_request_modes_are_preserved() -> None:
    group = {"consumerGroup": "G", "mode": "POP", "popShareQueueNum": 3, "topic": "T", "newer": 1}
    content = {"messageRequestModeMap": {"T": {"G": group}}, "dataVersion": {"counter": 1}}
    assert MessageRequestModeTable.from_json(content).to_json() == content
    assert MessageRequestModeTable.from_json({}).to_json() == {"messageRequestModeMap": {}}
    for broken in ({"other": 1}, *({"messageRequestModeMap": {"T": wrong}} for wrong in (1, {"G": 1}))):
        with pytest.raises(StoreError, match=r"messageRequestMode\.json"):
            MessageRequestModeTable.from_json(broken)
