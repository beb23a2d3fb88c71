"""Measured runs of an experiment: real brokers on nodes that Ray's autoscaler starts on this machine.

Everything runs below the run's own home directory: the Ray head, its nodes, the stores, the topology. The
controller runs in this process, so that its decisions are recorded with the series. All processes are ended
after the run, also on Ctrl-C; what a killed run has left is ended by the next one (`run_home`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cluster import launch
from cluster.autoscale.controller import Controller, Limits
from cluster.autoscale.elastic_fleet import ElasticFleet
from cluster.autoscale.experiment import Experiment
from cluster.autoscale.load import TOPIC, Counts, Load
from cluster.autoscale.nodes.local_ray import HEAD_IP, LocalRay, NodeType
from cluster.autoscale.run import Change, Run
from cluster.autoscale.run_home import run_home
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING
from cluster.autoscale.series import Point
from cluster.client import Admin
from cluster.history.judgement import judge
from cluster.paths import home_of
from cluster.session.ray_session import choose_way, connect, disconnect, is_connected
from cluster.topology.topology import Topology
from cluster.topology.topology_file import load_topology

CLUSTER = "Experiment"
QUEUES_PER_BROKER = 4
DRAIN_TIMEOUT_S = 120.0
LOG_FILE_BYTES = 64 * 1024 * 1024

Progress = Callable[[float], None]


def run_measured(experiment: Experiment, progress: Progress, *, is_elastic: bool) -> Run:
    """Run an experiment with real brokers on this machine.

    Args:
        experiment: The experiment.
        progress: Called with the seconds since the start of the load, after each sample.
        is_elastic: Apply the rules; False: a fixed cluster of `rules.max` brokers, as baseline.

    Raises HeadFailed if Ray does not start, and LaunchFailed if the first brokers do not.
    """
    with run_home() as home:
        nodes = [NodeType(name, each.resources, each.max) for name, each in experiment.node_types.items()]
        ray = LocalRay(home, nodes, experiment.idle_timeout_s, experiment.boot_delay_s)
        ray.start()
        try:
            topology = _start_brokers(experiment, home, is_elastic=is_elastic)
            return _Measurement(experiment, topology, ray, progress, is_elastic=is_elastic).run()
        finally:
            if is_connected():
                disconnect()
            ray.stop()


def _start_brokers(experiment: Experiment, home: Path, *, is_elastic: bool) -> Topology:
    """Start the first brokers, and return the topology with the ports of its nameserver and rebalancer."""
    file = home / "topology.yaml"
    file.write_text(yaml.safe_dump(topology_of(experiment, is_elastic=is_elastic)))
    topology = load_topology(file)
    connect(topology, home, choose_way(topology, home, os.environ))
    result = launch.up(file)
    ports = {spec.name: spec.listen[1] for spec in result.specs}
    with Admin(result.nameservers) as admin:
        admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
    return topology.with_ports({name: port for name, port in ports.items() if not name.startswith("broker-")})


def topology_of(experiment: Experiment, *, is_elastic: bool) -> dict[str, Any]:
    """Return the topology of a run, as the content of a topology file."""
    rules = experiment.rules
    return {
        "cluster": CLUSTER, "listen_host": HEAD_IP, "flush": "async",
        # all nodes have loopback addresses of this machine
        "insecure": True,
        "nameservers": [{"listen_port": 0}],
        "rebalancers": [{"listen_port": 0}],
        "brokers": {
            "pattern": "broker-{n}", "min": rules.min if is_elastic else rules.max, "max": rules.max,
            "resource": experiment.resource, "listen_host": "node", "listen_port": 0,
        },
        "elastic_topics": [TOPIC],
        "broker_settings": {
            "max_sends_per_s": int(experiment.caps.broker_per_s), "register_interval_ms": 1000,
            "store": {"commit_log_file_bytes": LOG_FILE_BYTES},
        },
    }  # fmt: skip


class _Measurement:
    """One run: samples the load, the brokers and the nodes, and calls the controller after each sample."""

    def __init__(
        self,
        experiment: Experiment,
        topology: Topology,
        ray: LocalRay,
        progress: Progress,
        *,
        is_elastic: bool,
    ) -> None:
        self._experiment = experiment
        self._ray = ray
        self._progress = progress
        limits = Limits(DRAIN_TIMEOUT_S, dry_run=not is_elastic)
        fleet = ElasticFleet(topology, home_of(topology.cluster))
        self._controller = Controller(experiment.rules, limits, fleet, time.monotonic)
        nameservers = [f"{HEAD_IP}:{entry.listen_port}" for entry in topology.nameservers]
        self._load = Load(experiment, nameservers)
        self._is_elastic = is_elastic

    def run(self) -> Run:
        """Run the load to its end and until all messages are delivered, and return the records."""
        self._controller.tick()  # the brokers that `up` started become ready
        run = Run("measured", [self._point(0.0, Counts(), Counts(), 1.0)])
        begin_s = time.monotonic()
        self._load.start()
        try:
            before, before_s = Counts(), 0.0
            while not self._is_over(before, before_s):
                time.sleep(max(begin_s + before_s + self._experiment.sample_interval_s - time.monotonic(), 0))
                self._tick(run, begin_s)
                now, now_s = self._load.counts(), time.monotonic() - begin_s
                run.series.append(self._point(now_s, now, before, now_s - before_s))
                before, before_s = now, now_s
                self._progress(now_s)
        finally:
            self._load.finish()
        return Run(
            "measured",
            run.series,
            run.changes,
            judge(self._load.recorder.events),
            self._load.latency_ms(),
            self._notes(),
        )

    def _tick(self, run: Run, begin_s: float) -> None:
        target = self._controller.target
        decision = self._controller.tick()
        if self._is_elastic and target is not None and decision.target != target:
            run.changes.append(Change(time.monotonic() - begin_s, target, decision))

    def _is_over(self, counts: Counts, now_s: float) -> bool:
        end_s = self._experiment.run_s
        is_delivered = counts.delivered >= counts.offered
        return now_s >= end_s and (is_delivered or now_s >= end_s + self._experiment.drain_s)

    def _point(self, now_s: float, now: Counts, before: Counts, elapsed_s: float) -> Point:
        states = [each["state"] for each in self._controller.status()["brokers"]]
        running, booting = count_nodes(self._ray.events.read_text().splitlines())
        return Point(
            now_s,
            (now.offered - before.offered) / elapsed_s,
            (now.accepted - before.accepted) / elapsed_s,
            (now.delivered - before.delivered) / elapsed_s,
            now.offered - now.accepted,
            max(now.accepted - now.delivered, 0),
            self._controller.target or 0,
            states.count(RUNNING),
            states.count(STARTING),
            states.count(DRAINING),
            running,
            booting,
        )

    def _notes(self) -> tuple[str, ...]:
        caps = self._experiment.caps
        text = (
            f"each broker accepts at most {caps.broker_per_s:g} messages/s (max_sends_per_s), each consumer "
            f"consumes at most {caps.consumer_per_s:g} messages/s; what a broker delivers is not limited"
        )
        return (
            text,
            "all nodes are raylets of one machine and share its disk",
            *self._load.problems,
        )


def count_nodes(lines: list[str]) -> tuple[int, int]:
    """Return the numbers of (running, booting) nodes after the events of `LocalNodes`, one per line."""
    last = {event["node"]: event["event"] for event in map(json.loads, lines) if event["type"] != "head"}
    return list(last.values()).count("running"), list(last.values()).count("requested")
