"""QUERY_ASSIGNMENT: clients that were told not to balance by themselves get their queues from the broker."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import CreateTopicHeader
from store.clock import SystemClock
from tests.actors.broker.brokers import Peer, Story, settings_of, with_broker
from tests.eventually import eventually_async
from tests.ports import free_port


async def asked(peer: Peer, client_id: str, topic: str = "T", **fields: str) -> RemotingCommand:
    wanted = {
        "topic": topic,
        "consumerGroup": "CG",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **fields,
    }
    return await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=orjson.dumps(wanted))


async def share(peer: Peer, client_id: str, topic: str = "T", **fields: str) -> list[int]:
    answer = await asked(peer, client_id, topic, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assigned = orjson.loads(answer.body)["messageQueueAssignments"]
    assert all(each["mode"] == "PULL" for each in assigned)
    assert all(
        (q["topic"], q["brokerName"]) == (topic, "broker-a") for q in (a["messageQueue"] for a in assigned)
    )
    return [each["messageQueue"]["queueId"] for each in assigned]


def with_nameserver(story: Story, tmp_path: Path) -> None:
    port = free_port()

    async def told(peer: Peer) -> None:
        nameserver = build_nameserver(NameserverSettings(listen_port=port), SystemClock())
        await nameserver.start()
        try:
            create = CreateTopicHeader("T", 5, 5, 6).to_ext()
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
            await eventually_async(lambda: share(peer, "anyone", messageModel="BROADCASTING"))
            await story(peer)
        finally:
            await nameserver.stop()

    with_broker(told, settings_of(tmp_path, nameservers=f"127.0.0.1:{port}"))


def test_members_share_the_queues_by_the_strategy_that_they_name(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert await share(peer, "one") == []  # of a group that has no member
        await peer.heartbeat("one", "CG", T="*")
        assert await share(peer, "one") == [0, 1, 2, 3, 4]
        await peer.heartbeat("two", "CG", T="*")
        assert (await share(peer, "one"), await share(peer, "two")) == ([0, 1, 2], [3, 4])
        circle = "AVG_BY_CIRCLE"
        assert await share(peer, "one", strategyName=circle) == [0, 2, 4]
        assert await share(peer, "two", strategyName=circle) == [1, 3]
        assert await share(peer, "three") == []

    with_nameserver(story, tmp_path)


def test_broadcast_is_all_and_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.heartbeat("one", "CG", T="*")
        assert await share(peer, "any", messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
        assert await share(peer, "one", "NoTopic") == []
        assert await share(peer, "one", strategyName="MY_OWN") == []

    with_nameserver(story, tmp_path)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topic":[]}'])
def test_a_body_that_is_no_query_is_refused(tmp_path: Path, body: bytes) -> None:
    async def story(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR

    with_broker(story, settings_of(tmp_path))


def test_without_a_nameserver_that_answers_the_client_is_told(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        answer = await asked(peer, "one")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no nameserver of" in (answer.remark or "")

    with_broker(story, settings_of(tmp_path, nameservers=f"127.0.0.1:{free_port()}"))
