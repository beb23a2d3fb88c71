"""Starts and stops a Ray head with Ray's autoscaler on this machine. Its nodes are raylets.

The head is recorded in the cluster's home directory as that of `raymq up`
(`cluster.control.session.ray_head`), so `raymq up`, `status` and `down` use it. All processes inherit the
mark of that record; a head that a killed driver left is ended by the next start, by its mark and nothing
else.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.control.autoscaler import report_node_types
from cluster.control.session.environment import prepare_to_import_ray, ray_environment
from cluster.control.session.ray_head import (
    ANY_PORT,
    MARK_ENV,
    OTHERS_GRACE_S,
    START_TIMEOUT_S,
    HeadFailed,
    HeadRecord,
    end_processes,
    free_port,
    last_line,
    marked_processes,
    read_record,
    stop_head,
    worker_ports,
    write_record,
)

HEAD_IP = "127.0.255.1"
"""Not 127.0.0.1, which Ray replaces by the address of the machine."""

HEAD_ID = HEAD_TYPE = "head"
NODE_ENV = "RAYMQ_LOCAL_NODE"
"""Environment variable of a node's processes: the id of the node."""

INSTANCE_ENV, NODE_TYPE_ENV = "RAY_CLOUD_INSTANCE_ID", "RAY_NODE_TYPE_NAME"
GCS_PORT, CLIENT_PORT, METRICS_PORT, DASHBOARD_PORT = 6479, 10_101, 44_217, 8265
HEAD_STORE_BYTES = 160 * 1024 * 1024
CONFIG_FILE, LOG_FILE, GCS_FOLDER = "autoscaler.json", "ray-start.log", "gcs"
REPO = Path(__file__).parents[3]
_EMPTY_LISTS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands", "rsync_exclude", "rsync_filter",
    "cluster_synced_files",
)  # fmt: skip


@dataclass(frozen=True)
class NodeKind:
    """A kind of node that the autoscaler may start.

    Attributes:
        name: Name of the node type.
        resources: Resources of each of its nodes.
        max_nodes: Largest number of these nodes.
        object_store_bytes: Size of each node's object store.
    """

    name: str
    resources: Mapping[str, float]
    max_nodes: int
    object_store_bytes: int = 80 * 1024 * 1024


@dataclass(frozen=True)
class LocalRay:
    """A Ray head with autoscaler on this machine.

    Attributes:
        home: Directory of the cluster (`cluster.paths.home_of`), with its record and logs.
        node_types: The node types.
        idle_timeout_s: How long a node may be idle before the autoscaler removes it.
        boot_delay_s: Simulated boot time of a node, before its raylet starts.
        environment: Further environment variables of Ray's processes.
        has_dashboard: Start Ray's dashboard, which accepts jobs.
        has_durable_gcs: Keep the state of the GCS in a directory of `home`, so that it can be restarted. Ray
            calls this storage, an embedded RocksDB, alpha, and syncs each change of the state.
    """

    home: Path
    node_types: Iterable[NodeKind]
    idle_timeout_s: float = 5.0
    boot_delay_s: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    has_dashboard: bool = False
    has_durable_gcs: bool = False

    def start(self) -> HeadRecord:
        """Stop what an earlier start has left, and start the head. Raises HeadFailed if two attempts fail."""
        self.stop()
        with suppress(HeadFailed):  # Ray waits only 30 s for its processes: not enough on a busy machine
            return self._start_once()
        return self._start_once()

    def stop(self) -> int:
        """Stop the head and its nodes. Return the number of processes; 0 if none was running."""
        record = read_record(self.home)
        if record is None:
            return 0
        # The autoscaler first: it would replace the nodes.
        monitors = [
            process
            for process in marked_processes(record.mark)
            if any(part.endswith("monitor.py") for part in process.cmdline())
        ]
        end_processes(monitors, OTHERS_GRACE_S)
        count = len(monitors) + stop_head(self.home)
        shutil.rmtree(sessions_folder(record.mark), ignore_errors=True)
        return count

    def kill_node(self, ip: str) -> None:
        """Kill the raylet of a node, as a power loss would; its disk survives."""
        record = read_record(self.home)
        for process in marked_processes(record.mark) if record else ():
            if process.name() == "raylet" and f"--node_ip_address={ip}" in process.cmdline():
                process.kill()

    def restart_gcs(self) -> None:
        """Kill the GCS and start it again with its state. Raises HeadFailed if no GCS is running."""
        record = read_record(self.home)
        processes = marked_processes(record.mark) if record else ()
        gcs = next((each for each in processes if each.name() == "gcs_server"), None)
        if gcs is None:
            raise HeadFailed("Ray's GCS cannot be restarted: it is not running")
        command, environment = gcs.cmdline(), gcs.environ()
        gcs.kill()
        gcs.wait()
        with (self.home / LOG_FILE).open("ab") as output:
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def _start_once(self) -> HeadRecord:
        prepare_to_import_ray(os.environ, starts=True)
        mark = secrets.token_hex(8)
        write_record(self.home, HeadRecord(mark))
        shutil.rmtree(self.home / GCS_FOLDER, ignore_errors=True)
        port = free_port(GCS_PORT)
        address = f"{HEAD_IP}:{port}"
        dashboard_port = free_port(DASHBOARD_PORT) if self.has_dashboard else None
        config = self.home / CONFIG_FILE
        config.write_text(json.dumps(self.autoscaling_config(address)))
        try:
            with (self.home / LOG_FILE).open("wb") as output:
                subprocess.run(
                    head_command(port, dashboard_port, sessions_folder(mark), config),
                    env=self._environment(mark), stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True, check=True, timeout=START_TIMEOUT_S,
                )  # fmt: skip
        except BaseException as error:
            self.stop()
            if isinstance(error, subprocess.SubprocessError | OSError):
                raise HeadFailed(f"`ray start` failed: {last_line(self.home / LOG_FILE)}") from error
            raise
        dashboard = f"http://127.0.0.1:{dashboard_port}" if dashboard_port else ""
        record = HeadRecord(mark, address, dashboard)
        write_record(self.home, record)
        # `raymq up` checks the resources of a topology by them.
        report_node_types(address, {each.name: (each.resources, each.max_nodes) for each in self.node_types})
        return record

    def _environment(self, mark: str) -> dict[str, str]:
        """Return the environment of the head, and so of its autoscaler and of the nodes that it starts."""
        path = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH", "")]))
        environment = ray_environment(os.environ) | {
            MARK_ENV: mark,
            INSTANCE_ENV: HEAD_ID,
            NODE_TYPE_ENV: HEAD_TYPE,
            "PYTHONPATH": path,
            "RAY_enable_autoscaler_v2": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "AUTOSCALER_METRIC_PORT": str(free_port(METRICS_PORT)),
            "DASHBOARD_METRIC_PORT": str(free_port(METRICS_PORT + 10)),
            # A killed raylet fails each health check at once; a slow one still has 10 s per check.
            "RAY_health_check_period_ms": "500",
            **self._gcs_storage(),
            **self.environment,
        }
        environment.pop("RAY_ADDRESS", None)
        environment.pop(NODE_ENV, None)
        return environment

    def _gcs_storage(self) -> dict[str, str]:
        if not self.has_durable_gcs:
            return {}
        return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.home / GCS_FOLDER)}

    def autoscaling_config(self, gcs_address: str) -> dict[str, Any]:
        """Return the configuration of Ray's autoscaler."""
        types = {
            each.name: {
                "resources": {
                    "CPU": 0, **each.resources, "object_store_memory": each.object_store_bytes,
                },
                "node_config": {}, "min_workers": 0, "max_workers": each.max_nodes,
            }
            for each in self.node_types
        }  # fmt: skip
        head = {"resources": {"CPU": 0}, "node_config": {}, "min_workers": 0, "max_workers": 0}
        return {
            "cluster_name": "raymq",
            "max_workers": sum(each.max_nodes for each in self.node_types),
            "upscaling_speed": 1000,
            "idle_timeout_minutes": self.idle_timeout_s / 60,
            "provider": {
                "type": "external",
                "module": "benchmarks.experiments.nodes.local_provider.LocalNodes",
                "gcs_address": gcs_address,
                "head_node_type": HEAD_TYPE,
                "boot_delay_s": self.boot_delay_s,
                "logs": str(self.home),
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
            },
            "head_node_type": HEAD_TYPE,
            "available_node_types": {HEAD_TYPE: head, **types},
            "auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False,
            **{key: [] for key in _EMPTY_LISTS},
        }  # fmt: skip


def sessions_folder(mark: str) -> Path:
    """Return the directory of Ray's sessions; its path is short, because sockets lie below it."""
    return Path(tempfile.gettempdir()) / f"raymq-{mark}"


def head_command(port: int, dashboard_port: int | None, sessions: Path, config: Path) -> list[str]:
    """Return the `ray start` command of the head. Raises HeadFailed if no ports are free."""
    client_port = free_port(CLIENT_PORT)
    first, last = worker_ports([port, client_port, dashboard_port or 0])
    dashboard = ["--include-dashboard=false"]
    if dashboard_port is not None:
        dashboard = ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"]
    return [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats",
        f"--node-ip-address={HEAD_IP}", f"--port={port}", f"--ray-client-server-port={client_port}",
        f"--dashboard-agent-listen-port={ANY_PORT}", *dashboard,
        f"--min-worker-port={first}", f"--max-worker-port={last}", f"--temp-dir={sessions}", "--num-cpus=0",
        f"--object-store-memory={HEAD_STORE_BYTES}", f"--autoscaling-config={config}",
    ]  # fmt: skip
