"""Places the tasks of a Ray Data read on the Ray nodes of the brokers, which have the stores' files.

In Ray Data all tasks of a read have the same Ray options. Therefore each node gets a read of its own, and the
dataset is the union of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jobs.reading.plan import ReadPlan
from jobs.reading.splits import Split

PLACEMENT_OPTIONS = frozenset(
    {"compute", "resources", "accelerator_type", "label_selector", "fallback_strategy", "ray_remote_args"}
)
"""Options of `ray.data.read_datasource` by which a caller may choose the nodes."""


def place_read(plan: ReadPlan, ray_options: Mapping[str, Any]) -> Sequence[tuple[ReadPlan, dict[str, Any]]]:
    """Return the parts of the read `plan` with their Ray options: one part for each node with stores.

    Ray runs the tasks of a part on its node, or on another one if the node is lost or has too few CPUs. The
    ranges of brokers outside of Ray are a part without a node. The read is not divided if there is only one
    node, if files are not mapped, or if `ray_options` has one of PLACEMENT_OPTIONS.
    """
    nodes = _nodes()
    if len(nodes) < 2 or not plan.options.map_files or not PLACEMENT_OPTIONS.isdisjoint(ray_options):
        return [(plan, dict(ray_options))]
    of_nodes: dict[str | None, list[Split]] = {}
    for each in plan.ranges:
        of_nodes.setdefault(nodes.get(each.location.node_ip), []).append(each)
    parts = []
    for node, ranges in of_nodes.items():
        part, options = replace(plan, ranges=ranges, tables=()), dict(ray_options)
        if blocks := options.get("override_num_blocks"):
            options["override_num_blocks"] = max(round(blocks * part.message_count / plan.message_count), 1)
        if node is not None:
            options["ray_remote_args"] = {
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)
            }
        parts.append((part, options))
    if plan.tables:
        parts.append((replace(plan, ranges=()), dict(ray_options)))
    return parts or [(plan, dict(ray_options))]


def _nodes() -> dict[str, str]:
    """Return the ids of the live nodes of Ray by IP address."""
    if not ray.is_initialized():
        ray.init()  # as ray.data.read_datasource does
    return {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
