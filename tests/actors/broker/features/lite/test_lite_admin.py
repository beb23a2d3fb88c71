"""The requests of mqadmin about lite topics: bodies with the fields of RocketMQ 5.5.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from actors.wire.codes import RequestCode, ResponseCode
from tests.actors.broker.brokers import Peer
from tests.actors.broker.features.lite.lite_peers import (
    CLIENT,
    GROUP,
    TOPIC,
    ack,
    create_group,
    create_topic,
    pop,
    send,
    sync,
    with_lite_broker,
)


async def content(peer: Peer, code: RequestCode, **ext: str) -> dict[str, Any]:
    response = await peer.ask(code, ext)
    assert response.code == 0, response.remark
    found = orjson.loads(response.body)
    assert isinstance(found, dict)
    return found


def test_lite_topics_are_described(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_group(peer, "Wild", sub_wildcard="true")
        await send(peer, "a", "0", "1", "2")
        await send(peer, "b", "0")
        await sync(peer, "PARTIAL_ADD", "a", "c")
        await sync(peer, "COMPLETE_ADD", client="w", group="Wild")
        messages = await pop(peer, maxMsgNum=2)
        await ack(peer, messages[0])
        broker = await content(peer, RequestCode.GET_BROKER_LITE_INFO)
        counts = [broker[each] for each in ("currentLmqNum", "liteSubscriptionCount", "orderInfoCount")]
        assert counts == [2, 3, 1]
        assert (broker["topicMeta"], set(broker["groupMeta"][TOPIC])) == ({TOPIC: -1}, {GROUP, "Wild"})

        parent = await content(peer, RequestCode.GET_PARENT_TOPIC_INFO, topic=TOPIC)
        assert (parent["ttl"], parent["liteTopicCount"], set(parent["groups"])) == (-1, 2, {GROUP, "Wild"})

        lite = await content(peer, RequestCode.GET_LITE_TOPIC_INFO, parentTopic=TOPIC, liteTopic="a")
        assert lite["subscriber"] == [
            {"clientId": CLIENT, "group": GROUP},
            {"clientId": "*", "group": "Wild"},
        ]
        offsets = lite["topicOffset"]
        assert (offsets["minOffset"], offsets["maxOffset"], offsets["lastUpdateTimestamp"] > 0) == (
            0,
            3,
            True,
        )
        nothing = await content(peer, RequestCode.GET_LITE_TOPIC_INFO, parentTopic=TOPIC, liteTopic="nothing")
        assert nothing["topicOffset"] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}

        client = await content(
            peer,
            RequestCode.GET_LITE_CLIENT_INFO,
            parentTopic=TOPIC,
            group=GROUP,
            clientId=CLIENT,
            maxCount="1",
        )
        assert (client["liteTopicCount"], client["liteTopicSet"]) == (2, [f"%LMQ%${TOPIC}$a"])
        unknown = await content(
            peer, RequestCode.GET_LITE_CLIENT_INFO, parentTopic=TOPIC, group=GROUP, clientId="x"
        )
        assert (unknown["liteTopicCount"], unknown["lastAccessTime"]) == (-1, -1)

    with_lite_broker(story, tmp_path)


def test_lag_of_a_lite_group_is_described(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await sync(peer, "PARTIAL_ADD", "a", "b", "c")
        for name, texts in {"a": "012", "b": "01", "c": "0"}.items():
            await send(peer, name, *texts)
        for each in await pop(peer):
            if each.offset == 0:
                await ack(peer, each)
        info = RequestCode.GET_LITE_GROUP_INFO
        one = await content(peer, info, group=GROUP, liteTopic="a")
        assert (one["totalLagCount"], one["earliestUnconsumedTimestamp"] > 0) == (2, True)
        assert (
            one["liteTopicOffsetWrapper"]["brokerOffset"],
            one["liteTopicOffsetWrapper"]["consumerOffset"],
        ) == (3, 1)
        none = await content(peer, info, group=GROUP, liteTopic="nothing")
        assert (none["totalLagCount"], none["earliestUnconsumedTimestamp"]) == (-1, -1)
        worst = await content(peer, info, group=GROUP, topK="1")
        assert (worst["totalLagCount"], [each["liteTopic"] for each in worst["lagCountTopK"]]) == (3, ["a"])
        assert len(worst["lagTimestampTopK"]) == 1

    with_lite_broker(story, tmp_path)


def test_lite_admin_requests_are_checked(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer, "PlainT", "NORMAL")
        illegal = ResponseCode.INVALID_PARAMETER
        group_missing = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        for request, ext, wanted in (
            (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "PlainT"}, illegal),
            (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "NoTopic"}, ResponseCode.TOPIC_NOT_EXIST),
            (RequestCode.GET_LITE_TOPIC_INFO, {"parentTopic": "PlainT", "liteTopic": "a"}, illegal),
            (
                RequestCode.GET_LITE_CLIENT_INFO,
                {"parentTopic": TOPIC, "group": "NoG", "clientId": "c"},
                group_missing,
            ),
            (RequestCode.GET_LITE_GROUP_INFO, {"group": "NoG"}, group_missing),
            (RequestCode.TRIGGER_LITE_DISPATCH, {"group": "NoG"}, group_missing),
            (RequestCode.TRIGGER_LITE_DISPATCH, {"group": GROUP}, ResponseCode.SUCCESS),
        ):
            assert (await peer.ask(request, ext)).code == wanted, (request, ext)

    with_lite_broker(story, tmp_path)
