"""Check that a cluster without authentication and TLS listens only on loopback addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.driver.metrics_ports import processes
from cluster.driver.placement import is_loopback
from cluster.topology.topology import Broker, Problem, Topology

LOOPBACK = "127.0.0.1"

_AUTHENTICATION = ("authentication_enabled", "authenticationEnabled", "login", "insecure")
"""`login` and `insecure` are settings of the web console."""
_TLS = ("tls", "tls.server.mode")


def exposed(topology: Topology) -> list[Problem]:
    """Return a problem for each process that accepts plain, unauthenticated clients from other machines.

    Returns an empty list if the topology contains `insecure: true`.
    """
    if topology.insecure:
        return []
    problems: list[Problem] = []
    for path, name, entry in topology.listeners():
        host = topology.host_of(entry)
        of_all = topology.broker_settings if isinstance(entry, Broker) else {}
        if is_loopback(host) or _is_protected({**of_all, **entry.settings}):
            continue
        place = (*path, "listen_host") if entry.listen_host else ("listen_host",)
        text = (
            f"{name} would listen on {host}, which other machines can reach, and accept every client: set "
            "authentication_enabled: true or tls: enforced in its settings (docs/security.md). If the "
            "network is private, add this line to the topology instead:  insecure: true"
        )
        problems.append((place, text))
    return problems + [
        ((*each.path, "metrics_host"), _METRICS_TEXT.format(name=each.actor, host=host))
        for each in processes(topology)
        if not is_loopback(host := str(each.settings.get("metrics_host", LOOPBACK)))
        and not each.settings.get("metrics_token_file")
    ]


_METRICS_TEXT = (
    "the metrics of {name} would be on {host}, which other machines can reach, and name its topics and "
    "groups: set metrics_token_file, or keep metrics_host 127.0.0.1. If the network is private, add this "
    "line to the topology instead:  insecure: true"
)


def _is_protected(settings: Mapping[str, Any]) -> bool:
    """Return True if `settings`, from a topology or a broker.conf, enable authentication or enforce TLS."""
    return any(
        str(settings.get(key, "")).lower() in ("true", "1", "yes", "on") for key in _AUTHENTICATION
    ) or any(settings.get(key) == "enforced" for key in _TLS)
