"""Whether a cluster serves, asked over its real sockets: what a client would see, not what Ray believes."""

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
    """Why an actor does not serve at its advertised address, or an empty string.

    A nameserver must know all the `brokers` at theirs; a broker must answer; a rebalancer must take a
    connection.
    """
    try:
        if spec.kind is Kind.NAMESERVER:
            return _probe_nameserver(spec, brokers)
        if spec.kind is Kind.BROKER:
            # Whatever the answer, a broker that answers has opened its store: it listens only after that.
            ask(spec.advertised, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
            return ""
        with socket.create_connection(spec.advertised, PROBE_TIMEOUT_S):
            return ""
    except (OSError, ProtocolError, ValueError) as error:
        return f"{spec.address}: {error or type(error).__name__}"


def _probe_nameserver(spec: ActorSpec, brokers: Sequence[ActorSpec]) -> str:
    answer = ask(spec.advertised, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
    if answer.code != ResponseCode.SUCCESS:
        return f"answers code {answer.code}: {answer.remark}"
    table = orjson.loads(bytes(answer.body))["brokerAddrTable"]
    missing = [
        broker.name
        for broker in brokers
        if broker.address not in table.get(broker.settings["broker_name"], {}).get("brokerAddrs", {}).values()
    ]
    return f"does not know {', '.join(missing)} yet" if missing else ""


def ask(address: tuple[str, int], command: RemotingCommand) -> RemotingCommand:
    """One request over a connection of its own; raises OSError, ProtocolError."""
    with socket.create_connection(address, PROBE_TIMEOUT_S) as connection:
        connection.sendall(encode_command(command))
        total = int.from_bytes(_receive(connection, LENGTH_BYTES), "big")
        if not LENGTH_BYTES < total <= MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {total} bytes")
        frame = _receive(connection, total)
    mark = int.from_bytes(frame[:LENGTH_BYTES], "big")
    header_end = LENGTH_BYTES + (mark & HEADER_LENGTH_MASK)
    return decode_command(frame[LENGTH_BYTES:header_end], mark >> 24, frame[header_end:])


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ProtocolError("the connection ended within a frame")
        data += part
    return bytes(data)


def wait_until_healthy(specs: Sequence[ActorSpec], timeout_s: float) -> dict[str, str]:
    """Probe until all serve or the time is over; gives, by name, why some do not."""
    brokers = [spec for spec in specs if spec.kind is Kind.BROKER]
    deadline_s = time.monotonic() + timeout_s
    while True:
        failing = {spec.name: reason for spec in specs if (reason := probe(spec, brokers))}
        if not failing or time.monotonic() > deadline_s:
            return failing
        time.sleep(PAUSE_S)
