"""What Ray's autoscaler (v2) reports: its node types, the nodes that it starts, and why actors wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.host import ray_port
from cluster.control.placement import RayAutoscaler, pending_reason

TIMEOUT_S = 5


def autoscaler() -> RayAutoscaler:
    """Return what is known about the autoscaler of the Ray that this process is connected to.

    Its node types are known if they were reported to Ray (as `benchmarks.experiments.nodes` does;
    KubeRay's autoscaler does not). A Ray without autoscaler, or with version 1 of it, has none that runs.
    """
    import ray
    from ray.core.generated import autoscaler_pb2

    reply = autoscaler_pb2.GetClusterStatusReply()
    reply.ParseFromString(_gcs(own_gcs_address()).get_cluster_status(timeout_s=TIMEOUT_S))
    limits: Mapping[str, int] | None = ray._private.state.state.get_max_resources_from_cluster_config()  # noqa: SLF001
    return from_state(reply.autoscaling_state, limits)


def from_state(state: Any, limits: Mapping[str, int] | None) -> RayAutoscaler:
    """Return what the autoscaler has reported to Ray's GCS.

    Args:
        state: Ray's protobuf message AutoscalingState.
        limits: The maximum of each resource that the node types offer. None: the node types are not known.
    """
    offered = None if limits is None else frozenset(name for name, most in limits.items() if most)
    infeasible = {
        name
        for request in state.infeasible_resource_requests
        for name in request.resources_bundle
        if not name.startswith("node:")
    }
    failed = [
        f"{each.ray_node_type_name}: {each.reason}" for each in state.failed_instance_requests if each.reason
    ]
    return RayAutoscaler(
        is_running=offered is not None or state.autoscaler_state_version > 0,
        offered=offered,
        infeasible=frozenset(infeasible),
        starting=len(state.pending_instances) + sum(each.count for each in state.pending_instance_requests),
        failures=failed,
    )


def report_node_types(gcs_address: str, node_types: Mapping[str, tuple[Mapping[str, float], int]]) -> None:
    """Report node types of the autoscaler to the Ray at `gcs_address`: name → (resources, maximum)."""
    from ray.core.generated import autoscaler_pb2

    config = autoscaler_pb2.ClusterConfig()
    for name, (resources, most) in node_types.items():
        group = config.node_group_configs.add()
        group.name, group.max_count = name, most
        for resource, amount in resources.items():
            group.resources[resource] = int(amount)
    _gcs(gcs_address).report_cluster_config(config.SerializeToString())


def why_pending(resource: str) -> str:
    """Return why an actor that takes one unit of `resource` waits, else an empty text."""
    return pending_reason(
        resource, ray_port.nodes(), ray_port.available_resources().get(resource, 0.0), autoscaler()
    )


def own_gcs_address() -> str:
    """Return the address of the Ray that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _gcs(address: str) -> Any:
    """Return a client of Ray's GCS; Ray has no public function that returns all of the autoscaler's state."""
    import ray

    return ray._raylet.GcsClient(address=address)  # noqa: SLF001
