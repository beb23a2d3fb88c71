"""What `raymq autoscale` does: calls of the autoscaler's actor, a dry run, the release of a lost store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from actors.host import ray_port, store_binding
from actors.host.ray_port import ActorMethodFailed, ActorName, ActorNotFound, ActorUnavailable
from actors.host.service_host import State
from cluster.autoscale.autoscaler_settings import AutoscalerSettings
from cluster.autoscale.controller import Controller, FleetLimits
from cluster.autoscale.decisions import Decision
from cluster.autoscale.elastic_fleet import ElasticFleet
from cluster.control import bindings, fleet
from cluster.control.kinds import AUTOSCALER
from cluster.control.launch_errors import LaunchRefused
from cluster.control.session.ray_session import SessionMode, choose_way, is_connected, session
from cluster.control.specs import Deployment
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import load_with_source
from cluster.paths import home_of

TIMEOUT_S = 60.0
"""A call waits for the present tick of the controller."""


def autoscaler_status(topology: Topology) -> dict[str, Any]:
    """Return the status of a cluster's autoscaler (`Controller.status`).

    Raises LaunchRefused if the cluster or its autoscaler is not running, and SessionFailed.
    """
    with _connected(topology):
        found: dict[str, Any] = _call(topology, "autoscale_status")
        return found


def set_paused(topology: Topology, *, paused: bool) -> None:
    """Pause or resume a cluster's autoscaler. Raises as `autoscaler_status`."""
    with _connected(topology):
        _call(topology, "autoscale_pause" if paused else "autoscale_resume")


def dry_run(
    file: str | None, overrides: Sequence[str], show: Callable[[Decision, int], None], decisions: int
) -> None:
    """Decide by the rules of a topology in this process, and change nothing.

    Args:
        file: The topology file.
        overrides: Replaced keys of it, for example other rules.
        show: Called with each decision, and the number of brokers that exist.
        decisions: Number of decisions; 0: until KeyboardInterrupt.

    Raises TopologyError if the settings are invalid, LaunchRefused if the cluster is not running, and
    SessionFailed.
    """
    topology, source = load_with_source(file, overrides)
    home = home_of(topology.cluster)
    topology = topology.model_copy(update={"autoscale": topology.autoscale or {}})
    (spec,) = AUTOSCALER.specs(AUTOSCALER, Deployment(topology, home, {}, source))
    settings = AutoscalerSettings.model_validate(
        {key: value for key, value in spec.settings.items() if key in AutoscalerSettings.model_fields}
    )
    with _connected(topology):
        fleet = ElasticFleet(topology, home)
        controller = Controller(settings.rules, FleetLimits(dry_run=True), fleet, time.monotonic)
        controller.tick()  # rates are those between two observations
        while True:
            time.sleep(settings.interval_s)
            decision = controller.tick()
            show(decision, controller.target or 0)
            decisions -= 1
            if decisions == 0:
                return


def release_store(topology: Topology, broker: str) -> str:
    """Permit an elastic broker to start with an empty store, and return a text that says what was given up.

    Raises LaunchRefused if the cluster is not running, or the broker is not elastic, has no store, or
    serves it.
    """
    actor = f"{broker.removesuffix('-0')}-0"
    if not any(entry.number_of(actor) for _, entry in topology.elastic()):
        patterns = ", ".join(entry.pattern for _, entry in topology.elastic()) or "none"
        raise LaunchRefused(f"{broker} is not an elastic broker; the topology has {patterns}")
    with _connected(topology):
        bindings.exchange(home_of(topology.cluster), topology.namespace)
        binding = store_binding.find(topology.namespace, actor)
        if binding is None:
            raise LaunchRefused(f"{broker} has no store that could be released; it starts with an empty one")
        if _is_serving(ActorName(topology.namespace, actor)):
            raise LaunchRefused(f"{broker} serves {binding.store}; only a lost store can be released")
        store_binding.release(topology.namespace, actor)
        bindings.exchange(home_of(topology.cluster), topology.namespace)
        return f"released {binding.store} on node {binding.node_ip}; `raymq up` starts {broker} without it"


def _is_serving(broker: ActorName) -> bool:
    try:
        return fleet.to_running(broker, fleet.actor_status(broker, timeout_s=0)).state == State.SERVING
    except (ActorNotFound, ActorUnavailable, ActorMethodFailed):
        return False


@contextmanager
def _connected(topology: Topology) -> Iterator[None]:
    home = home_of(topology.cluster)
    way = choose_way(topology, home, os.environ)
    if way.mode is SessionMode.STARTED and not is_connected():
        raise LaunchRefused(f"cluster {topology.cluster} is not running; `raymq up` starts it")
    with session(topology, home, way):
        yield


def _call(topology: Topology, method: str) -> Any:
    try:
        return ray_port.call(ActorName(topology.namespace, AUTOSCALER.name), method, timeout_s=TIMEOUT_S)
    except ActorNotFound as error:
        raise LaunchRefused(
            f"cluster {topology.cluster} has no autoscaler; add `autoscale: {{rules: …}}` to its topology, "
            "then repeat `raymq up`"
        ) from error
