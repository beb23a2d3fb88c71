"""BrokerIdentity: the names and addresses under which a broker registers."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from actors.broker.broker_settings import RAFT, BrokerSettings
from store.message.hosts import Host, join_address


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The cluster, name and address of one broker."""

    cluster: str
    name: str
    address: str
    """The address that clients connect to, `host:port`."""
    host: Host
    """The resolved address; the storeHost of the broker's records."""
    node_ip: str = ""
    """The address of the broker's Ray node; empty outside of Ray."""
    ha_port: int = 0
    """The port to which slaves connect; 0 if it is closed."""
    ha_address: str = ""
    """The address that slaves connect to, `host:port`; empty if the port is closed."""

    def labels(self) -> dict[str, str]:
        """Return the labels of all metrics of the broker, as in RocketMQ."""
        return {"cluster": self.cluster, "node_type": "broker", "node_id": self.name}

    @classmethod
    def of(cls, settings: BrokerSettings, listen_port: int, node_ip: str = "") -> BrokerIdentity:
        """Return the identity of a broker that listens on `listen_port`, on the Ray node `node_ip`.

        Raises:
            OSError: the advertised host cannot be resolved.
        """
        port = settings.advertised_port or listen_port
        host = Host(_resolved(settings.host), port)
        address = join_address(settings.host, port)
        ha_port = ha_port_of(settings, listen_port)
        ha_address = join_address(settings.host, ha_port) if ha_port else ""
        return cls(
            settings.cluster_name, settings.broker_name, address, host, node_ip,
            ha_port, ha_address,
        )  # fmt: skip


def ha_port_of(settings: BrokerSettings, listen_port: int) -> int:
    """Return the HA port of a broker that listens on `listen_port`; 0 if it is closed."""
    if settings.replication in ("", RAFT) or is_ha_closed(settings):
        return 0
    return settings.ha_listen_port or listen_port + 1


def is_ha_closed(settings: BrokerSettings) -> bool:
    """Return True if slaves may not connect, because their access cannot be controlled."""
    is_open = settings.ha_allow_unauthenticated or settings.ha_tls
    return settings.authentication_enabled and not is_open


def _resolved(host: str) -> str:
    """Return an IP address of `host`, an IPv4 address if there is one. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = sorted(found, key=lambda each: each[0] != socket.AF_INET)
    return str(addresses[0][4][0]).partition("%")[0]
