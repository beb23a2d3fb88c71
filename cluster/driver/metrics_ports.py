"""Ports of the metrics whose default another process of the topology uses."""

from __future__ import annotations

from actors.broker.broker_settings import VIP_PORT_DISTANCE
from actors.host.metrics.endpoint import PORT_DISTANCE, MetricsSettings, default_port
from actors.remoting.settings_text import names_by_key
from cluster.topology.topology import Broker, Topology

_NAMES = {key for key, name in names_by_key(MetricsSettings).items() if name == "metrics_port"}
_PORT_MAX = 65_535


def moved_metrics_ports(topology: Topology) -> dict[str, int]:
    """Return a port for each process whose default port is that of another one, by actor name.

    The other process may start later, so it would find its port in use.
    """
    taken: set[int] = set()
    for _, _, entry in topology.listeners():
        given = {**(topology.broker_settings if isinstance(entry, Broker) else {}), **entry.settings}
        taken |= {int(value) for key, value in given.items() if key in _NAMES and str(value).isdigit()}
        taken |= {entry.listen_port, entry.listen_port - VIP_PORT_DISTANCE}
    moved = {}
    for _, name, entry in topology.listeners():
        given = {**(topology.broker_settings if isinstance(entry, Broker) else {}), **entry.settings}
        default = port = default_port(entry.listen_port)
        if not port or _NAMES & given.keys():
            continue
        while port in taken and port + PORT_DISTANCE <= _PORT_MAX:
            port += PORT_DISTANCE
        taken.add(port)
        if port != default:
            moved[name] = port
    return moved
