"""The typed model of a topology: nameservers, brokers and rebalancers, with addresses and settings.

Problems are collected as (key path, message) pairs, so that the reader of the file can add file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

DEFAULT_CLUSTER = "DefaultCluster"
DEFAULT_NAMESPACE = "raymq"
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")

KeyPath = tuple[str | int, ...]
Problem = tuple[KeyPath, str]

ADDRESS_KEYS = {
    "cluster_name": "cluster", "brokerClusterName": "cluster",
    "broker_name": "brokers[].name", "brokerName": "brokers[].name",
    "broker_id": "none: it is the index of the replica", "brokerId": "none: it is the index of the replica",
    "replica": "none: it is the index of the replica",
    "listen_host": "brokers[].listen_host",
    "listen_port": "brokers[].listen_port", "listenPort": "brokers[].listen_port",
    "advertised_host": "brokers[].advertised_host", "brokerIP1": "brokers[].advertised_host",
    "advertised_port": "brokers[].advertised_port",
    "nameservers": "nameservers", "namesrvAddr": "nameservers", "rebalancers": "rebalancers",
    "data_dir": "none: it is a directory below RAYMQ_HOME",
    "store_root": "store_root or brokers[].store", "storePathRootDir": "store_root or brokers[].store",
}  # fmt: skip
"""Settings that are set with a key of the topology itself, and that key."""


def _check_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name: use up to 100 letters, digits, '_', '-', '.', not "
            "starting with '-' or '.'"
        )
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Listener(_Model):
    """An actor that listens on a port: its address, its advertised address, its node and its settings.

    `listen_port` 0 selects a free port, once. `resource` is a Ray resource of the node that runs the actor;
    without it the actor runs on the head node. `settings` are those of its service.
    """

    listen_host: str | None = None
    listen_port: Port = 0
    advertised_host: str | None = None
    advertised_port: Port | None = None
    resource: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Nameserver(Listener):
    """A nameserver, named by its index in the list."""

    listen_port: Port = 9876


class Rebalancer(Listener):
    """A rebalancer. Only brokers connect to it, so its port may change."""


class Broker(Listener):
    """A broker group. `store` replaces `<store_root>/<name>-<replica>`; `settings` override all brokers'."""

    name: Name
    listen_port: Port = 10911
    store: Path | None = None


class RayStart(_Model):
    """Connection to Ray: `auto` uses a running Ray or starts one, `new` starts one, or an address."""

    address: str = "auto"
    port: Port = 6379
    dashboard_port: Port = 8265
    num_cpus: int | None = Field(None, ge=1)
    object_store_memory_bytes: int | None = Field(None, ge=80 * 1024 * 1024)


class Topology(_Model):
    """A whole cluster. `route_refresh_ms` is that of the slowest client; rolling restarts wait as long.

    `insecure` permits processes that listen on public addresses without authentication.
    """

    cluster: Name = DEFAULT_CLUSTER
    namespace: Name = DEFAULT_NAMESPACE
    store_root: Path = Path("store")
    listen_host: str = "127.0.0.1"
    insecure: bool = False
    flush: Literal["sync", "async"] = "sync"
    auto_create_topics: bool = True
    route_refresh_ms: Annotated[int, Field(ge=0)] = 30_000
    broker_settings: dict[str, Any] = Field(default_factory=dict)
    nameservers: Annotated[list[Nameserver], Field(min_length=1)] = [Nameserver()]
    brokers: Annotated[list[Broker], Field(min_length=1)]
    rebalancers: Annotated[list[Rebalancer], Field(min_length=1)] = [Rebalancer()]
    ray: RayStart = RayStart()

    def listeners(self) -> Iterator[tuple[KeyPath, str, Listener]]:
        """Yield (key path, actor name, entry) of all actors."""
        for index, nameserver in enumerate(self.nameservers):
            yield ("nameservers", index), f"nameserver-{index}", nameserver
        for index, broker in enumerate(self.brokers):
            yield ("brokers", index), f"{broker.name}-0", broker
        for index, rebalancer in enumerate(self.rebalancers):
            yield ("rebalancers", index), f"rebalancer-{index}", rebalancer

    def host_of(self, entry: Listener) -> str:
        """Return the host that an entry binds to."""
        return entry.listen_host or self.listen_host

    def advertised(self, entry: Listener) -> tuple[str, int]:
        """Return the (host, port) that clients and other actors connect to."""
        return entry.advertised_host or self.host_of(entry), entry.advertised_port or entry.listen_port

    def store_of(self, broker: Broker, home: Path) -> Path:
        """Return the absolute directory of a broker's store."""
        return home / (broker.store or self.store_root / f"{broker.name}-0")

    def with_ports(self, ports: Mapping[str, int]) -> Topology:
        """Return a copy in which port 0 is replaced by the port chosen for the actor, by actor name."""
        updated: dict[str, list[Listener]] = {"nameservers": [], "brokers": [], "rebalancers": []}
        for path, name, entry in self.listeners():
            port = entry.listen_port or ports.get(name, 0)
            updated[str(path[0])].append(entry.model_copy(update={"listen_port": port}))
        return self.model_copy(update=updated)


def find_problems(topology: Topology, home: Path) -> list[Problem]:
    """Return conflicts between keys: names, ports or stores used twice, and misplaced settings."""
    return [
        *_shared_names(topology),
        *_shared_ports(topology),
        *_shared_stores(topology, home),
        *_misplaced_settings(topology),
    ]


def _shared_names(topology: Topology) -> Iterator[Problem]:
    seen: dict[str, KeyPath] = {}
    for path, name, _entry in topology.listeners():
        if name in seen:
            yield (
                (*path, "name"),
                f"actor name {name!r} is already used by {show(seen[name])}; use a unique name",
            )
        seen.setdefault(name, path)


def _shared_ports(topology: Topology) -> Iterator[Problem]:
    seen: dict[tuple[str | None, str, int], KeyPath] = {}
    for path, _name, entry in topology.listeners():
        if entry.listen_port == 0:
            continue
        key = (entry.resource, topology.host_of(entry), entry.listen_port)
        if key in seen:
            yield (
                (*path, "listen_port"),
                (
                    f"{key[1]}:{key[2]} is already used by {show(seen[key])}; "
                    "use another port, or 0 for a free one"
                ),
            )
        seen.setdefault(key, path)


def _shared_stores(topology: Topology, home: Path) -> Iterator[Problem]:
    seen: dict[Path, KeyPath] = {}
    for index, broker in enumerate(topology.brokers):
        path: KeyPath = ("brokers", index, "store" if broker.store else "name")
        store = topology.store_of(broker, home).resolve()
        for other, owner in seen.items():
            relation = "is the store" if store == other else f"overlaps {other}, the store"
            if store == other or store in other.parents or other in store.parents:
                yield (
                    path,
                    f"store {store} {relation} of {show(owner)}; use a separate directory per broker",
                )
        seen.setdefault(store, ("brokers", index))


def _misplaced_settings(topology: Topology) -> Iterator[Problem]:
    places: list[tuple[KeyPath, dict[str, Any]]] = [(("broker_settings",), topology.broker_settings)]
    places += [((*path, "settings"), entry.settings) for path, _name, entry in topology.listeners()]
    for path, settings in places:
        for key in settings:
            if key in ADDRESS_KEYS:
                yield (*path, key), f"set this with the topology's key: {ADDRESS_KEYS[key]}"


def show(path: KeyPath) -> str:
    """Format a key path: `("brokers", 1, "name")` becomes `brokers[1].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
