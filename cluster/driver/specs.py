"""From a topology to what each actor is told: its settings, checked by the service's own model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from actors.broker.broker_settings import VIP_PORT_DISTANCE, BrokerSettings
from actors.broker.broker_settings_text import STORE_KEY, split_settings
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from cluster.driver.plan import ActorSpec, Kind
from cluster.topology.topology import Broker, KeyPath, Listener, Topology, show
from cluster.topology.topology_file import Source, explain
from store.live_settings import live_names
from store.store_settings import StoreSettings

SETTINGS: Mapping[Kind, type[BaseModel]] = {
    Kind.NAMESERVER: NameserverSettings,
    Kind.REBALANCER: RebalancerSettings,
}


def make_specs(
    topology: Topology, home: Path, resources: Mapping[str, str], source: Source
) -> list[ActorSpec]:
    """All actors of a topology. `resources`: by actor's name, what binds it. Raises TopologyError."""
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
            )
        )
    order = list(Kind)
    return sorted(specs, key=lambda spec: order.index(spec.kind))


def _vip_port_is_free(topology: Topology, broker: Broker) -> bool:
    """Whether none of the topology's own listeners has the port that this broker would listen on besides: its
    owner may start later.
    """
    taken = {(topology.host_of(entry), entry.listen_port) for _, _, entry in topology.listeners()}
    return (topology.host_of(broker), broker.listen_port - VIP_PORT_DISTANCE) not in taken


def address(topology: Topology, entry: Listener) -> str:
    """`host:port` as others dial it."""
    host, port = topology.advertised(entry)
    return f"{host}:{port}"


def broker_settings(topology: Topology, broker: Broker, path: KeyPath, source: Source) -> dict[str, Any]:
    """The settings that are no addresses: the topology's, the broker's own over them. TopologyError."""
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
    """The values as the model understands them, under its own names; raises TopologyError."""
    # The rebalancer's directory is the one key that its model demands and the topology does not give.
    demanded = {"data_dir": "."} if model is RebalancerSettings else {}
    try:
        found = model.model_validate({**demanded, **values})
    except ValidationError as error:
        raise source.error(explain(error, model, at)) from None
    return found.model_dump(mode="json", include=found.model_fields_set - demanded.keys())


def is_live_setting(kind: Kind, key: str) -> bool:
    """Whether a setting, `store.flush` for one of a broker's store, may change without a restart."""
    head, _, inner = key.partition(".")
    if kind is Kind.BROKER and head == STORE_KEY:
        return inner in live_names(StoreSettings)
    return key in live_names(BrokerSettings if kind is Kind.BROKER else SETTINGS[kind])
