"""The typed model of a topology: which nameservers, brokers and rebalancers, where, and how set.

What is wrong is collected as (key path, message) pairs, so that the reader of the file can name the line.
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
    "broker_id": "nothing: it is the replica's index", "brokerId": "nothing: it is the replica's index",
    "replica": "nothing: it is the replica's index",
    "listen_host": "brokers[].listen_host",
    "listen_port": "brokers[].listen_port", "listenPort": "brokers[].listen_port",
    "advertised_host": "brokers[].advertised_host", "brokerIP1": "brokers[].advertised_host",
    "advertised_port": "brokers[].advertised_port",
    "nameservers": "nameservers", "namesrvAddr": "nameservers", "rebalancers": "rebalancers",
    "data_dir": "nothing: it stands below RAYMQ_HOME",
    "store_root": "store_root or brokers[].store", "storePathRootDir": "store_root or brokers[].store",
}  # fmt: skip
"""Settings that a topology gives by its own keys: two places for one fact would disagree one day."""


def _check_name(name: str) -> str:
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a name: give up to 100 letters, digits, '_', '-', '.', not "
            "beginning with '-' or '.'"
        )
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Listener(_Model):
    """One actor that listens: where it binds, what it tells others, and the node that it is bound to.

    `listen_port` 0 is a free one, chosen once by the driver. `resource` is a Ray resource that only the right
    node has; without it the actor is bound to the head node's own. `settings`: what else its service is
    told.
    """

    listen_host: str | None = None
    listen_port: Port = 0
    advertised_host: str | None = None
    advertised_port: Port | None = None
    resource: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


class Nameserver(Listener):
    """A nameserver; its index in the list is its name."""

    listen_port: Port = 9876


class Rebalancer(Listener):
    """A rebalancer; only brokers talk to it, so that any port will do."""


class Broker(Listener):
    """A broker group; `store` replaces `<store_root>/<name>-<replica>`, `settings` go over all brokers'."""

    name: Name
    listen_port: Port = 10911
    store: Path | None = None


class RayStart(_Model):
    """How to come to Ray: `auto` takes one that runs or starts one, `new` starts its own, or an address."""

    address: str = "auto"
    port: Port = 6379
    dashboard_port: Port = 8265
    num_cpus: int | None = Field(None, ge=1)
    object_store_memory_bytes: int | None = Field(None, ge=80 * 1024 * 1024)


class Topology(_Model):
    """A whole cluster. `route_refresh_ms` is its slowest client's: brokers restart no closer together."""

    cluster: Name = DEFAULT_CLUSTER
    namespace: Name = DEFAULT_NAMESPACE
    store_root: Path = Path("store")
    listen_host: str = "127.0.0.1"
    flush: Literal["sync", "async"] = "sync"
    auto_create_topics: bool = True
    route_refresh_ms: Annotated[int, Field(ge=0)] = 30_000
    broker_settings: dict[str, Any] = Field(default_factory=dict)
    nameservers: Annotated[list[Nameserver], Field(min_length=1)] = [Nameserver()]
    brokers: Annotated[list[Broker], Field(min_length=1)]
    rebalancers: Annotated[list[Rebalancer], Field(min_length=1)] = [Rebalancer()]
    ray: RayStart = RayStart()

    def listeners(self) -> Iterator[tuple[KeyPath, str, Listener]]:
        """All that listen: key path, actor's name, entry."""
        for index, nameserver in enumerate(self.nameservers):
            yield ("nameservers", index), f"nameserver-{index}", nameserver
        for index, broker in enumerate(self.brokers):
            yield ("brokers", index), f"{broker.name}-0", broker
        for index, rebalancer in enumerate(self.rebalancers):
            yield ("rebalancers", index), f"rebalancer-{index}", rebalancer

    def host_of(self, entry: Listener) -> str:
        """The host that an entry binds to."""
        return entry.listen_host or self.listen_host

    def advertised(self, entry: Listener) -> tuple[str, int]:
        """The address that others dial."""
        return entry.advertised_host or self.host_of(entry), entry.advertised_port or entry.listen_port

    def store_of(self, broker: Broker, home: Path) -> Path:
        """The absolute directory of a broker's store."""
        return home / (broker.store or self.store_root / f"{broker.name}-0")

    def with_ports(self, ports: Mapping[str, int]) -> Topology:
        """This topology with the ports that were chosen for actors whose entry says 0."""
        updated: dict[str, list[Listener]] = {"nameservers": [], "brokers": [], "rebalancers": []}
        for path, name, entry in self.listeners():
            port = entry.listen_port or ports.get(name, 0)
            updated[str(path[0])].append(entry.model_copy(update={"listen_port": port}))
        return self.model_copy(update=updated)


def find_problems(topology: Topology, home: Path) -> list[Problem]:
    """What cannot be although every key is right by itself: names, ports or stores that two share."""
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
            yield (*path, "name"), f"the actor {name!r} is {show(seen[name])} already; give each its own name"
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
                    f"{key[1]}:{key[2]} is the address of {show(seen[key])} already; "
                    "give each listener a port of its own, or 0 for a free one"
                ),
            )
        seen.setdefault(key, path)


def _shared_stores(topology: Topology, home: Path) -> Iterator[Problem]:
    seen: dict[Path, KeyPath] = {}
    for index, broker in enumerate(topology.brokers):
        path: KeyPath = ("brokers", index, "store" if broker.store else "name")
        store = topology.store_of(broker, home).resolve()
        for other, owner in seen.items():
            relation = "is that" if store == other else f"overlaps {other}, that"
            if store == other or store in other.parents or other in store.parents:
                yield (
                    path,
                    f"its store {store} {relation} of {show(owner)}; give each broker a directory of its own",
                )
        seen.setdefault(store, ("brokers", index))


def _misplaced_settings(topology: Topology) -> Iterator[Problem]:
    places: list[tuple[KeyPath, dict[str, Any]]] = [(("broker_settings",), topology.broker_settings)]
    places += [((*path, "settings"), entry.settings) for path, _name, entry in topology.listeners()]
    for path, settings in places:
        for key in settings:
            if key in ADDRESS_KEYS:
                yield (*path, key), f"this is given by the topology's own key: {ADDRESS_KEYS[key]}"


def show(path: KeyPath) -> str:
    """`("brokers", 1, "name")` → `brokers[1].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
