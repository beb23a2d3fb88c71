"""Health checks over the sockets that clients use, independent of the actor states that Ray reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from actors.transport.clients.blocking import BlockingConnection
from actors.transport.tls.contexts import ClientTls, OwnCertificate
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from cluster.control.specs import ActorSpec
from cluster.waiting import SYSTEM_WAITING, Waiting
from store.message.hosts import join_address

PROBE_TIMEOUT_MS = 2_000
PAUSE_S = 0.1


def probe(spec: ActorSpec, peers: Sequence[ActorSpec]) -> str:
    """Return why an actor does not serve at its advertised address, else an empty string.

    `peers` are all actors of the cluster.
    """
    if spec.kind.probe is None:
        return ""  # its state is that of its actor
    try:
        return spec.kind.probe(spec, peers, tls_of(spec))
    except RemotingError as error:
        return f"{spec.address}: {error.reason}"
    except (OSError, ValueError) as error:
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
    from cluster.client.tls import TlsConfig  # imports the whole client, which a dry run does not need

    given = TlsConfig.from_environment()
    if given is not None:
        return given.load()
    own = OwnCertificate(Path(spec.settings["tls_certificate"]), Path(spec.settings["tls_key"]))
    is_here = spec.settings.get("tls_client_ca") and own.key.exists()
    return ClientTls(own=own if is_here else None, verify=False)


def accepts_connections(spec: ActorSpec, peers: Sequence[ActorSpec], tls: ClientTls | None) -> str:
    """Probe: the process must accept a connection."""
    BlockingConnection(join_address(*spec.advertised), PROBE_TIMEOUT_MS).close()
    return ""


def responds(spec: ActorSpec, peers: Sequence[ActorSpec], tls: ClientTls | None) -> str:
    """Probe: the broker must respond. Any response will do: it listens only after it has opened its store."""
    _exchange(spec, RequestCode.GET_BROKER_RUNTIME_INFO, tls)
    return ""


def has_registered_brokers(spec: ActorSpec, peers: Sequence[ActorSpec], tls: ClientTls | None) -> str:
    """Probe: the nameserver must have registered all brokers among `peers` with their addresses."""
    response = _exchange(spec, RequestCode.GET_BROKER_CLUSTER_INFO, tls)
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


def _exchange(spec: ActorSpec, code: RequestCode, tls: ClientTls | None) -> RemotingCommand:
    with BlockingConnection(join_address(*spec.advertised), PROBE_TIMEOUT_MS, tls) as connection:
        return connection.exchange(RemotingCommand(code))


def wait_until_healthy(
    specs: Sequence[ActorSpec], timeout_s: float, waiting: Waiting = SYSTEM_WAITING
) -> dict[str, str]:
    """Probe until all actors serve or `timeout_s` has passed. Return the failed ones: name → reason."""
    deadline = waiting.deadline(timeout_s, PAUSE_S)
    while True:
        failing = {spec.name: reason for spec in specs if (reason := probe(spec, specs))}
        if not failing or not deadline.pause():
            return failing
