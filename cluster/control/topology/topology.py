"""The typed model of a topology: nameservers, brokers, rebalancers and gateways, with addresses and settings.

Problems are collected as (key path, message) pairs, so that the reader of the file can add file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from actors.wire.settings_text import HostName
from cluster.views.replicas import kind_of

DEFAULT_CLUSTER = "DefaultCluster"
DEFAULT_NAMESPACE = "raymq"
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
PORT_STEP = 10
"""Distance between the ports of two elastic brokers or replicas; RocketMQ's VIP port is 2 below each of them,
and the HA port 1 above.
"""

MAX_PORT = 65_535
REPLICAS_MAX = 16
REPLICA_KEYS = ("replicas", "replication", "in_sync_replicas", "resources", "replicas_on_one_node")
"""Keys of an entry of `brokers` that has replicas."""
BROKER_TAG, ELASTIC_TAG = "<broker>", "<elastic>"
"""Parts of pydantic's error locations that select the model of an entry of `brokers`; not shown to users."""

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
    "data_dir": "none: it is a directory below RAYMQ_HOME", "home": "none: it is RAYMQ_HOME",
    "group": "none: it is raymq-lake-<index of the lake>",
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


Entry = TypeVar("Entry", bound="Listener")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Listener(_Model):
    """An actor that listens on a port: its address, its advertised address, its node and its settings.

    `listen_port` 0 selects a free port, once. `resource` is a Ray resource of the node that runs the actor;
    without it the actor runs on the head node. `settings` are those of its service.
    """

    listen_host: HostName | None = None
    listen_port: Port = 0
    advertised_host: HostName | None = None
    advertised_port: Port | None = None
    resource: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    def actor_name(self, index: int) -> str:
        """Return the name of the actor; `index` is the place of this entry in its list."""
        return f"{type(self).__name__.lower()}-{index}"

    def members(self) -> Sequence[Listener]:
        """Return the entries of the actors that this entry stands for."""
        return [self]


class Nameserver(Listener):
    """A nameserver, named by its index in the list."""

    listen_port: Port = 9876


class Rebalancer(Listener):
    """A rebalancer. Only brokers connect to it, so its port may change."""


class Gateway(Listener):
    """A gateway for gRPC clients, named by its index in the list."""

    listen_port: Port = 8081


class Console(Listener):
    """A web console (`cluster.console`), named by its index in the list."""

    listen_port: Port = 8085


class SingleBroker(Listener):
    """A broker group. `store` replaces `<store_root>/<name>-<replica>`; `settings` override all brokers'.

    With `replicas`, the first one is the master, and the others are its slaves, until another is promoted.
    Replica n listens on `listen_port` + 10 n, has the resource n of `resources`, and its store is `store`
    with `-<n>` appended, except for replica 0. `listen_host: node` stands for the address of its node.
    `replication` and `in_sync_replicas` are the settings of the master; with `raft` the replicas elect it.
    """

    name: Name
    listen_port: Port = 10911
    store: Path | None = None
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 1
    replication: Literal["async", "sync", "raft"] | None = None
    in_sync_replicas: Annotated[int, Field(ge=2, le=REPLICAS_MAX)] | None = None
    resources: list[str] | None = None
    replicas_on_one_node: bool = False

    @property
    def is_replicated(self) -> bool:
        """Return True if the entry has keys of a group, rather than of a single broker."""
        return self.replicas > 1 or self.replication is not None

    @property
    def elects_master(self) -> bool:
        """Return True if the replicas elect their master."""
        return kind_of({"replication": self.replication}).votes

    def actor_name(self, index: int) -> str:
        """Return the name of the broker with its replica number."""
        return f"{self.name}-0"

    def members(self) -> Sequence[SingleBroker]:
        """Return the replicas; a single broker is its only one."""
        if not self.is_replicated:
            return [self]
        return [self.member(replica) for replica in range(self.replicas)]

    def member(self, replica: int) -> BrokerReplica:
        """Return the entry of one replica of a group."""
        given = {name: getattr(self, name) for name in SingleBroker.model_fields}
        if replica:
            given["listen_port"] = self.listen_port and self.listen_port + PORT_STEP * replica
            given["store"] = self.store and self.store.with_name(f"{self.store.name}-{replica}")
        if self.resources and replica < len(self.resources):
            given["resource"] = self.resources[replica]
        return BrokerReplica.model_construct(**given, replica=replica)


class BrokerReplica(SingleBroker):
    """One replica of a group. `master` is the number of its master since the promotion `group_epoch`.

    `raft_members` are the replicas of a Raft group, as `STORE_ID@HOST:PORT`, in the order of their numbers.
    """

    replica: int
    master: int = 0
    group_epoch: int = 0
    raft_members: Sequence[str] = ()

    def actor_name(self, index: int) -> str:
        """Return the name of the broker with its replica number."""
        return f"{self.name}-{self.replica}"

    def members(self) -> Sequence[SingleBroker]:
        """Return this replica."""
        return [self]


class RunningReplicas(SingleBroker):
    """A broker group with the replicas that run or are to be started, with their ports."""

    brokers: Sequence[BrokerReplica]

    def members(self) -> Sequence[SingleBroker]:
        """Return `brokers`."""
        return self.brokers


class ElasticBroker(SingleBroker):
    """One broker of an `ElasticBrokers` entry. It takes a whole unit of its resource."""

    def members(self) -> Sequence[SingleBroker]:
        """Return this broker."""
        return [self]


def _check_pattern(pattern: str) -> str:
    if pattern.count("{n}") != 1:
        raise ValueError(f"{pattern!r} must contain {{n}} once, for example broker-{{n}}")
    _check_name(pattern.replace("{n}", "1"))
    return pattern


class ElasticBrokers(Listener):
    """Brokers whose number changes while the cluster runs; each takes one whole unit of `resource`.

    Broker number n is named by `pattern` and listens on `listen_port` + 10 (n - 1); 0 selects a free port.
    `listen_host: node` stands for the address of the node on which Ray places the broker. `store_root`
    replaces the topology's; a store is `<store_root>/<name>-0` on the broker's node.
    """

    pattern: Annotated[str, AfterValidator(_check_pattern)]
    min: Annotated[int, Field(ge=0)] = 1
    max: Annotated[int, Field(ge=1, le=1000)]
    resource: str
    listen_port: Port = 10911
    store_root: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_one_replica(cls, given: Any) -> Any:
        if isinstance(given, dict) and (found := [key for key in REPLICA_KEYS if key in given]):
            raise ValueError(
                f"elastic brokers have one replica each, so {', '.join(found)} is not possible; list a "
                "broker with replicas by its name: {name: …, replicas: 2}"
            )
        return given

    def name_of(self, number: int) -> str:
        """Return the name of broker `number`, which begins at 1."""
        return self.pattern.replace("{n}", str(number))

    def number_of(self, actor: str) -> int | None:
        """Return the number of the broker with this actor name; None for an actor of another entry."""
        numbers = range(1, self.max + 1)
        return next((number for number in numbers if f"{self.name_of(number)}-0" == actor), None)

    def broker(self, number: int) -> ElasticBroker:
        """Return the entry of broker `number`."""
        name = self.name_of(number)
        return ElasticBroker(
            name=name,
            listen_host=self.listen_host,
            listen_port=self.listen_port and self.listen_port + PORT_STEP * (number - 1),
            advertised_host=self.advertised_host,
            resource=self.resource,
            settings=self.settings,
            store=None if self.store_root is None else self.store_root / f"{name}-0",
        )

    def members(self) -> Sequence[ElasticBroker]:
        """Return the brokers that `raymq up` starts: the first `min`."""
        return [self.broker(number) for number in range(1, self.min + 1)]


class RunningElasticBrokers(ElasticBrokers):
    """An elastic entry with the brokers that run or are to be started, in place of the first `min`."""

    brokers: Sequence[ElasticBroker]

    def members(self) -> Sequence[ElasticBroker]:
        """Return `brokers`."""
        return self.brokers


def _tag_of(entry: Any) -> str:
    is_elastic = "pattern" in entry if isinstance(entry, dict) else isinstance(entry, ElasticBrokers)
    return ELASTIC_TAG if is_elastic else BROKER_TAG


BrokerEntry = Annotated[
    Annotated[SingleBroker, Tag(BROKER_TAG)] | Annotated[ElasticBrokers, Tag(ELASTIC_TAG)],
    Discriminator(_tag_of),
]


def _as_list(value: Any) -> Any:
    """Return a single value, such as one elastic entry or one topic, as a list."""
    return [value] if isinstance(value, dict | str | ElasticBrokers) else value


class RayStart(_Model):
    """Connection to Ray: `auto` uses a running Ray or starts one, `new` starts one, or an address."""

    address: str = "auto"
    port: Port = 6379
    dashboard_port: Port = 8265
    num_cpus: int | None = Field(None, ge=1)
    object_store_memory_bytes: int | None = Field(None, ge=80 * 1024 * 1024)


class Topology(_Model):
    """A whole cluster. `route_refresh_ms` is that of the slowest client; rolling restarts wait as long.

    `insecure` permits processes that listen on public addresses without authentication. `elastic_topics`
    (names, or "*" for all) are created on each elastic broker that is added later. `autoscale` has the
    settings of the autoscaler (`cluster.autoscale.autoscaler_settings`), each of `lakes` those of a lake
    (`jobs.lake_service.process_settings`), and `resource`, a Ray resource of its node.
    """

    cluster: Name = DEFAULT_CLUSTER
    namespace: Name = DEFAULT_NAMESPACE
    store_root: Path = Path("store")
    listen_host: HostName = "127.0.0.1"
    insecure: bool = False
    flush: Literal["sync", "async"] = "sync"
    auto_create_topics: bool = True
    route_refresh_ms: Annotated[int, Field(ge=0)] = 30_000
    broker_settings: dict[str, Any] = Field(default_factory=dict)
    nameservers: Annotated[list[Nameserver], Field(min_length=1)] = [Nameserver()]
    brokers: Annotated[list[BrokerEntry], Field(min_length=1), BeforeValidator(_as_list)]
    rebalancers: Annotated[list[Rebalancer], Field(min_length=1)] = [Rebalancer()]
    gateways: list[Gateway] = []
    consoles: list[Console] = []
    elastic_topics: Annotated[list[str], BeforeValidator(_as_list)] = []
    autoscale: dict[str, Any] | None = None
    lakes: list[dict[str, Any]] = []
    ray: RayStart = RayStart()

    def listeners(self) -> Iterator[tuple[KeyPath, str, Listener]]:
        """Yield (key path, actor name, entry) of all actors."""
        for key, entries in self._lists().items():
            for index, given in enumerate(entries):
                for entry in given.members():
                    yield (key, index), entry.actor_name(index), entry

    def _lists(self) -> dict[str, list[Listener]]:
        """Return the keys whose values are lists of processes that listen, with these lists."""
        values = {key: getattr(self, key) for key in type(self).model_fields}
        return {
            key: value
            for key, value in values.items()
            if isinstance(value, list) and all(isinstance(entry, Listener) for entry in value)
        }

    def workers(self) -> Iterator[tuple[KeyPath, str, dict[str, Any]]]:
        """Yield (key path, actor name, settings) of the lakes, which listen on no port for clients."""
        for index, settings in enumerate(self.lakes):
            yield ("lakes", index), f"lake-{index}", settings

    def elastic(self) -> Iterator[tuple[int, ElasticBrokers]]:
        """Yield (index, entry) of the elastic entries of `brokers`."""
        for index, entry in enumerate(self.brokers):
            if isinstance(entry, ElasticBrokers):
                yield index, entry

    def with_elastic(self, numbers: Callable[[ElasticBrokers], Iterable[int]]) -> Topology:
        """Return a copy in which each elastic entry has the brokers with these numbers."""
        entries: list[SingleBroker | ElasticBrokers] = list(self.brokers)
        for index, entry in self.elastic():
            members = [entry.broker(number) for number in sorted(set(numbers(entry)))]
            entries[index] = _running(entry, members)
        return self.model_copy(update={"brokers": entries})

    def with_running(self, actors: Collection[str]) -> Topology:
        """Return a copy whose elastic brokers are those among `actors`, and more if those are below `min`."""

        def numbers(entry: ElasticBrokers) -> set[int]:
            found = {number for actor in actors if (number := entry.number_of(actor)) is not None}
            for number in range(1, entry.max + 1):
                if len(found) < entry.min:
                    found.add(number)
            return found

        return self.with_elastic(numbers)

    def plain(self) -> dict[str, Any]:
        """Return the topology as JSON values, from which it can be read again, without running numbers."""
        brokers: list[SingleBroker | ElasticBrokers] = []
        for entry in self.brokers:
            model = ElasticBrokers if isinstance(entry, ElasticBrokers) else SingleBroker
            brokers.append(
                model.model_construct(**{name: getattr(entry, name) for name in model.model_fields})
            )
        return self.model_copy(update={"brokers": brokers}).model_dump(mode="json", exclude={"autoscale"})

    def host_of(self, entry: Listener) -> str:
        """Return the host that an entry binds to."""
        return entry.listen_host or self.listen_host

    def advertised(self, entry: Listener) -> tuple[str, int]:
        """Return the (host, port) that clients and other actors connect to."""
        return entry.advertised_host or self.host_of(entry), entry.advertised_port or entry.listen_port

    def store_of(self, broker: SingleBroker, home: Path) -> Path:
        """Return the absolute directory of a broker's store."""
        return home / (broker.store or self.store_root / broker.actor_name(0))

    def with_masters(self, masters: Mapping[str, tuple[int, int]]) -> Topology:
        """Return a copy in which groups have another master than replica 0: (epoch, replica) by name."""
        changes = {
            name: {"master": replica, "group_epoch": epoch} for name, (epoch, replica) in masters.items()
        }
        return self._with_replicas(lambda replica: changes.get(replica.name, {}))

    def raft_groups(self) -> list[SingleBroker]:
        """Return the groups whose replicas elect their master."""
        return [entry for entry in self.brokers if isinstance(entry, SingleBroker) and entry.elects_master]

    def with_raft_members(self, members: Mapping[str, Sequence[str]]) -> Topology:
        """Return a copy in which the replicas of Raft groups have these members, by actor name."""
        return self._with_replicas(lambda each: {"raft_members": tuple(members.get(each.actor_name(0), ()))})

    def _with_replicas(self, change: Callable[[BrokerReplica], Mapping[str, Any]]) -> Topology:
        """Return a copy in which replicas have the fields that `change` returns for each."""
        entries: list[SingleBroker | ElasticBrokers] = list(self.brokers)
        for index, entry in enumerate(entries):
            if isinstance(entry, SingleBroker) and entry.is_replicated:
                members = [
                    each.model_copy(update=dict(change(each)))
                    for each in entry.members()
                    if isinstance(each, BrokerReplica)
                ]
                entries[index] = _running(entry, members)
        return self.model_copy(update={"brokers": entries})

    def without_master(self, masters: Mapping[str, tuple[int, int]]) -> list[str]:
        """Return why groups would have no master, or a former one; `masters` as for `with_masters`."""
        return [
            f"{entry.name}-{replica} was promoted to the master of {entry.name}, but the topology does not "
            f"have it: promote {entry.name}-0 before you remove it"
            for entry in self.brokers
            if isinstance(entry, SingleBroker)
            for _, replica in [masters.get(entry.name, (0, 0))]
            if replica >= entry.replicas
        ]

    def with_ports(self, ports: Mapping[str, int]) -> Topology:
        """Return a copy in which port 0 is replaced by the port chosen for the actor, by actor name."""

        def settled(index: int, entry: Entry) -> Entry:
            port = entry.listen_port or ports.get(entry.actor_name(index), 0)
            return entry.model_copy(update={"listen_port": port})

        lists = {
            key: [
                _running(entry, [settled(index, each) for each in entry.members()])
                if isinstance(entry, ElasticBrokers)
                or (isinstance(entry, SingleBroker) and entry.is_replicated)
                else settled(index, entry)
                for index, entry in enumerate(entries)
            ]
            for key, entries in self._lists().items()
        }
        return self.model_copy(update=lists)


def _running(entry: Entry, members: Sequence[Any]) -> Entry:
    """Return an entry of several actors with these members."""
    model: Any = RunningElasticBrokers if isinstance(entry, ElasticBrokers) else RunningReplicas
    given = ElasticBrokers if isinstance(entry, ElasticBrokers) else SingleBroker
    fields = {name: getattr(entry, name) for name in given.model_fields}
    settled: Entry = model.model_construct(**fields, brokers=members)
    return settled


def show(path: KeyPath) -> str:
    """Format a key path: `("brokers", 1, "name")` becomes `brokers[1].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
