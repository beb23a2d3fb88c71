"""The memory of a gateway process under attack, while a good client sends: it stays small and is released."""

from __future__ import annotations

import asyncio
import gzip
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from actors.gateway.grpc.engine import FRAME_BYTES_MAX
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import UA, ClientType, Code, Settings
from actors.gateway.service import SERVICE
from cluster.bench.broker import anonymous_bytes
from tests.actors.gateway.gateways import CLIENT_ID, message
from tests.actors.gateway.grpc_peers import RawPeer
from tests.eventually import eventually_async

MB = 1024 * 1024
ROOT = Path(__file__).parents[3]


def packed(data: bytes) -> bytes:
    small = gzip.compress(data)
    return struct.pack(">BI", 1, len(small)) + small


def settings_of(topics: int = 0, text: str = "") -> bytes:
    settings = Settings(client_type=ClientType.PRODUCER, user_agent=UA(hostname=text))
    for number in range(topics):
        settings.publishing.topics.add(name=f"topic{number:05d}{'x' * 180}")
    return rpc.TelemetryCommand(settings=settings).SerializeToString()


SETTINGS, LARGE = packed(settings_of(1000)), packed(settings_of(text="x" * 4_900_000))
FIELDS = packed(b"\n\0" * 2_500_000)
LONG = rpc.SendMessageRequest(messages=[message(body=bytes(4_000_000))]).SerializeToString()


class Attacker(RawPeer):
    """A peer that sends as much as the gateway lets it."""

    def call(self, name: str, data: bytes, encoding: str = "identity") -> None:
        stream_id = self.request(SERVICE + name, b"", end=False, encoding=encoding, more=CLIENT_ID)
        until = time.monotonic() + 0.5
        while data and time.monotonic() < until:
            try:
                size = min(self.h2.local_flow_control_window(stream_id), FRAME_BYTES_MAX, len(data))
            except ProtocolError:  # the gateway has ended the call
                return
            if size:
                self.h2.send_data(stream_id, data[:size])
                data = data[size:]
            else:
                self.exchange()
        self.exchange()

    def exchange(self) -> None:
        self.socket.settimeout(5)
        self.socket.sendall(self.h2.data_to_send())
        self.socket.settimeout(0.01)
        try:
            while received := self.socket.recv(65536):
                self.h2.receive_data(received)
        except TimeoutError:
            return

    def read_nothing(self) -> None:
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})


def wait_1(peer: Attacker) -> None:
    peer.read_nothing()
    for _ in range(5):
        peer.call("Telemetry", SETTINGS + LARGE * 60, "gzip")


def decode_1(peer: Attacker) -> None:
    for _ in range(20):
        peer.call("SendMessage", FIELDS, "gzip")


def share_1(peer: Attacker) -> None:
    for _ in range(3):
        peer.call("SendMessage", encode_frame(LONG)[:-1])


def headers(peer: Attacker) -> None:
    for _ in range(900):
        peer.request(f"{SERVICE}SendMessage", b"", end=False, more=[*CLIENT_ID, ("x-mq-f", "v" * 3000)])
    peer.exchange()


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
@pytest.mark.parametrize(("fill", "count"), [(wait_1, 3), (decode_1, 3), (share_1, 13), (headers, 20)])
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
