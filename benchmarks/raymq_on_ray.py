"""RayMQ as users run it: start one broker on a new local Ray with `raymq up`, stop it with `raymq down`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml

from benchmarks.processes import anonymous_bytes
from cluster.control.session.ray_head import free_port, marked_processes, read_record
from cluster.paths import HOME_ENV
from tests.compat.peers import Deployment

COMMAND_TIMEOUT_S = 300
RAY_OBJECT_STORE_BYTES = 209_715_200
MIB = 1024 * 1024


class TopologyFailed(Exception):
    """A `raymq` command failed; the message contains its output."""


class RayMQOnRay(Deployment):
    """A cluster of one nameserver, one rebalancer and one broker, or a master and a slave, as Ray actors."""

    def __init__(
        self,
        root: Path,
        flush: str,
        replication: str = "",
        *,
        has_gateway: bool = False,
        brokers: int = 1,
        lake_freshness_s: float | None = None,
    ) -> None:
        """Store the arguments; `start` starts the cluster.

        Args:
            root: directory of topology and stores.
            flush: flush mode of the brokers, async or sync.
            replication: async or sync for a master with one slave; empty for one broker.
            has_gateway: start a gateway, too.
            brokers: number of brokers, broker-a, broker-b, …; the properties are those of the first.
            lake_freshness_s: run a lake of all topics, whose rounds begin after this time; None for no lake.
        """
        self._root = root
        self._file = root / "topology.yaml"
        self._flush = flush
        self._replication = replication
        self._has_gateway = has_gateway
        self._brokers = brokers
        self._lake_freshness_s = lake_freshness_s
        self._actors: Mapping[str, Mapping[str, Any]] = {}

    @property
    def nameserver_address(self) -> str:
        """Address of the nameserver, host:port."""
        return str(self._of_kind("nameserver")["address"])

    @property
    def broker_address(self) -> str:
        """Address of the broker, host:port."""
        return str(self._of_kind("broker")["address"])

    @property
    def broker_pid(self) -> int:
        """PID of the broker's actor."""
        return int(self._of_kind("broker")["process"])

    @property
    def actor_pids(self) -> Mapping[str, int]:
        """PID of each actor, by the name of the actor."""
        return {name: int(actor["process"]) for name, actor in self._actors.items()}

    @property
    def ray_pids(self) -> list[int]:
        """PIDs of all processes of the Ray session; the actors are among them."""
        record = read_record(self._root)
        assert record is not None, "Ray was not started"
        return [process.pid for process in marked_processes(record.mark)]

    @property
    def warehouse(self) -> Path:
        """Directory of the lake's tables."""
        return self._root / "lake"

    @property
    def gateway_address(self) -> str:
        """Address of the gateway, host:port."""
        return str(self._of_kind("gateway")["address"])

    @property
    def gateway_pid(self) -> int:
        """PID of the gateway's actor."""
        return int(self._of_kind("gateway")["process"])

    def other_anonymous_mib(self) -> Mapping[str, float]:
        """Return the RssAnon in MiB of each actor except the broker, and the total of Ray's processes."""
        kinds = {int(actor["process"]): str(actor["kind"]) for actor in self._actors.values()}
        found = dict.fromkeys([*kinds.values(), "ray"], 0.0)
        for pid in self.ray_pids:
            with suppress(OSError):  # the process has exited meanwhile
                found[kinds.get(pid, "ray")] += anonymous_bytes(pid) / MIB
        del found["broker"]
        return found

    def start(self) -> Self:
        """Start Ray and the cluster with `raymq up`. Raises TopologyFailed."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(self._topology()))
        self._raymq("up")
        self._actors = {actor["actor"]: actor for actor in json.loads(self._raymq("status"))["actors"]}
        return self

    def stop(self) -> None:
        """Stop the actors and Ray with `raymq down`. Raises TopologyFailed."""
        self._raymq("down")

    def _topology(self) -> Mapping[str, object]:
        of_pair = {"replicas": 2, "replication": self._replication, "replicas_on_one_node": True}
        broker: dict[str, object] = {"listen_port": 0, **(of_pair if self._replication else {})}
        return {
            "cluster": "DefaultCluster",
            "flush": self._flush,
            "nameservers": [{"listen_port": 0}],
            "brokers": [{"name": f"broker-{chr(ord('a') + n)}", **broker} for n in range(self._brokers)],
            "rebalancers": [{"listen_port": 0}],
            "gateways": [{"listen_port": 0}] if self._has_gateway else [],
            "lakes": []
            if self._lake_freshness_s is None
            else [{"topics": ["*"], "freshness_s": self._lake_freshness_s}],
            "ray": {
                "address": "new",
                "port": free_port(0),
                "object_store_memory_bytes": RAY_OBJECT_STORE_BYTES,
            },
        }

    def _of_kind(self, kind: str) -> Mapping[str, Any]:
        names = sorted(name for name, actor in self._actors.items() if actor["kind"] == kind)
        return self._actors[names[0]]  # of replicas: the master

    def _raymq(self, command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cluster.cli.main", command, str(self._file)],
            env=os.environ | {HOME_ENV: str(self._root), "RAY_TMPDIR": str(self._root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise TopologyFailed(
                f"raymq {command} failed with exit code {done.returncode}: {done.stderr or done.stdout}"
            )
        return done.stdout
