"""Specs: converts a topology to the settings of each actor, validated by the model of its service."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError

from actors.broker.broker_settings import RAFT, SLAVE, VIP_PORT_DISTANCE, BrokerSettings
from actors.broker.broker_settings_text import STORE_KEY, split_settings
from actors.broker.core.identity import ha_port_of, is_ha_closed
from actors.host.cluster_tls import check_peer_ca
from actors.transport.tls.contexts import ClientTls
from cluster.control.metrics_ports import moved_metrics_ports
from cluster.control.topology.topology import (
    BrokerReplica,
    ElasticBroker,
    KeyPath,
    Listener,
    SingleBroker,
    Topology,
    show,
)
from cluster.control.topology.topology_file import Source, explain_invalid
from cluster.views.replicas import Replica, kind_of
from store.message.hosts import join_address
from store.store_errors import StoreError
from store.store_settings import StoreSettings

RECEIVERS: Final = "receiver_addresses"
"""Setting with the addresses by which others reach a process, besides that on which it listens."""


class Deployment(NamedTuple):
    """A topology and where it is deployed.

    Attributes:
        topology: The topology.
        home: Directory of the cluster, for relative paths.
        resources: Resource that binds each actor to its node, by actor name.
        source: File and overrides of the topology, for error messages.
    """

    topology: Topology
    home: Path
    resources: Mapping[str, str]
    source: Source


@dataclass(frozen=True)
class ProcessKind:
    """A kind of process: a row of the table `cluster.control.kinds.KINDS`.

    Attributes:
        name: Name of the kind.
        key: Key of the topology under which its processes are listed.
        actor: Class of its actor, as `module:class`. The module may belong to a package above the driver.
        settings: Model of its service's settings, as `module:class`.
        order: Place in the order of creation; processes are stopped in the reverse order.
        specs: Returns the specs of its processes. Raises TopologyError if a setting is invalid.
        probe: Returns why a process does not serve, else an empty text, from its spec, the specs of all
            processes, and the TLS of connections to it. Raises OSError, ProtocolError, ValueError. None: it
            has no socket.
    """

    name: str
    key: str
    actor: str
    settings: str
    order: int
    specs: Callable[[ProcessKind, Deployment], Iterator[ActorSpec]]
    probe: Callable[[ActorSpec, Sequence[ActorSpec], ClientTls | None], str] | None

    @property
    def model(self) -> type[BaseModel]:
        """The model of its service's settings."""
        model: type[BaseModel] = resolve_name(self.settings)
        return model


@dataclass(frozen=True)
class ActorSpec:
    """One actor of a topology.

    Attributes:
        kind: Kind of the actor.
        name: Name of the actor in Ray.
        cluster: Name of the cluster.
        settings: Settings of its service, as JSON values.
        listen: Host and port on which it listens.
        advertised: Host and port that other processes use.
        resource: Ray resource that binds it to a node.
        slots: Whole units of the resource that it takes; 0 for an actor that only needs to run on its node.
        store: Directory of a broker's store; None for other kinds.
        place: Key path of its entry in the topology, for error messages.
    """

    kind: ProcessKind
    name: str
    cluster: str
    settings: Mapping[str, Any]
    listen: tuple[str, int]
    advertised: tuple[str, int]
    resource: str
    store: str | None = None
    place: str = ""
    slots: int = 0

    @property
    def address(self) -> str:
        """Return the advertised address as `host:port`."""
        return f"{self.advertised[0]}:{self.advertised[1]}"

    @property
    def ha_listen(self) -> tuple[str, int]:
        """Return host and port on which a broker listens for slaves; 0 if the port is closed or unknown."""
        # Not validated: the settings of a running actor may be those of another code version.
        settings = BrokerSettings.model_construct(None, **self.settings)
        is_known = self.store is not None and (self.listen[1] or settings.ha_listen_port)
        return self.listen[0], ha_port_of(settings, self.listen[1]) if is_known else 0

    @property
    def is_slave(self) -> bool:
        """Return True for a broker that follows the master of its group."""
        return self.settings.get("role") == SLAVE

    @property
    def replica_kind(self) -> type[Replica]:
        """Return what kind of replica a broker is."""
        return kind_of(self.settings)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values, as passed to the actor and contained in its status."""
        return {
            "kind": self.kind.name, "name": self.name, "cluster": self.cluster,
            "settings": dict(self.settings), "listen": list(self.listen), "advertised": list(self.advertised),
            "resource": self.resource, "store": self.store, "slots": self.slots,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any], kinds: Mapping[str, ProcessKind]) -> ActorSpec:
        """Return the spec that `to_json` encoded, without `place`. Raises KeyError for an unknown kind."""
        listen, advertised = data["listen"], data["advertised"]
        return cls(
            kinds[data["kind"]], data["name"], data["cluster"], data["settings"], (listen[0], listen[1]),
            (advertised[0], advertised[1]), data["resource"], data["store"],
            slots=data.get("slots", 0),
        )  # fmt: skip


def creation_order(spec: ActorSpec | None) -> float:
    """Return the place of an actor in the order of creation; actors without a known spec are the last."""
    return math.inf if spec is None else spec.kind.order


def listener_specs(kind: ProcessKind, deployment: Deployment) -> Iterator[ActorSpec]:
    """Yield the specs of processes that listen on a port. Raises TopologyError if a setting is invalid."""
    topology, _, resources, source = deployment
    model, moved = kind.model, moved_metrics_ports(topology)
    for path, name, entry in topology.listeners():
        if path[0] != kind.key:
            continue
        settings = {
            key: value for key, value in _placed(deployment, name, entry).items() if key in model.model_fields
        }
        if isinstance(entry, SingleBroker):
            settings |= broker_settings(topology, entry, path, source)
        else:
            settings |= checked(model, entry.settings, (*path, "settings"), source, settings)
            if RECEIVERS in model.model_fields and topology.advertised(entry) != _listened(topology, entry):
                settings[RECEIVERS] = [*settings.get(RECEIVERS, ()), address(topology, entry)]
        if name in moved:
            settings["metrics_port"] = moved[name]
        yield ActorSpec(
            kind,
            name,
            topology.cluster,
            settings,
            _listened(topology, entry),
            topology.advertised(entry),
            resources.get(name, ""),
            settings.get("store_root"),
            f"{source.place(path)}: {show(path)}",
            slots=1 if isinstance(entry, ElasticBroker) else 0,
        )


def _listened(topology: Topology, entry: Listener) -> tuple[str, int]:
    return topology.host_of(entry), entry.listen_port


def _placed(deployment: Deployment, name: str, entry: Listener) -> dict[str, Any]:
    """Return the settings that are keys of the topology itself; a process gets those that its model has."""
    topology, home, _, _ = deployment
    settings: dict[str, Any] = {
        "listen_host": topology.host_of(entry),
        "listen_port": entry.listen_port,
        "advertised_host": topology.advertised(entry)[0],
        "advertised_port": topology.advertised(entry)[1] or None,
        "cluster_name": topology.cluster,
        "nameservers": [address(topology, each) for each in topology.nameservers],
        "rebalancers": [address(topology, each) for each in topology.rebalancers],
        "data_dir": str(home / name),
    }
    if isinstance(entry, SingleBroker):
        settings |= {"broker_name": entry.name, "store_root": str(topology.store_of(entry, home))}
    return settings


def autoscaler_specs(kind: ProcessKind, deployment: Deployment) -> Iterator[ActorSpec]:
    """Yield the spec of the autoscaler, if the topology has one. Raises TopologyError."""
    topology, home, resources, source = deployment
    if topology.autoscale is None:
        return
    path: KeyPath = (kind.key,)
    index, entry = next(topology.elastic(), (-1, None))
    if entry is None:
        raise source.error([(path, "there are no elastic brokers; add {pattern: …, max: …} to brokers")])
    given = dict(topology.autoscale)
    limits = {"min": max(entry.min, 1), "max": entry.max}
    if isinstance(given.get("rules"), Mapping):
        given["rules"] = limits | given["rules"]
    settings = checked(kind.model, given, path, source)
    highest = settings["rules"]["max"]
    if highest > entry.max:
        text = f"{highest} exceeds brokers[{index}].max {entry.max}; lower it or raise that"
        raise source.error([((*path, "rules", "max"), text)])
    settings["data_dir"] = str(home / kind.name)
    settings["home"] = str(home)
    settings["topology"] = topology.plain()
    if kind.name in (moved := moved_metrics_ports(topology)):
        settings["metrics_port"] = moved[kind.name]
    none = ("", 0)
    yield ActorSpec(
        kind, kind.name, topology.cluster, settings, none, none, resources.get(kind.name, ""),
        place=f"{source.place(path)}: {show(path)}",
    )  # fmt: skip


def _vip_port_is_free(topology: Topology, broker: SingleBroker) -> bool:
    """Return True if no actor of the topology listens on the VIP port of `broker`.

    That actor may start later, so the broker must not take its port.
    """
    taken = {(topology.host_of(entry), entry.listen_port) for _, _, entry in topology.listeners()}
    return (topology.host_of(broker), broker.listen_port - VIP_PORT_DISTANCE) not in taken


def address(topology: Topology, entry: Listener) -> str:
    """Return the advertised address as `host:port`."""
    host, port = topology.advertised(entry)
    return join_address(host, port)


def broker_settings(
    topology: Topology, broker: SingleBroker, path: KeyPath, source: Source
) -> dict[str, Any]:
    """Return a broker's settings without addresses: those of the topology, overridden by its own.

    Raises TopologyError if a setting is invalid.
    """
    given: dict[str, Any] = {"auto_create_topics": topology.auto_create_topics}
    if waits := list(_lake_waits(topology)):
        given["retention_waits_for"] = waits
    if not _vip_port_is_free(topology, broker):
        given["vip_channel"] = False
    stored: dict[str, Any] = {"flush": topology.flush}
    for at, settings in (
        (("broker_settings",), topology.broker_settings),
        ((*path, "settings"), broker.settings),
    ):
        plain, of_store = split_settings(settings)
        given |= checked(BrokerSettings, plain, at, source)
        if "retention_waits_for" in plain:
            given["retention_waits_for"] = sorted({*given["retention_waits_for"], *waits})
        stored |= checked(StoreSettings, of_store, at, source)
    if isinstance(broker, BrokerReplica) and broker.elects_master:
        given |= {"replica": broker.replica} if broker.replica else {}
        given |= {"replication": RAFT, "raft_members": list(broker.raft_members)}
        given.setdefault("route_refresh_ms", topology.route_refresh_ms)
        if stored["flush"] != "sync":
            text = (
                f"raft needs flush: sync, not {stored['flush']}: a majority must not lose what it has "
                "acknowledged"
            )
            raise source.error([((*path, "replication"), text)])
    elif isinstance(broker, BrokerReplica):
        given |= _replica_settings(broker)
        if is_ha_closed(BrokerSettings.model_validate(given)):
            text = (
                "authentication_enabled closes the HA port, so the slaves could not connect; set ha_tls, or "
                "restrict the port to the machines of the slaves by other means and set "
                "ha_allow_unauthenticated: true"
            )
            raise source.error([((*path, "replication"), text)])
        _check_authorities(BrokerSettings.model_validate(given), path, source)
    return given | {STORE_KEY: stored}


def _lake_waits(topology: Topology) -> Iterator[str]:
    """Yield what retention waits for: topics and group of each lake, whose settings are validated later."""
    for _, name, settings in topology.workers():
        topics = settings.get("topics")
        if settings.get("retention_waits", True) and isinstance(topics, list):
            yield from (f"{topic}@{lake_group(name)}" for topic in topics)


def lake_group(actor: str) -> str:
    """Return the consumer group whose committed offsets are those of a lake's tables."""
    return f"raymq-{actor}"


def _check_authorities(settings: BrokerSettings, path: KeyPath, source: Source) -> None:
    """Raise TopologyError if clients could pass for replicas. Files of other machines are checked there."""
    cas = settings.tls_ca, settings.tls_client_ca
    if settings.uses_ha_tls and (cas[0] == cas[1] or all(each and each.exists() for each in cas)):
        try:
            check_peer_ca(settings)
        except StoreError as error:
            raise source.error([((*path, "replication"), str(error))]) from None


def _replica_settings(broker: BrokerReplica) -> dict[str, Any]:
    """Return the settings that depend on the replica. The settings of a master are those of one broker."""
    given: dict[str, Any] = {"replica": broker.replica} if broker.replica else {}
    if broker.group_epoch:
        given["group_epoch"] = broker.group_epoch
    if broker.replica != broker.master:
        return given | {"role": SLAVE}
    given["replication"] = broker.replication
    if broker.in_sync_replicas is not None:
        given["in_sync_replicas"] = broker.in_sync_replicas
    return given


def checked(
    model: type[BaseModel],
    values: Mapping[str, Any],
    at: KeyPath,
    source: Source,
    placed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `values` validated by `model`, under the model's field names. Raises TopologyError.

    `placed` are settings that the model may require and that are not among `values`.
    """
    placed = placed or {}
    try:
        found = model.model_validate({**placed, **values})
    except ValidationError as error:
        raise source.error(explain_invalid(error, model, at)) from None
    return found.model_dump(mode="json", include=found.model_fields_set - placed.keys())
