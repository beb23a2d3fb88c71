"""The memory of a gateway process under attack, while a good client sends: it stays small and is released."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.service import SERVICE
from benchmarks.processes import anonymous_bytes
from tests.actors.gateway.attacks import CONNECTIONS, Attacker
from tests.actors.gateway.gateways import CLIENT_ID, message
from tests.eventually import eventually_async

MB = 1024 * 1024
ROOT = Path(__file__).parents[3]


def attack(port: int, fill: Callable[[Attacker], None], count: int) -> list[Attacker]:
    """Fill the gateway from `count` connections."""
    peers = []
    for _ in range(count):
        peer = Attacker(port)
        peer.exchange()
        peers.append(peer)
        try:
            fill(peer)
        except OSError:  # the gateway has closed it
            continue
    return peers


@pytest.mark.extended
@pytest.mark.parametrize(("fill", "count"), CONNECTIONS.items())
def test_attacked_gateway_stays_small_and_serves_others(
    fill: Callable[[Attacker], None], count: int, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.actors.gateway.gateway_process", str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    address, pid = process.stdout.readline().strip(), process.pid

    async def good(call: grpc.aio.UnaryUnaryMultiCallable, size: int) -> None:
        response = await call(
            rpc.SendMessageRequest(messages=[message(body=bytes(size))]), metadata=CLIENT_ID
        )
        assert response.status.code == Code.OK, response.status.message

    async def story() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(
                f"{SERVICE}SendMessage",
                rpc.SendMessageRequest.SerializeToString,
                rpc.SendMessageResponse.FromString,
            )
            for _ in range(50):
                await good(call, 30_000)
            idle = anonymous_bytes(pid)
            attacking = asyncio.create_task(
                asyncio.to_thread(attack, int(address.rpartition(":")[2]), fill, count)
            )
            while not attacking.done():
                for size in (200, 30_000, 1_000_000):
                    await good(call, size)
                assert anonymous_bytes(pid) - idle < 256 * MB
            peers = await attacking
            for peer in peers:
                peer.socket.close()
            await eventually_async(lambda: anonymous_bytes(pid) - idle < 64 * MB, within_s=10)

    try:
        asyncio.run(story())
    finally:
        process.communicate("")
