"""Model of an elastic cluster: brokers with capped rates, nodes with boot delays, one queue of messages each.

    node     requested ──boot_delay_s──→ joined ──unused for idle_timeout_s──→ removed
    broker   starting ──broker_start_s──→ running ──drain──→ draining ──all consumed──→ removed

Producers spread the load evenly over the running brokers and keep what these do not accept. A running
broker gets messages once the clients have refreshed the routes. Time advances in steps of at most 1 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.autoscale.experiment import Experiment
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING, BrokerSample, BrokerState, Sample
from cluster.autoscale.series import Point

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
    """A broker: its node, when it starts to run and to drain, and its messages."""

    name: str
    node: ModelNode
    runs_s: float
    state: BrokerState = STARTING
    drains_s: float = math.inf
    stored: float = 0.0
    received: float = 0.0
    delivered: float = 0.0


class ClusterModel:
    """A simulated cluster. `observe`, `create` and `drain` are the ports of the controller."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._brokers: dict[str, ModelBroker] = {}
        self._nodes: list[ModelNode] = []
        self._waiting = 0.0
        self._offered = 0.0
        self._sampled_s = 0.0
        self.now_s = 0.0
        self.last = Point(0.0)

    # ---- ports of the controller ---------------------------------------------------------------------------

    def observe(self) -> Sample:
        """Return the figures since the previous call; `last` is the point of the series at this time."""
        seconds = max(self.now_s - self._sampled_s, 1e-9)
        sample = Sample(self.now_s, tuple(self._sample(each, seconds) for each in self._brokers.values()))
        self.last = self._point(sample, seconds)
        self._offered, self._sampled_s = 0.0, self.now_s
        for broker in self._brokers.values():
            broker.received = broker.delivered = 0.0
        return sample

    def create(self, name: str) -> None:
        """Start a broker on an unused node, or on a new one."""
        unused = [node for node in self._nodes if node.unused_since_s is not None]
        if unused:
            node = min(unused, key=lambda each: each.joins_s)
            node.unused_since_s = None
        else:
            node = ModelNode(self.now_s + self._experiment.boot_delay_s)
            self._nodes.append(node)
        runs_s = max(node.joins_s, self.now_s) + self._experiment.model.broker_start_s
        self._brokers[name] = ModelBroker(name, node, runs_s)

    def drain(self, name: str) -> None:
        """Let a broker accept no more messages. It is removed once its messages are consumed."""
        broker = self._brokers[name]
        if broker.state == STARTING:
            self._remove(broker)
        else:
            broker.state, broker.drains_s = DRAINING, self.now_s

    # ---- time ----------------------------------------------------------------------------------------------

    def start(self, count: int) -> None:
        """Begin with `count` brokers that are running and known to the clients."""
        for number in range(count):
            self.create(f"broker-{number}")
        for broker in self._brokers.values():
            broker.node.joins_s = 0.0
            broker.runs_s = -self._experiment.clients.route_refresh_s
            broker.state = RUNNING

    def advance(self, until_s: float) -> None:
        """Let the time pass until `until_s`."""
        while self.now_s < until_s:
            step_s = min(STEP_S, until_s - self.now_s)
            self._flow(step_s)
            self.now_s += step_s
            self._change_states()

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
        writable = [b for b in self._brokers.values() if b.state == RUNNING and b.runs_s <= known_s]
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

    def _change_states(self) -> None:
        experiment = self._experiment
        # clients must have seen that a draining broker leaves
        known_s = self.now_s - experiment.clients.route_refresh_s
        for broker in list(self._brokers.values()):
            if broker.state == STARTING and self.now_s >= broker.runs_s:
                broker.state = RUNNING
            elif broker.state == DRAINING and broker.stored < EMPTY and broker.drains_s <= known_s:
                self._remove(broker)
        self._nodes = [
            node
            for node in self._nodes
            if node.unused_since_s is None or self.now_s < node.unused_since_s + experiment.idle_timeout_s
        ]

    def _remove(self, broker: ModelBroker) -> None:
        broker.node.unused_since_s = max(self.now_s, broker.node.joins_s)
        del self._brokers[broker.name]

    # ---- figures -------------------------------------------------------------------------------------------

    def _sample(self, broker: ModelBroker, seconds: float) -> BrokerSample:
        out_per_s = broker.delivered / seconds
        return BrokerSample(
            broker.name,
            broker.state,
            broker.received / seconds,
            out_per_s,
            broker.stored,
            broker.stored / (out_per_s or self._experiment.caps.broker_per_s),
        )

    def _point(self, sample: Sample, seconds: float) -> Point:
        states = [broker.state for broker in sample.brokers]
        joined = sum(node.joins_s <= self.now_s for node in self._nodes)
        return Point(
            time_s=self.now_s,
            offered_per_s=self._offered / seconds,
            accepted_per_s=sample.in_per_s,
            delivered_per_s=sample.out_per_s,
            waiting_messages=self._waiting,
            lag_messages=sample.lag_messages,
            brokers_running=states.count(RUNNING),
            brokers_starting=states.count(STARTING),
            brokers_draining=states.count(DRAINING),
            nodes=joined,
            nodes_booting=len(self._nodes) - joined,
        )
