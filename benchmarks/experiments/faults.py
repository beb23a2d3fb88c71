"""FaultInjector: kills nodes, controller and GCS of a measured run while brokers are added or drained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from actors.host import ray_port, store_binding
from benchmarks.experiments.experiment import Fault
from benchmarks.experiments.run import Injected
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING, BrokerState

VICTIMS = {"controller": "the controller", "gcs": "Ray's GCS"}
STATE_OF = {"scale_out": STARTING, "scale_in": DRAINING}


class FaultInjector:
    """Injects each fault once, at the first sample at which it is possible, and keeps a record of it."""

    def __init__(
        self,
        faults: Sequence[Fault],
        namespace: str,
        resource: str,
        kill_node: Callable[[str], None],
        restart: Mapping[str, Callable[[], None]],
    ) -> None:
        """Create an injector.

        Args:
            faults: The faults.
            namespace: Namespace of the brokers.
            resource: Resource of the nodes on which brokers run.
            kill_node: Kills the node with an address.
            restart: Functions that kill and start what a fault may kill other than a node, by its name.
        """
        self.injected: list[Injected] = []
        self._pending = list(faults)
        self._namespace = namespace
        self._resource = resource
        self._kill_node = kill_node
        self._restart = restart

    def inject(self, now_s: float, states: Mapping[str, BrokerState]) -> None:
        """Inject the faults that are possible now; `states`: the state of each broker."""
        for fault in list(self._pending):
            brokers = [name for name, state in states.items() if state == STATE_OF[fault.during]]
            if not brokers:
                continue
            if fault.kill != "node":
                victim = VICTIMS[fault.kill]
                self._restart[fault.kill]()
            elif node := self._node_of(fault, brokers, states):
                victim = f"node {node}"
                self._kill_node(node)
            else:
                continue
            does = "started" if fault.during == "scale_out" else "was drained"
            self.injected.append(Injected(now_s, f"{victim} was killed while {brokers[0]} {does}"))
            self._pending.remove(fault)

    def _node_of(self, fault: Fault, brokers: Sequence[str], states: Mapping[str, BrokerState]) -> str | None:
        """Return the node of a draining broker, or one that was added for a starting broker."""
        if fault.during == "scale_in":
            return next((node for name in brokers if (node := self._bound_to(name))), None)
        taken = {self._bound_to(name) for name, state in states.items() if state == RUNNING}
        added = [
            node.ip
            for node in ray_port.nodes()
            if node.resources.get(self._resource, 0) and node.ip not in taken
        ]
        return added[0] if added else None

    def _bound_to(self, broker: str) -> str | None:
        binding = store_binding.find(self._namespace, f"{broker}-0")
        return None if binding is None else binding.node_ip
