"""Model of an elastic cluster: brokers with capped rates, nodes with boot delays, one queue of messages each.

    node     requested ──boot_delay_s + node_join_s──→ joined ──unused for idle_timeout_s──→ removed
    broker   requested ──broker_start_s──→ serving ──equip──→ running ──drain──→ draining ──remove──→ gone

Producers spread the load evenly over the writable brokers and keep what these do not accept. They use a new
broker, and leave a draining one, once they have refreshed their routes. Messages flow in steps of 1 s, or of
half of a longer sample interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.series import Point
from cluster.autoscale.controller import Observed
from cluster.autoscale.samples import BrokerSample
from cluster.control.drain import HEARTBEAT_S, DrainProgress, GroupLag

CLOSED = "close"
"""Drain step from which on a broker refuses messages."""

STEP_S = 1.0
EMPTY = 0.5
"""A rest of less than half a message is delivered at once."""


@dataclass(slots=True)
class ModelNode:
    """A node: when it joins the cluster, and since when it runs no broker (None while it runs one)."""

    joins_s: float
    unused_since_s: float | None = None


@dataclass(slots=True)
class ModelBroker:
    """A broker: node, times of its states, drain step (`start`, `close` or empty), and messages."""

    name: str
    node: ModelNode
    runs_s: float
    equipped_s: float = math.inf
    drain_step: str = ""
    drains_s: float = math.inf
    stored: float = 0.0
    received: float = 0.0
    received_before: float = 0.0
    delivered: float = 0.0


class ClusterModel:
    """A simulated cluster; the `Fleet` of the controller. Time passes only in `advance`.

    Attributes:
        now_s: Time of the run, in seconds.
        last: The point of the series at the last call of `observe`.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.now_s = 0.0
        self.last = Point(0.0)
        self._experiment = experiment
        self._brokers: dict[str, ModelBroker] = {}
        self._nodes: list[ModelNode] = []
        self._waiting = 0.0
        self._offered = 0.0
        self._sampled_s = 0.0

    # ---- the controller's fleet ----------------------------------------------------------------------------

    def observe(self) -> Sequence[Observed]:
        """Return the brokers, with their rates since the previous call."""
        seconds = max(self.now_s - self._sampled_s, 1e-9)
        found = [
            Observed(
                self._figures(each, seconds),
                is_serving=self.now_s >= each.runs_s,
                is_draining=bool(each.drain_step),
            )
            for each in self._brokers.values()
        ]
        self.last = self._point(seconds)
        self._offered, self._sampled_s = 0.0, self.now_s
        for broker in self._brokers.values():
            broker.received_before += broker.received
            broker.received = broker.delivered = 0.0
        return found

    def create(self, existing: Sequence[str]) -> str:
        """Start a broker on an unused node, or on a new one. Return its name."""
        name = next(name for number in count() if (name := f"broker-{number}") not in existing)
        unused = [node for node in self._nodes if node.unused_since_s is not None]
        if unused:
            node = min(unused, key=lambda each: each.joins_s)
            node.unused_since_s = None
        else:
            joins_s = self.now_s + self._experiment.boot_delay_s + self._experiment.model.node_join_s
            node = ModelNode(joins_s)
            self._nodes.append(node)
        runs_s = max(node.joins_s, self.now_s) + self._experiment.model.broker_start_s
        self._brokers[name] = ModelBroker(name, node, runs_s)
        return name

    def equip(self, name: str) -> None:
        """Create the topic on a broker; clients use it from their next route refresh on."""
        broker = self._brokers[name]
        broker.equipped_s = min(broker.equipped_s, self.now_s)

    def drain(self, name: str, step: str) -> DrainProgress:
        """Begin, continue or cancel a drain, as a broker does, and return its progress."""
        broker = self._brokers[name]
        if step == "cancel":
            broker.drain_step, broker.drains_s = "", math.inf
        else:
            broker.drain_step = step
            broker.drains_s = min(broker.drains_s, self.now_s)
        clients = self._experiment.clients
        # A rest of less than one message does not count.
        groups = [GroupLag("experiment", clients.consumers, int(broker.stored))]
        received = round(broker.received_before + broker.received)
        return DrainProgress(self.now_s - broker.runs_s, received, clients.producers, groups)

    def export(self, name: str) -> bool:
        """Return True: the model has no messages to export."""
        return True

    def remove(self, name: str, unread: Mapping[str, int] | None) -> None:
        """Stop a broker. `unread` is not used: the model has one group, which is online."""
        broker = self._brokers.pop(name)
        broker.node.unused_since_s = max(self.now_s, broker.node.joins_s)

    def replace(self, name: str) -> None:
        """Do nothing: nodes of the model do not fail."""

    # ---- time ----------------------------------------------------------------------------------------------

    def start(self, count: int) -> None:
        """Begin with `count` brokers that are running and known to the clients."""
        for number in range(count):
            self.create([f"broker-{each}" for each in range(number)])
        for broker in self._brokers.values():
            broker.node.joins_s = 0.0
            broker.runs_s = -HEARTBEAT_S
            broker.equipped_s = -self._experiment.clients.route_refresh_s

    def advance(self, until_s: float) -> None:
        """Let the time pass until `until_s`."""
        longest_s = max(STEP_S, self._experiment.sample_interval_s / 2)
        while self.now_s < until_s:
            step_s = min(longest_s, until_s - self.now_s)
            self._flow(step_s)
            self.now_s += step_s
            self._remove_unused_nodes()

    @property
    def is_empty(self) -> bool:
        """Return True if no message waits or is stored."""
        return self._waiting + sum(broker.stored for broker in self._brokers.values()) < 1

    def _flow(self, step_s: float) -> None:
        caps, clients = self._experiment.caps, self._experiment.clients
        offered = self._experiment.offered_per_s(self.now_s) * step_s
        self._offered += offered
        self._waiting += offered
        known_s = self.now_s - clients.route_refresh_s
        writable = [
            broker
            for broker in self._brokers.values()
            if broker.equipped_s <= known_s < broker.drains_s and broker.drain_step != CLOSED
        ]
        limit = caps.broker_per_s * step_s
        share = min(self._waiting / len(writable), limit) if writable else 0.0
        self._waiting = max(self._waiting - share * len(writable), 0.0)
        for broker in writable:
            broker.stored += share
            broker.received += share
        wanted = sum(min(broker.stored, limit) for broker in self._brokers.values())
        consumable = clients.consumers * caps.consumer_per_s * step_s
        part = min(consumable / wanted, 1.0) if wanted > 0 else 0.0
        for broker in self._brokers.values():
            delivered = min(broker.stored, limit) * part
            if broker.stored - delivered < EMPTY:
                delivered = broker.stored
            broker.stored -= delivered
            broker.delivered += delivered

    def _remove_unused_nodes(self) -> None:
        timeout_s = self._experiment.idle_timeout_s
        self._nodes = [
            node
            for node in self._nodes
            if node.unused_since_s is None or self.now_s < node.unused_since_s + timeout_s
        ]

    # ---- figures -------------------------------------------------------------------------------------------

    def _figures(self, broker: ModelBroker, seconds: float) -> BrokerSample:
        out_per_s = broker.delivered / seconds
        return BrokerSample(
            broker.name,
            in_per_s=broker.received / seconds,
            out_per_s=out_per_s,
            lag_messages=broker.stored,
            lag_seconds=broker.stored / (out_per_s or self._experiment.caps.broker_per_s),
        )

    def _point(self, seconds: float) -> Point:
        brokers = self._brokers.values()
        draining = sum(bool(each.drain_step) for each in brokers)
        running = sum(each.equipped_s <= self.now_s and not each.drain_step for each in brokers)
        joined = sum(node.joins_s <= self.now_s for node in self._nodes)
        return Point(
            time_s=self.now_s,
            offered_per_s=self._offered / seconds,
            accepted_per_s=sum(each.received for each in brokers) / seconds,
            delivered_per_s=sum(each.delivered for each in brokers) / seconds,
            waiting_messages=self._waiting,
            lag_messages=sum(each.stored for each in brokers),
            brokers_running=running,
            brokers_starting=len(brokers) - running - draining,
            brokers_draining=draining,
            nodes=joined,
            nodes_booting=len(self._nodes) - joined,
        )
