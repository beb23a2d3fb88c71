"""Hostile and broken clients get an error or are disconnected; routes and other clients are unaffected."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import structlog
import uvloop

from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.transport.client import RemotingClient
from actors.wire.bodies.routes import RegisterBrokerBody, TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from store.common.clock import SystemClock
from store.message.data_version import DataVersion
from tests.actors.header_names import least_fields
from tests.eventually import LIMIT_S
from tests.fuzz.bodies import seeds_of_bodies

TIMEOUT_MS = int(LIMIT_S * 1000)
CORPUS = sorted((Path(__file__).parents[2] / "fixtures" / "frames").glob("*.bin"))
CONFIG = {"topicName": "Known", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
KNOWN = RegisterBrokerBody(DataVersion(1), {"Known": CONFIG})
BROKER = RegisterBrokerHeader("known", "127.0.0.1:10911", "C", 0)
VALUES = ("", "0", "-1", "7", "T", "x", "true", "4294967296", "9" * 30, "\x00", "ü", "a" * 300, "TBW102")
WRAPPER = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":%s},"dataVersion":{"counter":%s}}}'
WRONG_TOPICS = (b"5", b"[]", b"{}", b'{"perm":"x"}', b'{"readQueueNums":1e300}', b'{"perm":null,"a":[[]]}')
BODIES = (
    b"", b"\xff" * 40, b"x" * 9000, b"a=b\n", b"[" * 3000,
    *(WRAPPER % (topic, b"1") for topic in WRONG_TOPICS), WRAPPER % (b"{}", b"9" * 30),
    *{seed[1:] for seed in seeds_of_bodies()},
)  # fmt: skip


async def register_and_query(service: NameserverService, client: RemotingClient) -> None:
    """Register a broker and read its route, as a broker and its clients do."""
    register = RemotingCommand(RequestCode.REGISTER_BROKER, BROKER.to_ext(), KNOWN.encode())
    assert (await client.invoke(service.address, register, TIMEOUT_MS)).code == ResponseCode.SUCCESS
    route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Known"})
    found = TopicRouteData.decode((await client.invoke(service.address, route, TIMEOUT_MS)).body)
    assert "known" in {each.broker_name for each in found.broker_datas}
    for code in (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
        response = await client.invoke(service.address, RemotingCommand(code), TIMEOUT_MS)
        assert response.code == ResponseCode.SUCCESS, response.remark


async def send_random_requests(
    service: NameserverService, client: RemotingClient, rng: random.Random
) -> None:
    for entry in list(service.server.chain.table):
        least = least_fields(entry.header_type) if entry.header_type is not None else {}
        for _ in range(40):
            ext = least | {name: rng.choice(VALUES) for name in least if rng.random() < 0.4}
            request = RemotingCommand(entry.code, ext, rng.choice(BODIES))
            response = await client.invoke(service.address, request, TIMEOUT_MS)
            remark = response.remark or ""
            assert not remark.partition(":")[0].endswith("Error"), (entry.code, ext, remark)


async def send_raw(service: NameserverService, data: bytes) -> None:
    host, _, port = service.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    while await reader.read(65536):
        pass
    writer.close()


def test_random_requests_are_handled_and_routes_are_unchanged(tmp_path: Path) -> None:
    async def story() -> None:
        settings = NameserverSettings(listen_port=0, data_dir=tmp_path)
        service = build_nameserver(settings, SystemClock())
        await service.start()
        client = RemotingClient(SystemClock())
        try:
            await register_and_query(service, client)
            await send_random_requests(service, client, random.Random(3))
            for path in CORPUS:
                await send_raw(service, path.read_bytes())
            await register_and_query(service, client)
            assert service.server.hub.memory.assembly_bytes == 0
        finally:
            await client.close()
            await service.stop()
        again = build_nameserver(settings, SystemClock())  # the saved kv config is still readable
        await again.start()
        await again.stop()

    with structlog.testing.capture_logs():
        uvloop.run(asyncio.wait_for(story(), LIMIT_S))


def test_connections_over_the_limit_are_closed() -> None:
    async def story() -> None:
        service = build_nameserver(NameserverSettings(listen_port=0, max_connections=1), SystemClock())
        await service.start()
        client = RemotingClient(SystemClock())
        try:
            await register_and_query(service, client)
            await send_raw(service, b"")
            await register_and_query(service, client)
        finally:
            await client.close()
            await service.stop()

    with structlog.testing.capture_logs() as logs:
        uvloop.run(asyncio.wait_for(story(), LIMIT_S))
    refused = "over the limit of 1 connections, and no peer is idle"
    assert refused in [line.get("reason") for line in logs]
