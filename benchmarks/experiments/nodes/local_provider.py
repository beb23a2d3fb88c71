"""LocalNodes: a node provider of Ray's autoscaler that starts each node as a raylet on this machine.

Ray's autoscaler process (the monitor) imports it by name, as it does for a cloud's provider. A node has an
address of its own (127.0.1.1, 127.0.1.2, …), like a separate machine. The processes of a node inherit the
head's mark (`cluster.control.session.ray_head`) and NODE_ENV, by which they are found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    NODE_KIND_WORKER,
    TAG_RAY_NODE_KIND,
    TAG_RAY_USER_NODE_TYPE,
)

from benchmarks.experiments.nodes.local_ray import HEAD_ID, INSTANCE_ENV, NODE_ENV, NODE_TYPE_ENV
from cluster.control.session.ray_head import ANY_PORT, MARK_ENV, RAYLET_GRACE_S, end_processes

START_TIMEOUT_S = 120.0
START_ATTEMPTS = 2
NODES_PER_SUBNET = 250


class LocalNodes(NodeProvider):
    """Node provider whose nodes are raylets on this machine; all methods may be called from any thread.

    Keys of the provider's configuration: `gcs_address`, `head_node_type`, `boot_delay_s` (how long a node
    takes to boot, before its raylet starts) and `logs` (directory of `<node>.log`, the
    output of `ray start`).
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        head = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: provider_config["head_node_type"]}
        self._tags: dict[str, dict[str, str]] = {HEAD_ID: head}
        self._running = {HEAD_ID}
        self._started = 0

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Return the ids of the nodes that have these tags, those that are still booting included."""
        with self._lock:
            return [node for node, tags in self._tags.items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        """Return True once the node's raylet has started."""
        with self._lock:
            return node_id in self._running

    def is_terminated(self, node_id: str) -> bool:
        """Return True if the node was terminated, or never existed."""
        with self._lock:
            return node_id not in self._tags

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Return the tags of a node; empty for a node that was terminated meanwhile."""
        with self._lock:
            return dict(self._tags.get(node_id, {}))

    def internal_ip(self, node_id: str) -> str:
        """Return the address of a node."""
        return (
            self.provider_config["gcs_address"].rpartition(":")[0] if node_id == HEAD_ID else ip_of(node_id)
        )

    external_ip = internal_ip

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        """Begin to start `count` nodes, each in a thread of its own."""
        for _ in range(count):
            with self._lock:
                self._started += 1
                node = f"node-{self._started}"
                self._tags[node] = {**tags, TAG_RAY_NODE_KIND: NODE_KIND_WORKER}
            threading.Thread(target=self._boot, args=(node, dict(resources)), daemon=True).start()

    def terminate_node(self, node_id: str) -> None:
        """End the processes of a node, its raylet first."""
        with self._lock:
            tags = self._tags.pop(node_id, None)
            self._running.discard(node_id)
        if tags is not None:
            end_node(node_id)

    def _boot(self, node: str, resources: dict[str, float]) -> None:
        time.sleep(self.provider_config.get("boot_delay_s", 0))
        for _ in range(START_ATTEMPTS):
            # One at a time: of two that start at the same moment, one does not come up within Ray's 30 s.
            with self._starting:
                has_started = not self.is_terminated(node) and self._start_raylet(node, resources)
            if has_started and not self.is_terminated(node):
                with self._lock:
                    self._running.add(node)
                return
            end_node(node)
            if self.is_terminated(node):
                return
        self.terminate_node(node)  # Ray's autoscaler requests another one

    def _start_raylet(self, node: str, resources: dict[str, float]) -> bool:
        command = node_start_command(self.provider_config["gcs_address"], node, resources)
        kind = self.node_tags(node).get(TAG_RAY_USER_NODE_TYPE, "")
        environment = {**os.environ, NODE_ENV: node, INSTANCE_ENV: node, NODE_TYPE_ENV: kind}
        log = Path(self.provider_config["logs"]) / f"{node}.log"
        try:
            with log.open("wb") as output:
                done = subprocess.run(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, check=False, timeout=START_TIMEOUT_S,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def ip_of(node: str) -> str:
    """Return the loopback address of node `node-N`."""
    subnet, host = divmod(int(node.rpartition("-")[2]) - 1, NODES_PER_SUBNET)
    return f"127.0.{1 + subnet}.{1 + host}"


def node_start_command(gcs_address: str, node: str, resources: Mapping[str, float]) -> list[str]:
    """Return the `ray start` command of a node with these resources."""
    amounts = dict(resources)
    cpus, memory = amounts.pop("CPU", 0), amounts.pop("object_store_memory", 80 * 1024 * 1024)
    amounts.pop("memory", None)
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={gcs_address}",
        f"--node-ip-address={ip_of(node)}", f"--num-cpus={int(cpus)}", f"--resources={json.dumps(amounts)}",
        f"--object-store-memory={int(memory)}", "--min-worker-port=0", "--max-worker-port=0",
        f"--dashboard-agent-listen-port={ANY_PORT}", "--include-log-monitor=false", "--disable-usage-stats",
    ]  # fmt: skip


def node_processes(node: str, mark: Mapping[str, str] | None = None) -> list[psutil.Process]:
    """Return the processes of a node on this machine.

    Args:
        node: Id of the node.
        mark: Environment variables that its processes must have too; by default those of this process that
            mark the head.
    """
    wanted = {NODE_ENV: node, **(own_mark() if mark is None else mark)}
    return [
        process
        for process in psutil.process_iter(["environ", "name"])
        if wanted.items() <= (process.info["environ"] or {}).items() and process.pid != os.getpid()
    ]


def own_mark() -> dict[str, str]:
    """Return the mark of the head whose monitor this process is."""
    return {MARK_ENV: os.environ[MARK_ENV]}


def end_node(node: str) -> None:
    """End all processes of a node, its raylet first, so that it unregisters from Ray."""
    processes = node_processes(node)
    end_processes([each for each in processes if each.info["name"] == "raylet"], RAYLET_GRACE_S)
    end_processes(node_processes(node), RAYLET_GRACE_S)
