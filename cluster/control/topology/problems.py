"""Problems: conflicts between the keys of a topology, as (key path, message) pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.identity import ha_port_of
from actors.host.node_address import NODE_HOST
from actors.wire.settings_text import names_by_key
from cluster.control.topology.replica_problems import replica_problems
from cluster.control.topology.topology import (
    ADDRESS_KEYS,
    MAX_PORT,
    PORT_STEP,
    BrokerReplica,
    ElasticBroker,
    KeyPath,
    Problem,
    SingleBroker,
    Topology,
    show,
)


def find_problems(topology: Topology, home: Path) -> list[Problem]:
    """Return conflicts between keys: names, ports or stores used twice, and misplaced settings."""
    found = [*_elastic_limits(topology), *replica_problems(topology)]
    if problems := [*found, *_misplaced_settings(topology), *_node_hosts(topology)]:
        return problems
    whole = topology.with_elastic(lambda entry: range(1, entry.max + 1))
    return [*_shared_names(whole), *_shared_ports(whole), *_shared_stores(whole, home)]


def _elastic_limits(topology: Topology) -> Iterator[Problem]:
    for index, entry in topology.elastic():
        path: KeyPath = ("brokers", index)
        if entry.min > entry.max:
            yield (*path, "min"), f"min {entry.min} is greater than max {entry.max}; lower min or raise max"
        last_port = entry.listen_port + PORT_STEP * (entry.max - 1)
        if entry.listen_port and last_port > MAX_PORT:
            yield (
                (*path, "listen_port"),
                (
                    f"broker {entry.max} would listen on port {last_port}, which is greater than {MAX_PORT}; "
                    "use a lower listen_port or max, or 0 for free ports"
                ),
            )
        if entry.advertised_port is not None:
            yield (
                (*path, "advertised_port"),
                f"{entry.advertised_port} cannot be the port of several brokers; remove this key",
            )
    if topology.brokers and not any(True for path, _, _ in topology.listeners() if path[0] == "brokers"):
        yield ("brokers",), "no broker would be started; set min to 1 or more, or add a broker"


def _node_hosts(topology: Topology) -> Iterator[Problem]:
    entries = [(path, entry) for path, _name, entry in topology.listeners()]
    for path, entry in entries:
        has_node = isinstance(entry, ElasticBroker | BrokerReplica)
        if not has_node and topology.host_of(entry) == NODE_HOST:
            place = (*path, "listen_host") if entry.listen_host else ("listen_host",)
            yield (
                place,
                f"{NODE_HOST!r} is possible only for elastic brokers and replicas; use its address",
            )


def _shared_names(topology: Topology) -> Iterator[Problem]:
    seen: dict[str, KeyPath] = {}
    for path, name, entry in topology.listeners():
        if name in seen:
            yield (
                (*path, "pattern" if isinstance(entry, ElasticBroker) else "name"),
                f"actor name {name!r} is already used by {show(seen[name])}; use a unique name",
            )
        seen.setdefault(name, path)


def _shared_ports(topology: Topology) -> Iterator[Problem]:
    seen: dict[tuple[str | None, str, int], str] = {}
    for path, _name, entry in topology.listeners():
        ha_port = _ha_port(topology, entry) if isinstance(entry, SingleBroker) else 0
        for port, use, remedy in (
            (entry.listen_port, "", "use another port, or 0 for a free one"),
            (ha_port, "HA port ", "use another listen_port, or set ha_listen_port in its settings"),
        ):
            key = (entry.resource, topology.host_of(entry), port)
            if port and key in seen:
                yield (
                    (*path, "listen_port"),
                    f"{use}{key[1]}:{port} is already used by {seen[key]}; {remedy}",
                )
            elif port:
                seen[key] = f"{show(path)}{' for slaves' if use else ''}"


def _ha_port(topology: Topology, broker: SingleBroker) -> int:
    """Return the port for slaves of a broker, after a promotion if it is a slave; 0 if closed or unknown."""
    names = names_by_key(BrokerSettings)
    given = topology.broker_settings | broker.settings
    values = {names[key]: value for key, value in given.items() if key in names}
    if broker.replication is not None:
        values["replication"] = broker.replication
    settings = BrokerSettings.model_construct(None, **values)  # validated later
    is_known = broker.listen_port or settings.ha_listen_port
    return ha_port_of(settings, broker.listen_port) if is_known else 0


def _shared_stores(topology: Topology, home: Path) -> Iterator[Problem]:
    seen: dict[Path, KeyPath] = {}
    for at, _name, broker in topology.listeners():
        if not isinstance(broker, SingleBroker):
            continue
        is_elastic = isinstance(broker, ElasticBroker)
        key = "store" if broker.store else "name"
        path: KeyPath = (*at, "pattern" if is_elastic and key == "name" else key)
        store = topology.store_of(broker, home).resolve()
        for other, owner in seen.items():
            relation = "is the store" if store == other else f"overlaps {other}, the store"
            if store == other or store in other.parents or other in store.parents:
                yield (
                    path,
                    f"store {store} {relation} of {show(owner)}; use a separate directory per broker",
                )
        seen.setdefault(store, at)


def _misplaced_settings(topology: Topology) -> Iterator[Problem]:
    places: list[tuple[KeyPath, dict[str, Any]]] = [(("broker_settings",), topology.broker_settings)]
    places += [((*path, "settings"), entry.settings) for path, _name, entry in topology.listeners()]
    places += [(path, settings) for path, _name, settings in topology.workers()]
    for path, settings in places:
        for key in settings:
            if key in ADDRESS_KEYS:
                yield (*path, key), f"set this with the topology's key: {ADDRESS_KEYS[key]}"
