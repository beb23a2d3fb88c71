"""Check that a cluster without authentication and TLS listens only on loopback addresses.

And that no gateway gives strangers the rights of the inner user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.control.metrics_ports import processes
from cluster.control.placement import is_loopback
from cluster.control.topology.topology import Problem, SingleBroker, Topology

LOOPBACK = "127.0.0.1"

_AUTHENTICATION = ("authentication_enabled", "authenticationEnabled", "login", "insecure")
"""`login` and `insecure` are settings of the web console."""
_TLS = ("tls", "tls.server.mode")


def exposed(topology: Topology) -> list[Problem]:
    """Return a problem for each process that accepts plain, unauthenticated clients from other machines.

    And for each gateway that accepts them from anywhere, for brokers that require authentication.

    Returns an empty list if the topology contains `insecure: true`.
    """
    if topology.insecure:
        return []
    problems = _open_gateways(topology)
    for path, name, entry in topology.listeners():
        host = topology.host_of(entry)
        of_all = topology.broker_settings if isinstance(entry, SingleBroker) else {}
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


def _open_gateways(topology: Topology) -> list[Problem]:
    """Return a problem for each gateway that would sign the requests of strangers as the inner user."""
    of_brokers = [topology.broker_settings, *(each.settings for each in topology.brokers)]
    if not any(_is_on(each, _AUTHENTICATION[:2]) for each in of_brokers):
        return []
    return [
        (("gateways", index), _GATEWAY_TEXT)
        for index, each in enumerate(topology.gateways)
        if each.settings.get("inner_credentials_file") and not _is_on(each.settings, _AUTHENTICATION[:2])
    ]


_GATEWAY_TEXT = (
    "the brokers require authentication, but this gateway would send the requests of every client as the "
    "inner user, which may do everything: set authentication_enabled: true in its settings"
)
_METRICS_TEXT = (
    "the metrics of {name} would be on {host}, which other machines can reach, and name its topics and "
    "groups: set metrics_token_file, or keep metrics_host 127.0.0.1. If the network is private, add this "
    "line to the topology instead:  insecure: true"
)


def _is_protected(settings: Mapping[str, Any]) -> bool:
    """Return True if `settings`, from a topology or a broker.conf, enable authentication or enforce TLS."""
    return _is_on(settings, _AUTHENTICATION) or any(settings.get(key) == "enforced" for key in _TLS)


def _is_on(settings: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return any(str(settings.get(key, "")).lower() in ("true", "1", "yes", "on") for key in keys)
