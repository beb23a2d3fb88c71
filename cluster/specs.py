"""From a topology to what each actor is told: its settings, checked by the service's own model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from actors.broker.settings import BrokerSettings
from cluster.plan import ActorSpec, Kind
from cluster.topology import Broker, KeyPath, Listener, Topology, show
from cluster.topology_file import Source, explain
from store.settings import StoreSettings

STORE_KEY = "store"


def make_specs(
    topology: Topology, home: Path, resources: Mapping[str, str], source: Source
) -> list[ActorSpec]:
    """All actors of a topology. `resources`: by actor's name, what binds it. Raises TopologyError."""
    nameservers = [address(topology, entry) for entry in topology.nameservers]
    rebalancers = [address(topology, entry) for entry in topology.rebalancers]
    specs = []
    for path, name, entry in topology.listeners():
        common = {
            "name": name, "cluster": topology.cluster, "listen": (topology.host_of(entry), entry.listen_port),
            "advertised": topology.advertised(entry), "resource": resources.get(name, ""),
            "place": f"{source.place(path)}: {show(path)}",
        }  # fmt: skip
        listen = {"listen_host": topology.host_of(entry), "listen_port": entry.listen_port}
        if isinstance(entry, Broker):
            settings = broker_settings(topology, entry, path, source) | {
                **listen,
                "cluster_name": topology.cluster,
                "broker_name": entry.name,
                "advertised_host": topology.advertised(entry)[0],
                "advertised_port": topology.advertised(entry)[1] or None,
                "nameservers": nameservers,
                "rebalancers": rebalancers,
                "store_root": str(topology.store_of(entry, home)),
            }
            specs.append(ActorSpec(Kind.BROKER, settings=settings, store=settings["store_root"], **common))
        elif path[0] == "nameservers":
            settings = listen | {"kv_config_path": str(home / name / "kvConfig.json")}
            specs.append(ActorSpec(Kind.NAMESERVER, settings=settings, **common))
        else:
            settings = listen | {"nameservers": nameservers, "state_root": str(home / name)}
            specs.append(ActorSpec(Kind.REBALANCER, settings=settings, **common))
    order = list(Kind)
    return sorted(specs, key=lambda spec: order.index(spec.kind))


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
        for model, values in ((BrokerSettings, plain), (StoreSettings, of_store)):
            try:
                checked = model.model_validate(values)
            except ValidationError as error:
                raise source.error(explain(error, model, at)) from None
            given_here = checked.model_dump(mode="json", include=checked.model_fields_set)
            (given if model is BrokerSettings else stored).update(given_here)
    return given | {STORE_KEY: stored}


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the broker and of its store: RocketMQ's keys are flat, ours stand below `store`."""
    inner = settings.get(STORE_KEY)
    of_store = dict(inner) if isinstance(inner, Mapping) else {}
    plain = {key: value for key, value in settings.items() if key != STORE_KEY}
    of_broker = known_keys(BrokerSettings)
    for key in [key for key in plain if key not in of_broker and key in known_keys(StoreSettings)]:
        of_store[key] = plain.pop(key)
    return plain, of_store


def known_keys(model: type[BrokerSettings] | type[StoreSettings]) -> set[str]:
    """All names that a settings model takes, RocketMQ's among them."""
    keys = set(model.model_fields)
    for field in model.model_fields.values():
        for alias in (field.alias, field.validation_alias):
            if isinstance(alias, str):
                keys.add(alias)
            elif alias is not None:
                keys.update(str(choice) for choice in getattr(alias, "choices", ()))
    return keys
