"""NODE_HOST: a host name in settings that stands for the address of the node on which an actor runs.

The driver does not know the node of an elastic broker before Ray has placed it. The actor replaces the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NODE_HOST = "node"

_ADDRESSES = ("listen", "advertised")
_HOST_SETTINGS = ("listen_host", "advertised_host")


def located_settings(settings: Mapping[str, Any], node_ip: str) -> dict[str, Any]:
    """Return the settings of an actor with `node_ip` in place of NODE_HOST."""
    hosts = {key: node_ip for key in _HOST_SETTINGS if settings.get(key) == NODE_HOST}
    return {**settings, **hosts}


def located_spec(spec: Mapping[str, Any], node_ip: str) -> dict[str, Any]:
    """Return an actor's spec (`ActorSpec.to_json`) with `node_ip` in place of NODE_HOST in its addresses.

    The settings keep NODE_HOST, because the driver compares them with the topology.
    """
    addresses = {key: [node_ip, spec[key][1]] for key in _ADDRESSES if spec.get(key, ("",))[0] == NODE_HOST}
    return {**spec, **addresses}
