"""BrokerIdentity: the names and addresses by which others know one broker."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from actors.broker.broker_settings import BrokerSettings
from store.message.hosts import Host


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """One broker of a cluster, as it registers itself."""

    cluster: str
    name: str
    broker_id: int
    address: str
    """Where clients connect, `host:port`."""
    host: Host
    """The same, resolved: the storeHost of its records."""

    @classmethod
    def of(cls, settings: BrokerSettings, listen_port: int) -> BrokerIdentity:
        """Return the identity of a broker that listens on `listen_port`.

        Raises:
            OSError: the advertised host cannot be resolved.
        """
        port = settings.advertised_port or listen_port
        host = Host(socket.gethostbyname(settings.host), port)
        address = f"{settings.host}:{port}"
        return cls(settings.cluster_name, settings.broker_name, settings.broker_id, address, host)
