"""Specs: converts a topology to the settings of each actor, validated by the model of its service."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from actors.broker.broker_settings import VIP_PORT_DISTANCE, BrokerSettings
from actors.broker.broker_settings_text import STORE_KEY, split_settings
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from cluster.driver.placement import AUTOSCALER
from cluster.driver.plan import ActorSpec, Kind
from cluster.topology.topology import Broker, ElasticBroker, KeyPath, Listener, Topology, show
from cluster.topology.topology_file import Source, explain
from store.live_settings import live_names
from store.message.hosts import join_address
from store.store_settings import StoreSettings

SETTINGS: Mapping[Kind, type[BaseModel]] = {
    Kind.NAMESERVER: NameserverSettings,
    Kind.REBALANCER: RebalancerSettings,
}


def make_specs(
    topology: Topology, home: Path, resources: Mapping[str, str], source: Source
) -> list[ActorSpec]:
    """Return the specs of all actors of a topology, in the order of creation.

    Args:
        topology: The topology.
        home: Directory of the cluster, for relative paths.
        resources: Resource that binds each actor to its node, by actor name.
        source: File and overrides of the topology, for error messages.

    Raises TopologyError if a setting is invalid.
    """
    nameservers = [address(topology, entry) for entry in topology.nameservers]
    rebalancers = [address(topology, entry) for entry in topology.rebalancers]
    specs = []
    for path, name, entry in topology.listeners():
        host, port = topology.host_of(entry), entry.listen_port
        settings: dict[str, Any] = {"listen_host": host, "listen_port": port}
        if isinstance(entry, Broker):
            kind = Kind.BROKER
            if not _vip_port_is_free(topology, entry):
                settings["vip_channel"] = False
            settings |= broker_settings(topology, entry, path, source) | {
                "cluster_name": topology.cluster,
                "broker_name": entry.name,
                "advertised_host": topology.advertised(entry)[0],
                "advertised_port": topology.advertised(entry)[1] or None,
                "nameservers": nameservers,
                "rebalancers": rebalancers,
                "store_root": str(topology.store_of(entry, home)),
            }
        else:
            kind = Kind.NAMESERVER if path[0] == "nameservers" else Kind.REBALANCER
            settings["data_dir"] = str(home / name)
            if kind is Kind.NAMESERVER:
                settings["cluster_name"] = topology.cluster
            if kind is Kind.REBALANCER:
                settings["nameservers"] = nameservers
            settings |= checked(SETTINGS[kind], entry.settings, (*path, "settings"), source)
        specs.append(
            ActorSpec(
                kind,
                name,
                topology.cluster,
                settings,
                (host, port),
                topology.advertised(entry),
                resources.get(name, ""),
                settings.get("store_root"),
                f"{source.place(path)}: {show(path)}",
                slots=1 if isinstance(entry, ElasticBroker) else 0,
            )
        )
    if topology.autoscale is not None:
        specs.append(autoscaler_spec(topology, home, resources.get(AUTOSCALER, ""), source))
    order = list(Kind)
    return sorted(specs, key=lambda spec: order.index(spec.kind))


def autoscaler_spec(topology: Topology, home: Path, resource: str, source: Source) -> ActorSpec:
    """Return the spec of the autoscaler. Raises TopologyError if its settings are invalid."""
    path: KeyPath = ("autoscale",)
    index, entry = next(topology.elastic(), (-1, None))
    if entry is None:
        raise source.error([(path, "there are no elastic brokers; add {pattern: …, max: …} to brokers")])
    given = dict(topology.autoscale or {})
    limits = {"min": max(entry.min, 1), "max": entry.max}
    if isinstance(given.get("rules"), Mapping):
        given["rules"] = limits | given["rules"]
    # Imported by name: the settings belong to a package above the driver, as the actor's class does.
    model: type[BaseModel] = import_module("cluster.autoscale.autoscaler_settings").AutoscalerSettings
    settings = checked(model, given, path, source)
    highest = settings["rules"]["max"]
    if highest > entry.max:
        text = f"{highest} exceeds brokers[{index}].max {entry.max}; lower it or raise that"
        raise source.error([((*path, "rules", "max"), text)])
    settings["data_dir"] = str(home / AUTOSCALER)
    settings["home"] = str(home)
    settings["topology"] = topology.plain()
    none = ("", 0)
    return ActorSpec(
        Kind.AUTOSCALER, AUTOSCALER, topology.cluster, settings, none, none, resource,
        place=f"{source.place(path)}: {show(path)}",
    )  # fmt: skip


def _vip_port_is_free(topology: Topology, broker: Broker) -> bool:
    """Return True if no actor of the topology listens on the VIP port of `broker`.

    That actor may start later, so the broker must not take its port.
    """
    taken = {(topology.host_of(entry), entry.listen_port) for _, _, entry in topology.listeners()}
    return (topology.host_of(broker), broker.listen_port - VIP_PORT_DISTANCE) not in taken


def address(topology: Topology, entry: Listener) -> str:
    """Return the advertised address as `host:port`."""
    host, port = topology.advertised(entry)
    return join_address(host, port)


def broker_settings(topology: Topology, broker: Broker, path: KeyPath, source: Source) -> dict[str, Any]:
    """Return a broker's settings without addresses: those of the topology, overridden by its own.

    Raises TopologyError if a setting is invalid.
    """
    given: dict[str, Any] = {"auto_create_topics": topology.auto_create_topics}
    stored: dict[str, Any] = {"flush": topology.flush}
    for at, settings in (
        (("broker_settings",), topology.broker_settings),
        ((*path, "settings"), broker.settings),
    ):
        plain, of_store = split_settings(settings)
        given |= checked(BrokerSettings, plain, at, source)
        stored |= checked(StoreSettings, of_store, at, source)
    return given | {STORE_KEY: stored}


def checked(model: type[BaseModel], values: Mapping[str, Any], at: KeyPath, source: Source) -> dict[str, Any]:
    """Return `values` validated by `model`, under the model's field names. Raises TopologyError."""
    # The rebalancer's model requires `data_dir`, which the topology does not contain.
    required = {"data_dir": "."} if model is RebalancerSettings else {}
    try:
        found = model.model_validate({**required, **values})
    except ValidationError as error:
        raise source.error(explain(error, model, at)) from None
    return found.model_dump(mode="json", include=found.model_fields_set - required.keys())


def is_live_setting(kind: Kind, key: str) -> bool:
    """Return True if a setting can be changed without a restart. `key` is dotted, such as `store.flush`."""
    if kind is Kind.AUTOSCALER:
        return False
    head, _, inner = key.partition(".")
    if kind is Kind.BROKER and head == STORE_KEY:
        return inner in live_names(StoreSettings)
    return key in live_names(BrokerSettings if kind is Kind.BROKER else SETTINGS[kind])
