"""Health checks over the sockets that clients use, independent of the actor states that Ray reports."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path

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
from actors.remoting.tls.blocking import secured
from actors.remoting.tls.contexts import ClientTls, OwnCertificate
from cluster.client.tls import TlsConfig
from cluster.driver.specs import ActorSpec

PROBE_TIMEOUT_S = 2.0
PAUSE_S = 0.1


def probe(spec: ActorSpec, peers: Sequence[ActorSpec]) -> str:
    """Return why an actor does not serve at its advertised address, else an empty string.

    `peers` are all actors of the cluster.
    """
    if spec.kind.probe is None:
        return ""  # its state is that of its actor
    try:
        return spec.kind.probe(spec, peers, tls_of(spec))
    except (OSError, ProtocolError, ValueError) as error:
        return f"{spec.address}: {error or type(error).__name__}"


def tls_of(spec: ActorSpec) -> ClientTls | None:
    """Return the TLS of the connections to an actor, or None if it accepts plain connections.

    The actor is verified with the CA in the environment (`TlsConfig`). Without one it is not verified: a
    probe contains no secrets. If it requires a certificate and the environment names none, the probe presents
    the certificate of the actor, if its files are on this machine.

    Raises ValueError if a file is invalid.
    """
    if spec.settings.get("tls") != "enforced":
        return None
    given = TlsConfig.from_environment()
    if given is not None:
        return given.load()
    own = OwnCertificate(Path(spec.settings["tls_certificate"]), Path(spec.settings["tls_key"]))
    is_here = spec.settings.get("tls_client_ca") and own.key.exists()
    return ClientTls(own=own if is_here else None, verify=False)


def accepts_connections(spec: ActorSpec, peers: Sequence[ActorSpec], tls: ClientTls | None) -> str:
    """Probe: the process must accept a connection."""
    with socket.create_connection(spec.advertised, PROBE_TIMEOUT_S):
        return ""


def responds(spec: ActorSpec, peers: Sequence[ActorSpec], tls: ClientTls | None) -> str:
    """Probe: the broker must respond. Any response will do: it listens only after it has opened its store."""
    request(spec.advertised, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), tls)
    return ""


def has_registered_brokers(spec: ActorSpec, peers: Sequence[ActorSpec], tls: ClientTls | None) -> str:
    """Probe: the nameserver must have registered all brokers among `peers` with their addresses."""
    response = request(spec.advertised, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), tls)
    if response.code != ResponseCode.SUCCESS:
        return f"response code {response.code}: {response.remark}"
    table = orjson.loads(bytes(response.body))["brokerAddrTable"]
    missing = [
        peer.name
        for peer in peers
        if (broker := peer.settings.get("broker_name"))
        and peer.address not in table.get(broker, {}).get("brokerAddrs", {}).values()
    ]
    return f"has not registered {', '.join(missing)} yet" if missing else ""


def request(
    address: tuple[str, int], command: RemotingCommand, tls: ClientTls | None = None
) -> RemotingCommand:
    """Send `command` over a new connection and return the response. Raises OSError, ProtocolError."""
    plain = socket.create_connection(address, PROBE_TIMEOUT_S)
    with plain if tls is None else secured(plain, tls, address[0]) as connection:
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
    deadline_s = time.monotonic() + timeout_s
    while True:
        failing = {spec.name: reason for spec in specs if (reason := probe(spec, specs))}
        if not failing or time.monotonic() > deadline_s:
            return failing
        time.sleep(PAUSE_S)
