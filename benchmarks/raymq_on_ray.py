"""RayMQ as its users run it: `raymq up` of one broker, on a Ray of its own that `raymq down` ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from cluster.bench.memory import anonymous_bytes
from cluster.paths import HOME_ENV
from cluster.session.ray_head import free_port, marked_processes, read_record

BROKER_NAME = "broker-a"
COMMAND_TIMEOUT_S = 300
RAY_OBJECT_STORE_BYTES = 209_715_200
MIB = 1024 * 1024


class TopologyFailed(Exception):
    """A `raymq` command failed; carries what it said."""


class RayMQOnRay:
    """A nameserver, a rebalancer and one broker as Ray actors."""

    def __init__(self, root: Path, flush: str) -> None:
        """Prepare; nothing runs yet. `flush` is the brokers' mode, async or sync."""
        self._root = root
        self._file = root / "topology.yaml"
        self._flush = flush
        self._actors: Mapping[str, Mapping[str, Any]] = {}

    @property
    def nameserver_address(self) -> str:
        """Where clients look for routes, host:port."""
        return str(self._of_kind("nameserver")["address"])

    @property
    def broker_address(self) -> str:
        """The broker's listener, host:port."""
        return str(self._of_kind("broker")["address"])

    @property
    def broker_pid(self) -> int:
        """The process of the broker's actor."""
        return int(self._of_kind("broker")["process"])

    def other_anonymous_mib(self) -> Mapping[str, float]:
        """RssAnon of the other actors, and of Ray's own processes together."""
        kinds = {int(actor["process"]): str(actor["kind"]) for actor in self._actors.values()}
        record = read_record(self._root)
        assert record is not None, "Ray was not started"
        found = dict.fromkeys([*kinds.values(), "ray"], 0.0)
        for process in marked_processes(record.mark):
            with suppress(OSError):  # a process that ended meanwhile
                found[kinds.get(process.pid, "ray")] += anonymous_bytes(process.pid) / MIB
        del found["broker"]
        return found

    def start(self) -> Self:
        """Bring the topology up. Raises TopologyFailed."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(self._topology()))
        self._raymq("up")
        self._actors = {actor["actor"]: actor for actor in json.loads(self._raymq("status"))["actors"]}
        return self

    def stop(self) -> None:
        """End the actors in order, then Ray."""
        self._raymq("down")

    def _topology(self) -> Mapping[str, object]:
        return {
            "cluster": "DefaultCluster",
            "flush": self._flush,
            "nameservers": [{"listen_port": 0}],
            "brokers": [{"name": BROKER_NAME, "listen_port": 0}],
            "rebalancers": [{"listen_port": 0}],
            "ray": {
                "address": "new",
                "port": free_port(0),
                "object_store_memory_bytes": RAY_OBJECT_STORE_BYTES,
            },
        }

    def _of_kind(self, kind: str) -> Mapping[str, Any]:
        return next(actor for actor in self._actors.values() if actor["kind"] == kind)

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
                f"raymq {command} ended with {done.returncode}: {done.stderr or done.stdout}"
            )
        return done.stdout

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
