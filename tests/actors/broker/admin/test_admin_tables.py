"""Administrative requests that create, change and list topics and groups, over the broker's socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.wire.admin_headers import GroupHeader
from actors.wire.bodies.routes import decode_topic_list
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import TopicHeader
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeaderV1
from store.message.record import decode_records
from tests.actors.broker.brokers import Peer, settings_of, with_broker


async def table(peer: Peer, code: int, ext: dict[str, str] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads((await peer.ask(code, ext)).body)
    return content


def topic(name: str, queues: int) -> dict[str, object]:
    return {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}


def test_topic_list_request_creates_all_topics(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        body = orjson.dumps({"topicConfigList": [topic("One", 1), topic("Two", 2)]})
        created = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert created.code == ResponseCode.SUCCESS
        two = await table(peer, RequestCode.GET_TOPIC_CONFIG, TopicHeader("Two").to_ext())
        assert (two["topicName"], two["writeQueueNums"]) == ("Two", 2)
        everything = await table(peer, RequestCode.GET_ALL_TOPIC_CONFIG)
        assert {"One", "Two"} <= everything["topicConfigTable"].keys()
        system = decode_topic_list((await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
        assert "TBW102" in system
        assert "One" not in system

    with_broker(story, settings_of(tmp_path))


def test_groups_are_created_one_by_one_or_as_a_list(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        alone = orjson.dumps({"groupName": "Alone", "retryMaxTimes": 3})
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=alone)).code == 0
        both = orjson.dumps(
            {"groupConfigList": [{"groupName": "A"}, {"groupName": "B", "retryQueueNums": 2}]}
        )
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=both)).code == 0
        groups = (await table(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
        assert groups["Alone"]["retryMaxTimes"] == 3
        assert {"A", "B"} <= groups.keys()
        found = await table(peer, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("B").to_ext())
        assert found["retryQueueNums"] == 2

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("Good", 1), {"perm": 6}]}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic("Good", 1), topic("a b", 1)]}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": []}),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"retryMaxTimes": 3}),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": [{"groupName": ""}]}),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            {"groupConfigList": [{"groupName": "Good"}, {"groupName": "a b"}]},
        ),
    ],
)
def test_list_with_an_invalid_entry_changes_nothing(
    tmp_path: Path, code: int, body: dict[str, object]
) -> None:
    async def story(peer: Peer) -> None:
        answer = await peer.ask(code, body=orjson.dumps(body))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark
        topics = (await table(peer, RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
        assert "Good" not in topics
        groups = (await table(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
        assert "Good" not in groups

    with_broker(story, settings_of(tmp_path))


def test_lite_pull_returns_messages_like_pull(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"lite")
        ext = PullMessageHeader("G", "T", 0, 0, sys_flag=4, subscription="*").to_ext()
        answer = await peer.ask(RequestCode.LITE_PULL_MESSAGE, ext)
        assert [message.body for message in decode_records(answer.body)] == [b"lite"]

    with_broker(story, settings_of(tmp_path))


def test_reply_message_with_v1_header_names_is_accepted(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        header = SendMessageHeaderV1("PG", "DefaultCluster_REPLY_TOPIC", 0, "REPLY_TO_CLIENT\x01gone")
        answer = await peer.ask(RequestCode.SEND_REPLY_MESSAGE, header.to_ext(), b"late")
        assert "channel of <gone> not found" in (answer.remark or "")

    with_broker(story, settings_of(tmp_path))


def test_unsupported_request_codes_are_refused_by_name(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for code in (
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            RequestCode.ADD_BROKER,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
            RequestCode.SET_COMMITLOG_READ_MODE,
        ):
            answer = await peer.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.remark == f"request code {int(code)} ({code.name}) is not supported by this process"

    with_broker(story, settings_of(tmp_path))
