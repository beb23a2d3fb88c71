"""ElasticFleet: the controller's `Fleet` on a running cluster: Ray actors, and requests over sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.host import ray_port, store_binding
from actors.host.ray_port import ActorMethodFailed, ActorName, ActorNotFound, ActorUnavailable
from actors.host.service_host import State
from cluster.autoscale.broker_export import BrokerExports
from cluster.autoscale.controller import BrokerUnavailable, Observed
from cluster.autoscale.samples import BrokerSample
from cluster.client import Admin
from cluster.client.errors import ClientError
from cluster.control import bindings, fleet
from cluster.control.autoscaler import why_pending
from cluster.control.drain import DrainProgress
from cluster.control.kinds import make_specs
from cluster.control.plan import Running
from cluster.control.preflight import free_ports
from cluster.control.specs import ActorSpec, address
from cluster.control.topology.topology import ElasticBrokers, Topology
from cluster.control.topology.topology_file import Source

OBSERVE_TIMEOUT_S = 3.0
STARTING_TIMEOUT_S = 0.3
"""Timeout for a broker that has never responded: it probably waits for a node, and others must not wait."""

ACTIVE = "active"
ALL_TOPICS = "*"
Failures = (ActorNotFound, ActorUnavailable, ActorMethodFailed)


@dataclass(frozen=True)
class _Counters:
    """Counters of one broker process at one time, from which rates are computed."""

    time_s: float
    pid: int
    messages_in: int
    messages_out: int
    cpu_s: float


class ElasticFleet:
    """The elastic brokers of one entry of a topology. All methods are called by one thread."""

    def __init__(
        self,
        topology: Topology,
        home: Path,
        export_to: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it for the first elastic entry of a topology whose ports are settled.

        Args:
            topology: The topology; its nameservers and rebalancers have their final ports.
            home: Directory of the cluster.
            export_to: Directory to which removed brokers are exported; None: they are not exported.
            clock: Returns the time in monotonic seconds.
        """
        self._topology = topology
        self._home = home
        self._nameservers = [address(topology, each) for each in topology.nameservers]
        self._exports = None if export_to is None else BrokerExports(export_to, self._nameservers)
        self._clock = clock
        self._entry = first_entry(topology)
        self._counters: dict[str, _Counters] = {}
        self._ports: dict[str, int] = {}
        self._replaced: dict[str, str] = {}
        """Lost node of each broker that was created again because of it."""

    # ---- observe -----------------------------------------------------------------------------------------

    def observe(self) -> Sequence[Observed]:
        """Return all elastic brokers of the entry, with their rates since the previous call."""
        names = [
            where
            for where in ray_port.list_actors()
            if where.namespace == self._topology.namespace and self._entry.number_of(where.name) is not None
        ]
        return [found for where in names if (found := self._observe_one(where)) is not None]

    def _observe_one(self, where: ActorName) -> Observed | None:
        name = where.name.removesuffix("-0")
        try:
            timeout_s = OBSERVE_TIMEOUT_S if name in self._ports else STARTING_TIMEOUT_S
            status = ray_port.call(where, fleet.STATUS, timeout_s=timeout_s)
        except ActorNotFound:
            return None
        except (ActorUnavailable, ActorMethodFailed) as error:
            return self._silent(name, str(error))
        actor = fleet.to_running(where, status)
        if actor.state != State.SERVING:
            return Observed(
                BrokerSample(name), False, actor.reason or actor.state, is_misplaced=self._may_move(actor)
            )
        if actor.spec is not None:
            self._ports[name] = actor.spec.listen[1]
        is_draining = actor.details.get("drain_state", ACTIVE) != ACTIVE
        try:
            lag = 0 if is_draining else self._lag(actor)
        except Failures as error:  # it has stopped since: its lag is unknown, not 0
            return self._silent(name, str(error))
        figures = self._figures(name, actor, lag, float(status.get("cpu_s", 0.0)))
        return Observed(figures, is_draining=is_draining)

    def _silent(self, name: str, error: str) -> Observed:
        reason = why_pending(self._entry.resource) or error
        binding = store_binding.find(self._topology.namespace, actor_of(name))
        alive = {node.ip for node in ray_port.nodes()}
        is_lost = binding is not None and binding.node_ip not in alive and reason != error
        # A broker that is bound to a lost node never starts, unless it is created again without that bond.
        is_new = binding is not None and self._replaced.get(name) != binding.node_ip
        return Observed(BrokerSample(name), False, reason, is_misplaced=is_lost and is_new)

    def _may_move(self, actor: Running) -> bool:
        """Return True if a broker does not serve, and its store is on another node that is alive."""
        binding = store_binding.find(self._topology.namespace, actor.name)
        if binding is None or actor.state != State.NOT_SERVING or binding.node_ip == actor.node_ip:
            return False
        return any(node.ip == binding.node_ip for node in ray_port.nodes())

    def _lag(self, actor: Running) -> int:
        """Return the unread messages of the slowest group that has members. Raises `Failures`."""
        progress = DrainProgress.of(fleet.drain(actor.namespace, actor.name, "look"))
        return max((group.unread for group in progress.reading), default=0)

    def _figures(self, name: str, actor: Running, lag: int, cpu_s: float) -> BrokerSample:
        details = actor.details
        now = _Counters(
            self._clock(), actor.pid, int(details["messages_in"]), int(details["messages_out"]), cpu_s
        )
        before, self._counters[name] = self._counters.get(name), now
        if before is None or before.pid != now.pid or now.time_s <= before.time_s:
            return BrokerSample(name, lag_messages=lag, disk_percent=float(details["disk_percent"]))
        elapsed_s = now.time_s - before.time_s
        out_per_s = (now.messages_out - before.messages_out) / elapsed_s
        return BrokerSample(
            name,
            in_per_s=(now.messages_in - before.messages_in) / elapsed_s,
            out_per_s=out_per_s,
            lag_messages=lag,
            lag_seconds=lag / out_per_s if out_per_s > 0 else 0.0,
            disk_percent=float(details["disk_percent"]),
            cpu_percent=100 * (now.cpu_s - before.cpu_s) / elapsed_s,
        )

    # ---- act ---------------------------------------------------------------------------------------------

    def create(self, existing: Sequence[str]) -> str:
        """Create the broker with the lowest number that is not in use, and return its name."""
        for number in range(1, self._entry.max + 1):
            name = self._entry.name_of(number)
            if name not in existing:
                fleet.create(self._topology.namespace, self._spec(number))
                return name
        raise BrokerUnavailable(f"all {self._entry.max} names of {self._entry.pattern} are in use; raise max")

    def equip(self, name: str) -> None:
        """Create the elastic topics on a broker, with the settings that they have on another broker."""
        try:
            with Admin(self._nameservers) as admin:
                if name not in admin.brokers():
                    raise BrokerUnavailable(f"{name} is not registered with the nameservers yet")
                for topic in self._elastic_topics(admin):
                    create_like_others(admin, topic, name)
        except (ClientError, OSError) as error:
            raise BrokerUnavailable(f"cannot create the elastic topics on {name}: {error}") from error
        # If Ray's head is lost, `raymq up` starts the broker again because of this copy.
        bindings.exchange(self._home, self._topology.namespace)

    def _elastic_topics(self, admin: Admin) -> list[str]:
        wanted = self._topology.elastic_topics
        if wanted != [ALL_TOPICS]:
            known = set(admin.topics())
            return [topic for topic in wanted if topic in known]
        return self._user_topics(admin)

    def _user_topics(self, admin: Admin) -> list[str]:
        reserved = {*admin.system_topics(), *admin.brokers(), self._topology.cluster}
        return [each for each in admin.topics() if each not in reserved and not each.startswith("%")]

    def drain(self, name: str, step: str) -> DrainProgress:
        """Send a drain step to a broker and return its progress."""
        if step == "cancel" and self._exports is not None:
            self._exports.forget(name)
        try:
            return DrainProgress.of(fleet.drain(self._topology.namespace, actor_of(name), step))
        except Failures as error:
            raise BrokerUnavailable(str(error)) from error

    def export(self, name: str) -> bool:
        """Export the topics of a drained broker, if that is wanted. Return False until it is finished."""
        if self._exports is None:
            return True
        if not self._exports.is_running(name):
            try:
                with Admin(self._nameservers) as admin:
                    topics = [each for each in self._user_topics(admin) if name in admin.topic_configs(each)]
            except (ClientError, OSError) as error:
                raise BrokerUnavailable(f"cannot list the topics of {name}: {error}") from error
            self._exports.begin(name, topics)
        return self._exports.finish(name)

    def remove(self, name: str, unread: Mapping[str, int] | None) -> None:
        """Stop a broker and keep its store, with its binding as the manifest in `<home>/elastic`.

        A broker with unread messages must find this store again; a drained one may start with an empty one.
        The binding of a broker that never served (`unread` is None) stays: its store may be an older one.
        """
        namespace, actor = self._topology.namespace, actor_of(name)
        try:
            fleet.stop(namespace, actor)
        except ActorUnavailable as error:
            raise BrokerUnavailable(str(error)) from error
        self._ports.pop(name, None)
        if unread is not None:
            store_binding.record_removal(namespace, actor, unread)
            bindings.exchange(self._home, namespace)

    def replace(self, name: str) -> None:
        """Create a broker again; it is bound to the node of its store if that is alive."""
        namespace, actor = self._topology.namespace, actor_of(name)
        number = self._entry.number_of(actor)
        binding = store_binding.find(namespace, actor)
        assert number is not None
        try:
            fleet.stop(namespace, actor)
        except ActorUnavailable as error:
            raise BrokerUnavailable(str(error)) from error
        fleet.create(namespace, self._spec(number))
        self._replaced[name] = binding.node_ip if binding else ""

    def _spec(self, number: int) -> ActorSpec:
        actor = actor_of(self._entry.name_of(number))
        topology = self._topology.with_elastic(lambda entry: [number] if entry is self._entry else [])
        if self._entry.listen_port == 0:
            known = self._ports.get(self._entry.name_of(number))
            topology = topology.with_ports({actor: known or free_ports(["0.0.0.0"])[0]})
        specs = make_specs(topology, self._home, {actor: self._entry.resource}, Source("", {}, {}))
        return next(spec for spec in specs if spec.name == actor)


def first_entry(topology: Topology) -> ElasticBrokers:
    """Return the first elastic entry of a topology."""
    return next(entry for _, entry in topology.elastic())


def actor_of(broker: str) -> str:
    """Return the actor name of an elastic broker, which has one replica."""
    return f"{broker}-0"


def create_like_others(admin: Admin, topic: str, broker: str) -> None:
    """Create a topic on a broker, with the settings that it has on the first other broker."""
    configs = admin.topic_configs(topic)
    if broker in configs or not configs:
        return
    like = next(iter(configs.values()))
    admin.create_topic(
        topic,
        queues=like.write_queue_nums,
        read_queues=like.read_queue_nums,
        perm=like.perm,
        brokers=[broker],
        attributes=like.attributes,
    )
