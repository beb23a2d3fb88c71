"""QUERY_ASSIGNMENT: clients with `clientRebalance` false get their queues from the broker."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader
from store.common.clock import SystemClock
from tests.actors.broker.brokers import Peer, Story, settings_of, with_broker
from tests.eventually import eventually_async
from tests.ports import free_port


async def query_assignment(peer: Peer, client_id: str, topic: str = "T", **fields: str) -> RemotingCommand:
    query = {
        "topic": topic,
        "consumerGroup": "CG",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **fields,
    }
    return await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=orjson.dumps(query))


async def assigned_queue_ids(peer: Peer, client_id: str, topic: str = "T", **fields: str) -> list[int]:
    answer = await query_assignment(peer, client_id, topic, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assigned = orjson.loads(answer.body)["messageQueueAssignments"]
    assert all(each["mode"] == "PULL" for each in assigned)
    assert all(
        (q["topic"], q["brokerName"]) == (topic, "broker-a") for q in (a["messageQueue"] for a in assigned)
    )
    return [each["messageQueue"]["queueId"] for each in assigned]


def with_nameserver(story: Story, tmp_path: Path) -> None:
    port = free_port()

    async def with_running_nameserver(peer: Peer) -> None:
        nameserver = build_nameserver(NameserverSettings(listen_port=port), SystemClock())
        await nameserver.start()
        try:
            create = CreateTopicHeader("T", 5, 5, 6).to_ext()
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
            await eventually_async(lambda: assigned_queue_ids(peer, "anyone", messageModel="BROADCASTING"))
            await story(peer)
        finally:
            await nameserver.stop()

    with_broker(with_running_nameserver, settings_of(tmp_path, nameservers=f"127.0.0.1:{port}"))


def test_queues_are_assigned_by_the_requested_strategy(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert await assigned_queue_ids(peer, "one") == []  # the group has no member
        await peer.heartbeat("one", "CG", T="*")
        assert await assigned_queue_ids(peer, "one") == [0, 1, 2, 3, 4]
        await peer.heartbeat("two", "CG", T="*")
        assert (await assigned_queue_ids(peer, "one"), await assigned_queue_ids(peer, "two")) == (
            [0, 1, 2],
            [3, 4],
        )
        circle = "AVG_BY_CIRCLE"
        assert await assigned_queue_ids(peer, "one", strategyName=circle) == [0, 2, 4]
        assert await assigned_queue_ids(peer, "two", strategyName=circle) == [1, 3]
        assert await assigned_queue_ids(peer, "three") == []

    with_nameserver(story, tmp_path)


def test_broadcasting_gets_all_queues_and_unknown_names_get_none(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.heartbeat("one", "CG", T="*")
        assert await assigned_queue_ids(peer, "any", messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
        assert await assigned_queue_ids(peer, "one", "NoTopic") == []
        assert await assigned_queue_ids(peer, "one", strategyName="MY_OWN") == []

    with_nameserver(story, tmp_path)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topic":[]}'])
def test_invalid_assignment_query_is_refused(tmp_path: Path, body: bytes) -> None:
    async def story(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR

    with_broker(story, settings_of(tmp_path))


def test_assignment_without_a_reachable_nameserver_fails(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        answer = await query_assignment(peer, "one")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no nameserver of" in (answer.remark or "")

    with_broker(story, settings_of(tmp_path, nameservers=f"127.0.0.1:{free_port()}"))
