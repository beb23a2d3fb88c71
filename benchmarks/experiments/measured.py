"""Measured runs of an experiment: real brokers on nodes that Ray's autoscaler starts.

By default a run starts its own Ray on this machine, whose nodes are raylets; all its processes are ended
after the run, also on Ctrl-C. With the address of a running Ray, or in a submitted job, the brokers run there
in a namespace of their own, and are stopped after the run. What a killed run has left is ended by the next
one (`run_home`). The controller runs in this process, so that its decisions are recorded with the series.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from actors.host import ray_port
from benchmarks.experiments.experiment import Experiment, ExperimentError
from benchmarks.experiments.faults import FaultInjector
from benchmarks.experiments.history.judgement import judge
from benchmarks.experiments.load import TOPIC, Counts, Load
from benchmarks.experiments.nodes.local_ray import LocalRay, NodeKind
from benchmarks.experiments.run import Change, Trial
from benchmarks.experiments.run_home import TOPOLOGY_FILE, run_home
from benchmarks.experiments.series import Point
from cluster import launch
from cluster.autoscale.controller import Controller, FleetLimits
from cluster.autoscale.elastic_fleet import ElasticFleet
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING
from cluster.client import Admin
from cluster.control.autoscaler import autoscaler, own_gcs_address
from cluster.control.session.ray_session import JOB_ENV, choose_way, connect, disconnect, is_connected
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import load_topology
from cluster.paths import home_of

CLUSTER = "Experiment"
QUEUES_PER_BROKER = 4
DRAIN_TIMEOUT_S = 120.0
LOG_FILE_BYTES = 64 * 1024 * 1024
EMBEDDED_NOTE = "all nodes are raylets of one machine and share its disk"
ATTACHED_NOTE = "the nodes, their boot delay and the idle time-out are those of the Ray cluster at {}"

Progress = Callable[[float], None]


def run_measured(
    experiment: Experiment, progress: Progress, *, is_elastic: bool, address: str | None = None
) -> Trial:
    """Run an experiment with real brokers.

    Args:
        experiment: The experiment.
        progress: Called with the seconds since the start of the load, after each sample.
        is_elastic: Apply the rules; False: a fixed cluster of `rules.max` brokers, as baseline.
        address: Address of a running Ray. None: that of this job, else start Ray on this machine.

    Raises ExperimentError if the experiment cannot run there, HeadFailed if Ray does not start, SessionFailed
    if it is not reachable, LaunchRefused and LaunchFailed if the first brokers do not start.
    """
    is_embedded = address is None and JOB_ENV not in os.environ
    if experiment.faults and not is_embedded:
        raise ExperimentError(
            "faults: the nodes of a running Ray are not killed: remove the key, or --address"
        )
    with run_home() as home:
        nodes = [NodeKind(name, each.resources, each.max) for name, each in experiment.node_types.items()]
        ray = LocalRay(
            home,
            nodes,
            experiment.idle_timeout_s,
            experiment.boot_delay_s,
            has_durable_gcs=any(fault.kill == "gcs" for fault in experiment.faults),
        )
        with _started(ray) if is_embedded else _attached(home, address or "auto") as found:
            topology = _start_brokers(experiment, home, found, is_elastic=is_elastic)
            note = EMBEDDED_NOTE if is_embedded else ATTACHED_NOTE.format(own_gcs_address())
            return _Measurement(experiment, topology, ray, progress, note, is_elastic=is_elastic).run()


@contextmanager
def _started(ray: LocalRay) -> Iterator[str]:
    """Start a Ray on this machine and return its address; end all its processes after the run."""
    address = ray.start().address
    try:
        yield address
    finally:
        if is_connected():
            disconnect()
        ray.stop()


@contextmanager
def _attached(home: Path, address: str) -> Iterator[str]:
    """Use a running Ray; stop the actors of the run after it."""
    try:
        yield address
    finally:
        if (file := home / TOPOLOGY_FILE).exists():
            launch.down(load_topology(file))
        if is_connected():
            disconnect()


def _start_brokers(experiment: Experiment, home: Path, address: str, *, is_elastic: bool) -> Topology:
    """Start the first brokers, and return the topology with the ports of its nameserver and rebalancer."""
    content = topology_of(experiment, address, home.name, is_elastic=is_elastic)
    topology = Topology.model_validate(content)
    connect(topology, home, choose_way(topology, home, os.environ))
    # Nameservers and rebalancers run on the head node.
    content["listen_host"] = own_gcs_address().rpartition(":")[0]
    file = home / TOPOLOGY_FILE
    file.write_text(yaml.safe_dump(content))
    result = launch.up(file)
    ports = {spec.name: spec.listen[1] for spec in result.specs}
    with Admin(result.nameservers) as admin:
        admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
    topology = load_topology(file)
    return topology.with_ports({name: port for name, port in ports.items() if not name.startswith("broker-")})


def topology_of(experiment: Experiment, address: str, namespace: str, *, is_elastic: bool) -> dict[str, Any]:
    """Return the topology of a run on the Ray at `address`, as the content of a topology file."""
    rules = experiment.rules
    return {
        "cluster": CLUSTER, "namespace": namespace, "ray": {"address": address}, "flush": "async",
        # a run has its own brokers, for a few minutes
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
        note: str,
        *,
        is_elastic: bool,
    ) -> None:
        self._experiment = experiment
        self._topology = topology
        self._progress = progress
        self._note = note
        self._is_elastic = is_elastic
        self._controller = self._new_controller()
        nameserver = topology.nameservers[0]
        self._load = Load(experiment, [f"{topology.listen_host}:{nameserver.listen_port}"])
        faults = experiment.faults if is_elastic else ()
        restart = {"controller": self._restart_controller, "gcs": ray.restart_gcs}
        self._faults = FaultInjector(faults, topology.namespace, experiment.resource, ray.kill_node, restart)

    def _new_controller(self) -> Controller:
        limits = FleetLimits(DRAIN_TIMEOUT_S, dry_run=not self._is_elastic)
        fleet = ElasticFleet(self._topology, home_of(self._topology.cluster))
        return Controller(self._experiment.rules, limits, fleet, time.monotonic)

    def _restart_controller(self) -> None:
        self._controller = self._new_controller()
        self._controller.tick()  # the next point of the series shows what it finds

    def run(self) -> Trial:
        """Run the load to its end and until all messages are delivered, and return the records."""
        self._controller.tick()  # the brokers that `up` started become ready
        run = Trial("measured", [self._point(0.0, Counts(), Counts(), 1.0)])
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
        return Trial(
            "measured",
            run.series,
            run.changes,
            judge(self._load.recorder.events),
            self._load.latency_ms(),
            self._notes(),
            tuple(self._faults.injected),
        )

    def _tick(self, run: Trial, begin_s: float) -> None:
        target = self._controller.target
        decision = self._controller.tick()
        now_s = time.monotonic() - begin_s
        if self._is_elastic and target is not None and decision.target != target:
            run.changes.append(Change(now_s, target, decision))
        states = {each["name"]: each["state"] for each in self._controller.status()["brokers"]}
        self._faults.inject(now_s, states)

    def _is_over(self, counts: Counts, now_s: float) -> bool:
        end_s = self._experiment.run_s
        is_delivered = counts.delivered >= counts.offered
        return now_s >= end_s and (is_delivered or now_s >= end_s + self._experiment.drain_s)

    def _point(self, now_s: float, now: Counts, before: Counts, elapsed_s: float) -> Point:
        states = [each["state"] for each in self._controller.status()["brokers"]]
        nodes = [each for each in ray_port.nodes() if each.resources.get(self._experiment.resource, 0)]
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
            len(nodes),
            autoscaler().starting,
        )

    def _notes(self) -> tuple[str, ...]:
        caps = self._experiment.caps
        text = (
            f"each broker accepts at most {caps.broker_per_s:g} messages/s (max_sends_per_s), each consumer "
            f"consumes at most {caps.consumer_per_s:g} messages/s; what a broker delivers is not limited"
        )
        return (
            text,
            self._note,
            *self._load.problems,
        )
