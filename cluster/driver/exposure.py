"""Check that a cluster without authentication listens only on loopback addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.driver.placement import is_loopback
from cluster.topology.topology import Broker, Problem, Topology

_SWITCHES = ("authentication_enabled", "authenticationEnabled")


def exposed(topology: Topology) -> list[Problem]:
    """Return a problem for each process that accepts unauthenticated clients from other machines.

    Returns an empty list if the topology contains `insecure: true`.
    """
    if topology.insecure:
        return []
    problems: list[Problem] = []
    for path, name, entry in topology.listeners():
        host = topology.host_of(entry)
        of_all = topology.broker_settings if isinstance(entry, Broker) else {}
        if is_loopback(host) or _is_on({**of_all, **entry.settings}):
            continue
        place = (*path, "listen_host") if entry.listen_host else ("listen_host",)
        text = (
            f"{name} would listen on {host}, which other machines can reach, and accept every client: set "
            "authentication_enabled: true in its settings (docs/security.md). If the network is private, add "
            "this line to the topology instead:  insecure: true"
        )
        problems.append((place, text))
    return problems


def _is_on(settings: Mapping[str, Any]) -> bool:
    """Return True if `settings`, from a topology or a broker.conf, enable authentication."""
    return any(str(settings.get(key, "")).lower() in ("true", "1", "yes", "on") for key in _SWITCHES)
