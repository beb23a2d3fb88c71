"""Refuses addresses that other machines can reach while clients need no credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.driver.placement import is_loopback
from cluster.topology.topology import Broker, Problem, Topology

_SWITCHES = ("authentication_enabled", "authenticationEnabled")


def exposed(topology: Topology) -> list[Problem]:
    """Return a problem for each process that listens on a public address without authentication."""
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
            "authentication_enabled in its settings (docs/security.md) or, if the network is private, add to "
            "the topology the line  insecure: true"
        )
        problems.append((place, text))
    return problems


def _is_on(settings: Mapping[str, Any]) -> bool:
    """Return True if authentication is enabled in settings of a topology or a broker.conf."""
    return any(str(settings.get(key, "")).lower() in ("true", "1", "yes", "on") for key in _SWITCHES)
