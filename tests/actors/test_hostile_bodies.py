"""No body of a request stops a process or fills its memory: all rows of broker, nameserver, rebalancer."""

from __future__ import annotations

import asyncio
import gc
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.host.metrics.page import page
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from actors.transport.client import RemotingClient
from actors.transport.request import BODY_BYTES_MAX, RequestRow
from actors.wire.bodies.routes import REGISTERED_TOPICS_MAX
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES, RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of, with_broker
from tests.actors.header_names import least_fields
from tests.actors.test_bounds import BODIES, OTHER_BODIES
from tests.eventually import eventually_async

GROWTH_BYTES = 256 << 20
HELD = {"suspendTimeoutMillis": "0", "waitMs": "0", "pollTime": "0"}
"""Fields with which no request waits for messages."""
DECODED = {*BODIES, *OTHER_BODIES, RequestCode.QUERY_DATA_VERSION}
"""Codes of requests whose bodies are JSON."""
BUGS = re.compile(r"^\w*(Type|Attribute|Key|Index|Overflow|Recursion|Memory)Error")


@cache
def compressed_zeros() -> bytes:
    """Return 60 KB that inflate to 60 MB."""
    return zlib.compress(bytes(60_000_000), 9)


KINDS: dict[str, Callable[[int], bytes]] = {
    "many elements": lambda size: b'{"a":[' + b"1," * (size // 2 - 8) + b"1]}",
    "many objects": lambda size: b"[" + b"{}," * (size // 3 - 8) + b"{}]",
    "unquoted keys": lambda size: b"{" + b"0:0," * (size // 4 - 8) + b"0:0}",
    "nested": lambda size: b"[" * size,
    "nested objects": lambda size: b'{"a":' * (size // 5),
    "compressed": lambda _: compressed_zeros(),
    "huge number": lambda size: b'{"a":1' + b"0" * min(size - 8, 1_000_000) + b"}",
}


def hostile(row: RequestRow) -> Iterator[tuple[str, RemotingCommand]]:
    least = least_fields(row.header_type) if row.header_type is not None else {}
    for kind, body in KINDS.items():
        more = {"compressed": "true"} if kind == "compressed" else {}
        is_long = row.code == RequestCode.REGISTER_BROKER  # bodies of other long ones are not decoded
        size = min(row.body_bytes_max, MAX_FRAME_BYTES - 4096 if is_long else BODY_BYTES_MAX)
        yield kind, RemotingCommand(row.code, {**least, **HELD, **more}, body(size))


def anonymous_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024


async def survives(address: str, rows: list[RequestRow]) -> None:
    """Send each kind of hostile body with each request, and a good request over another connection."""
    attacker, good = RemotingClient(SystemClock()), RemotingClient(SystemClock())
    gc.collect()
    before = anonymous_bytes()
    try:
        for row in rows:
            for kind, command in hostile(row):
                response, other = await asyncio.gather(
                    attacker.invoke(address, command, TIMEOUT_MS),
                    good.invoke(address, RemotingCommand(99_999), TIMEOUT_MS),
                )
                remark = response.remark or ""
                assert not BUGS.match(remark), (row.code, kind, remark)
                assert len(remark) <= 4096, (row.code, kind)
                assert other.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                if row.code in DECODED and kind != "huge number":
                    assert response.code != ResponseCode.SUCCESS, (row.code, kind)
                    assert remark, (row.code, kind)
                assert anonymous_bytes() - before < GROWTH_BYTES, (row.code, kind)
    finally:
        await attacker.close()
        await good.close()


async def served(service: Any) -> None:
    await service.start()
    try:
        await survives(service.address, list(service.server.chain.table))
        assert service.server.hub.account.used_bytes < 64 << 20
    finally:
        await service.stop()


def test_json_bodies_of_requests_have_a_largest_number_of_values() -> None:
    """Only then the lenient decoder, which takes long, does not get long ones."""
    assert [each for each, _ in BODIES.values() if each.values_max is None] == []


@pytest.mark.slow
def test_hostile_bodies_neither_stop_nor_fill_a_broker(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await survives(peer.broker.address, list(peer.loop.server.chain.table))

    with structlog.testing.capture_logs():
        with_broker(story, settings_of(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nameserver", "rebalancer"])
def test_hostile_bodies_neither_stop_nor_fill_a_process(kind: str, tmp_path: Path) -> None:
    service: Any = (
        build_nameserver(NameserverSettings(listen_port=0), SystemClock())
        if kind == "nameserver"
        else build_rebalancer(RebalancerSettings.model_validate({"data_dir": tmp_path}), SystemClock())
    )
    with structlog.testing.capture_logs():
        run(lambda: served(service))


def compressed_registration(topics: int) -> bytes:
    """Return a body of RocketMQ's compressed form."""

    def part(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    version = part(b'{"stateVersion":0,"timestamp":0,"counter":0}')
    texts = b"".join(part(b"t%d 4 4 6 SINGLE_TAG" % number) for number in range(topics))
    return zlib.compress(version + struct.pack(">i", topics) + texts + part(b"[]"))


def test_registration_with_many_topics_is_decoded_while_others_are_served() -> None:
    service = build_nameserver(NameserverSettings(listen_port=0), SystemClock())
    header = RegisterBrokerHeader("b", "127.0.0.1:9", "c", 0, compressed=True)

    async def story() -> None:
        await service.start()
        client, good = RemotingClient(SystemClock()), RemotingClient(SystemClock())
        try:

            async def register(topics: int) -> RemotingCommand:
                body = compressed_registration(topics)
                command = RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), body)
                return await client.invoke(service.address, command, TIMEOUT_MS)

            refused = await register(REGISTERED_TOPICS_MAX + 1)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert f"limit is {REGISTERED_TOPICS_MAX:,}: raise max_topics" in (refused.remark or "")
            ping = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            registration = asyncio.create_task(register(50_000))
            await eventually_async(lambda: service.server.hub.account.used_bytes)
            await good.invoke(service.address, ping, TIMEOUT_MS)
            assert not registration.done()
            assert (await registration).code == ResponseCode.SUCCESS
            assert len(service.routes.topics()) == 50_000
        finally:
            await client.close()
            await good.close()
            await service.stop()

    run(story)


def test_bytes_that_peers_make_a_process_keep_are_shown(tmp_path: Path) -> None:
    def shows(endpoint: Any) -> bool:
        text = "".join(page(endpoint.figures, {}, 10_000))
        limit = 'raymq_bound_limit{bound="request_bytes",at_limit="wait"} '
        return 'raymq_bound_used{bound="request_bytes"} 0\n' in text and limit in text

    async def story(peer: Peer) -> None:
        nameserver = build_nameserver(NameserverSettings(listen_port=0), SystemClock())
        settings = RebalancerSettings.model_validate({"data_dir": tmp_path / "rebalancer"})
        rebalancer = build_rebalancer(settings, SystemClock())
        assert all(map(shows, (peer.metrics, nameserver.metrics, rebalancer.metrics)))

    with_broker(story, settings_of(tmp_path / "broker"))
