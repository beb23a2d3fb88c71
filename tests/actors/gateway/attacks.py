"""Attackers of a gateway: what fills or stalled one, sent again and again by peers that have no rights."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable

from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from actors.gateway.grpc.engine import FRAME_BYTES_MAX
from actors.gateway.grpc.messages import encode_frame
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import UA, ClientType, Settings
from actors.gateway.service import SERVICE
from tests.actors.gateway.gateways import CLIENT_ID, message
from tests.actors.gateway.grpc_peers import RawPeer


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

    def exchange(self) -> None:
        self.socket.settimeout(5)
        self.socket.sendall(self.h2.data_to_send())
        self.socket.settimeout(0.01)
        try:
            while received := self.socket.recv(65536):
                self.h2.receive_data(received)
        except TimeoutError:
            return
        raise ConnectionResetError("the gateway has closed the connection")

    def read_nothing(self) -> None:
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})


def wait_1(peer: Attacker) -> None:
    peer.read_nothing()
    for _ in range(5):
        peer.call("Telemetry", SETTINGS + LARGE * 60, "gzip")
    peer.exchange()


def decode_1(peer: Attacker) -> None:
    for _ in range(20):
        peer.call("SendMessage", FIELDS, "gzip")
    while peer.h2.open_outbound_streams:
        peer.exchange()


def share_1(peer: Attacker) -> None:
    for _ in range(3):
        peer.call("SendMessage", encode_frame(LONG)[:-1])
    peer.exchange()


def headers(peer: Attacker) -> None:
    for _ in range(900):
        peer.request(f"{SERVICE}SendMessage", b"", end=False, more=[*CLIENT_ID, ("x-mq-f", "v" * 3000)])
    peer.exchange()


CONNECTIONS: dict[Callable[[Attacker], None], int] = {wait_1: 3, decode_1: 3, share_1: 13, headers: 20}
"""From how many connections each attack was effective."""
