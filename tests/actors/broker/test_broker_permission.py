"""Draining by permission: `brokerPermission` and a topic's `perm` change the route, and refuse no sender."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actors.nameserver.service import NameserverService
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import AppendBatchHeader, CreateTopicHeader
from actors.wire.hot_headers import SendMessageHeader
from store.message.batch import encode_batch
from store.message.message import Message
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, registered_broker, run, settings_of, with_broker
from tests.eventually import eventually_async

ORDERED = CreateTopicHeader("ORDERED", 4, 4, 6, order=True)


async def set_broker_permission(peer: Peer, permission: int) -> None:
    body = b"brokerPermission=%d" % permission
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0


async def create_topic(peer: Peer, header: CreateTopicHeader) -> None:
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0


async def until_route_has(peer: Peer, nameserver: NameserverService, topic: str, permission: int) -> None:
    async def has_permission() -> bool:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        response = await peer.client.invoke(nameserver.address, command, TIMEOUT_MS)
        return response.code == 0 and TopicRouteData.decode(response.body).queue_datas[0].perm == permission

    await eventually_async(has_permission)


async def codes_of_all_sends(peer: Peer, topic: str) -> list[int]:
    """Return the response codes of a single send, a batch and an APPEND_BATCH."""
    batch = encode_batch([Message("T", b"1"), Message("T", b"2")])
    header = SendMessageHeader("PG", topic, 0, batch=True)
    return [
        (await peer.send(topic)).code,
        (await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), batch)).code,
        (await peer.ask(RayMQRequestCode.APPEND_BATCH, AppendBatchHeader(topic, 0).to_ext(), batch)).code,
    ]


def test_broker_permission_changes_routes_and_refuses_no_send(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            await create_topic(peer, CreateTopicHeader("T", 4, 4, 6))
            await until_route_has(peer, nameserver, "T", 6)

            await set_broker_permission(peer, 4)
            await until_route_has(peer, nameserver, "T", 4)
            await until_route_has(peer, nameserver, "TBW102", 4)
            assert await codes_of_all_sends(peer, "T") == [0, 0, 0]
            assert (await peer.send("CREATED_BY_A_SEND")).code == 0
            await create_topic(peer, CreateTopicHeader("CREATED", 4, 4, 6))
            for topic in ("CREATED_BY_A_SEND", "CREATED"):
                await until_route_has(peer, nameserver, topic, 4)
            assert len(await peer.messages("T")) == 5

            await set_broker_permission(peer, 6)
            for topic in ("T", "CREATED_BY_A_SEND", "CREATED"):
                await until_route_has(peer, nameserver, topic, 6)
            await until_route_has(peer, nameserver, "TBW102", 7)

    run(story)


def test_topic_permission_changes_its_route_and_refuses_no_send(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            await create_topic(peer, CreateTopicHeader("T", 4, 4, 6))
            await create_topic(peer, CreateTopicHeader("T", 4, 4, 4))
            await until_route_has(peer, nameserver, "T", 4)
            assert await codes_of_all_sends(peer, "T") == [0, 0, 0]

            await set_broker_permission(peer, 2)
            await until_route_has(peer, nameserver, "T", 0)
            assert (await peer.pull("T")).code == ResponseCode.NO_PERMISSION

    run(story)


def test_ordered_topics_refuse_sends_to_a_broker_that_is_not_writable(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await create_topic(peer, ORDERED)
        await set_broker_permission(peer, 4)
        assert await codes_of_all_sends(peer, "ORDERED") == [ResponseCode.NO_PERMISSION] * 3
        assert "permission of broker broker-a is 4" in ((await peer.send("ORDERED")).remark or "")
        await set_broker_permission(peer, 6)
        assert await codes_of_all_sends(peer, "ORDERED") == [0, 0, 0]

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("body", [b"brokerPermission=4", b"maxMessageSize=100"])
def test_change_of_a_setting_registers_topics_only_if_routes_change(tmp_path: Path, body: bytes) -> None:
    async def story(peer: Peer) -> None:
        async def version() -> int:
            config = orjson.loads((await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
            return int(config["dataVersion"]["counter"])

        before = await version()
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert (await version() != before) == (b"Permission" in body)

    with_broker(story, settings_of(tmp_path))


def test_wiped_permission_survives_changes_of_other_topics_and_groups(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            await create_topic(peer, CreateTopicHeader("T", 4, 4, 6))
            await until_route_has(peer, nameserver, "T", 6)
            wipe = RemotingCommand(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
            assert (await peer.client.invoke(nameserver.address, wipe, TIMEOUT_MS)).code == 0

            await create_topic(peer, CreateTopicHeader("OTHER", 4, 4, 6))
            await peer.heartbeat("client-1", "G", OTHER="*")  # creates a group and its retry topic
            await create_topic(peer, CreateTopicHeader("OTHER", 4, 4, 6))  # not a change
            for topic in ("OTHER", "%RETRY%G"):
                await until_route_has(peer, nameserver, topic, 6)
            await until_route_has(peer, nameserver, "T", 4)

            await create_topic(peer, CreateTopicHeader("T", 8, 8, 6))
            await until_route_has(peer, nameserver, "T", 6)

    run(story)
