"""Settings and default ports of the metrics of all processes of a topology."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from actors.broker.broker_settings import VIP_PORT_DISTANCE
from actors.host.metrics.endpoint import (
    AUTOSCALER_PORT,
    LAKE_PORT,
    PORT_DISTANCE,
    MetricsSettings,
    default_port,
)
from actors.wire.settings_text import names_by_key
from cluster.control.topology.topology import KeyPath, SingleBroker, Topology

_PORT_MAX = 65_535


class Given(NamedTuple):
    """A process of a topology: place and values of its settings, under the names of the fields."""

    path: KeyPath
    actor: str
    port: int
    settings: Mapping[str, Any]


def processes(topology: Topology) -> Iterator[Given]:
    """Yield all processes of a topology."""
    names = names_by_key(MetricsSettings)

    def given(path: KeyPath, actor: str, port: int, settings: Mapping[str, Any]) -> Given:
        return Given(path, actor, port, {names.get(key, key): value for key, value in settings.items()})

    for path, name, entry in topology.listeners():
        of_all = topology.broker_settings if isinstance(entry, SingleBroker) else {}
        yield given((*path, "settings"), name, entry.listen_port, {**of_all, **entry.settings})
    if topology.autoscale is not None:
        yield given(("autoscale",), "autoscaler", AUTOSCALER_PORT, topology.autoscale)
    for path, name, settings in topology.workers():
        yield given(path, name, LAKE_PORT, settings)


def moved_metrics_ports(topology: Topology) -> dict[str, int]:
    """Return a port for each process whose default port is that of another one, by actor name.

    The other process may start later, so it would find its port in use.
    """
    found = list(processes(topology))
    taken = {each.port for each in found} | {each.port - VIP_PORT_DISTANCE for each in found}
    ports = [str(each.settings.get("metrics_port")) for each in found]
    taken |= {int(port) for port in ports if port.isdigit()}
    moved = {}
    for each in found:
        default = port = default_port(each.port)
        if not port or "metrics_port" in each.settings:
            continue
        while port in taken and port + PORT_DISTANCE <= _PORT_MAX:
            port += PORT_DISTANCE
        taken.add(port)
        if port != default:
            moved[each.actor] = port
    return moved
