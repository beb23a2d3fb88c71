"""Start, restart and stop of a broker, disk failures, and registration with nameservers."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import orjson
import pytest

from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.transport.client import RemotingClient
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader, TopicQueueHeader
from actors.wire.remoting_errors import RemotingError
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import (
    A_DAY_MS,
    TIMEOUT_MS,
    Peer,
    registered_broker,
    run,
    settings_of,
    with_broker,
)
from tests.eventually import eventually_async
from tests.ports import free_port


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_messages_topics_groups_and_offsets_survive_a_restart(tmp_path: Path, flush: str) -> None:
    settings = settings_of(tmp_path, {"flush": flush})

    async def first(peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", 2, 2, 6).to_ext())
        for body in (b"0", b"1"):
            await peer.send("T", body)
        await peer.commit("G", "T", 1)

    async def second(peer: Peer) -> None:
        assert [message.body for message in await peer.messages("T")] == [b"0", b"1"]
        assert (await peer.send("T", queue_id=2)).code == ResponseCode.INVALID_PARAMETER
        assert (await peer.committed("G", "T")).ext["offset"] == "1"
        assert (await peer.send("T")).ext["queueOffset"] == "2"

    with_broker(first, settings)
    with_broker(second, settings)


def test_topic_missing_in_topics_json_is_recreated_from_the_store(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, auto_create_topics=True)

    async def first(peer: Peer) -> None:
        await peer.send("T", queue_id=2)

    async def second(peer: Peer) -> None:
        assert len(await peer.messages("T", queue_id=2)) == 1

    with_broker(first, settings)
    for file in (settings.store_root / "config").glob("topics.json*"):
        file.unlink()
    with_broker(second, settings)


def test_failed_flush_fails_sends_and_reads_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    async def story(peer: Peer) -> None:
        await peer.send("T", b"safe")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fails)
            lost = await peer.send("T")
        assert (lost.code, "Input/output error" in (lost.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        refused = await peer.send("T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "Input/output error" in (refused.remark or "")
        assert [message.body for message in await peer.messages("T")] == [b"safe"]
        assert "Input/output error" in str(peer.broker.describe()["write_refusal"])

    with_broker(story, settings_of(tmp_path))


def test_nameserver_has_new_topics_and_loses_a_stopped_broker(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):

            async def route(topic: str) -> RemotingCommand:
                command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                return await peer.client.invoke(nameserver.address, command, TIMEOUT_MS)

            assert TopicRouteData.decode((await route("TBW102")).body).queue_datas[0].perm == 7
            assert (await route("T")).code == ResponseCode.TOPIC_NOT_EXIST
            await peer.send("T")
            found = await route("T")  # a send that created a topic is acknowledged after its registration
            data = TopicRouteData.decode(found.body)
            assert data.broker_datas[0].broker_addrs == {0: peer.broker.address}
            await peer.broker.stop()
            assert (await route("T")).code == ResponseCode.TOPIC_NOT_EXIST

    run(story)


def test_creation_of_a_topic_is_acknowledged_after_its_registration(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):

            async def is_routed(topic: str) -> bool:
                command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                return (await peer.client.invoke(nameserver.address, command, TIMEOUT_MS)).code == 0

            both = {"topicConfigList": [{"topicName": "L1", "perm": 6}, {"topicName": "L2", "perm": 6}]}
            for turn in range(20):
                topic = f"T{turn}"
                await peer.ask(
                    RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, 1, 1, 6).to_ext()
                )
                assert await is_routed(topic)
                await peer.heartbeat("client", f"G{turn}", **{topic: "*"})
                assert await is_routed(f"%RETRY%G{turn}")
                assert (await peer.send(f"S{turn}")).code == 0
                assert await is_routed(f"S{turn}")
            await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=orjson.dumps(both))
            assert await is_routed("L1")
            assert await is_routed("L2")
            await nameserver.stop()
            for topic in ("U1", "U2", "U3"):  # a nameserver that is down does not delay responses
                assert (await peer.send(topic)).code == 0

    run(story)


def test_topics_of_the_order_configuration_become_ordered(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            nameserver.kv_config.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")

            async def is_ordered(topic: str) -> bool:
                response = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
                return bool(orjson.loads(response.body)["order"])

            for topic in ("T", "U"):
                await peer.send(topic)
            await eventually_async(lambda: is_ordered("T"))
            assert not await is_ordered("U")

    run(story)


def test_broker_registers_immediately_with_a_restarted_nameserver(tmp_path: Path) -> None:
    async def story() -> None:
        first = build_nameserver(NameserverSettings.model_validate({"listen_port": 0}), SystemClock())
        await first.start()
        address, port = first.address, first.server.port
        # The interval is so long that only the closed connection causes a registration.
        settings = settings_of(tmp_path, nameservers=address, register_interval_ms=A_DAY_MS)
        broker = BrokerService(settings, SystemClock())
        await broker.start()
        await first.stop()
        second = build_nameserver(NameserverSettings.model_validate({"listen_port": port}), SystemClock())
        await second.start()
        peer = Peer(broker)
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})

        async def is_registered() -> bool:
            return (await peer.client.invoke(address, request, TIMEOUT_MS)).code == 0

        await eventually_async(is_registered)
        await peer.client.close()
        await broker.stop()
        await second.stop()

    run(story)


def test_vip_port_serves_clients_unless_it_is_in_use(tmp_path: Path) -> None:
    async def connect_to_both(port: int, *, is_vip: bool) -> None:
        settings = settings_of(tmp_path).model_copy(update={"listen_port": port, "vip_channel": is_vip})
        broker = BrokerService(settings, SystemClock())
        await broker.start()
        client = RemotingClient(SystemClock())
        try:
            for each in (port, port - 2):
                command = RemotingCommand(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", 0).to_ext())
                response = await client.invoke(f"127.0.0.1:{each}", command, TIMEOUT_MS)
                assert response.code == ResponseCode.SUCCESS
        finally:
            await client.close()
            await broker.stop()

    run(lambda: connect_to_both(free_port(-2), is_vip=True))
    with pytest.raises(RemotingError, match="connect"):
        run(lambda: connect_to_both(free_port(-2), is_vip=False))
    port = free_port(-2)
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", port - 2))
        with pytest.raises(RemotingError, match="connect"):
            run(lambda: connect_to_both(port, is_vip=True))


def test_port_in_use_fails_the_start_before_the_store_is_opened(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            settings = settings_of(tmp_path).model_copy(update={"listen_port": port, "start_timeout_ms": 0})
            with pytest.raises(OSError, match=f"{port}.*listen_port"):
                await BrokerService(settings, SystemClock()).start()
        assert not settings.store_root.exists()

    run(story)


def test_store_of_another_broker_is_refused(tmp_path: Path) -> None:
    async def nothing(peer: Peer) -> None:
        return

    with_broker(nothing, settings_of(tmp_path))

    async def story() -> None:
        settings = settings_of(tmp_path, broker_name="broker-z")
        with pytest.raises(StoreError, match="broker-a"):
            await BrokerService(settings, SystemClock()).start()

    run(story)


def test_http_request_is_closed_and_the_broker_keeps_serving(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        host, _, port = peer.broker.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        assert (await peer.send("T")).code == 0

    with_broker(story, settings_of(tmp_path))
