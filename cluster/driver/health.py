"""Health checks over the sockets that clients use, independent of the actor states that Ray reports."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import orjson

from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import (
    HEADER_LENGTH_MASK,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    RemotingCommand,
    decode_command,
    encode_command,
)
from actors.remoting.remoting_errors import ProtocolError
from cluster.driver.plan import ActorSpec, Kind

PROBE_TIMEOUT_S = 2.0
PAUSE_S = 0.1


def probe(spec: ActorSpec, brokers: Sequence[ActorSpec]) -> str:
    """Return why an actor does not serve at its advertised address, else an empty string.

    A nameserver must have registered all `brokers` with their addresses, a broker must respond to a request,
    and a rebalancer must accept a connection.
    """
    try:
        if spec.kind is Kind.NAMESERVER:
            return _probe_nameserver(spec, brokers)
        if spec.kind is Kind.BROKER:
            # Any response will do: a broker listens only after it has opened its store.
            request(spec.advertised, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
            return ""
        with socket.create_connection(spec.advertised, PROBE_TIMEOUT_S):
            return ""
    except (OSError, ProtocolError, ValueError) as error:
        return f"{spec.address}: {error or type(error).__name__}"


def _probe_nameserver(spec: ActorSpec, brokers: Sequence[ActorSpec]) -> str:
    response = request(spec.advertised, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    if response.code != ResponseCode.SUCCESS:
        return f"response code {response.code}: {response.remark}"
    table = orjson.loads(bytes(response.body))["brokerAddrTable"]
    missing = [
        broker.name
        for broker in brokers
        if broker.address not in table.get(broker.settings["broker_name"], {}).get("brokerAddrs", {}).values()
    ]
    return f"has not registered {', '.join(missing)} yet" if missing else ""


def request(address: tuple[str, int], command: RemotingCommand) -> RemotingCommand:
    """Send `command` over a new connection and return the response. Raises OSError, ProtocolError."""
    with socket.create_connection(address, PROBE_TIMEOUT_S) as connection:
        connection.sendall(encode_command(command))
        total = int.from_bytes(_receive(connection, LENGTH_BYTES), "big")
        if not LENGTH_BYTES < total <= MAX_FRAME_BYTES:
            raise ProtocolError(f"frame length {total} is outside {LENGTH_BYTES + 1} to {MAX_FRAME_BYTES}")
        frame = _receive(connection, total)
    mark = int.from_bytes(frame[:LENGTH_BYTES], "big")
    header_end = LENGTH_BYTES + (mark & HEADER_LENGTH_MASK)
    return decode_command(frame[LENGTH_BYTES:header_end], mark >> 24, frame[header_end:])


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ProtocolError("the connection was closed in the middle of a frame")
        data += part
    return bytes(data)


def wait_until_healthy(specs: Sequence[ActorSpec], timeout_s: float) -> dict[str, str]:
    """Probe until all actors serve or `timeout_s` has passed. Return the failed ones: name → reason."""
    brokers = [spec for spec in specs if spec.kind is Kind.BROKER]
    deadline_s = time.monotonic() + timeout_s
    while True:
        failing = {spec.name: reason for spec in specs if (reason := probe(spec, brokers))}
        if not failing or time.monotonic() > deadline_s:
            return failing
        time.sleep(PAUSE_S)
