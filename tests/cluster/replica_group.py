"""A broker group with replicas on Ray: runs `raymq` commands for its topology, and sends and consumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster.client import Producer, ProducerConfig, PullConsumer
from cluster.client.errors import ClientError
from cluster.control.session.environment import make_token
from cluster.control.session.ray_head import stop_head
from tests.cluster.conftest import CLI_TIMEOUT_S, COMMIT_LOG_FILE_BYTES, REPO
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port


@contextmanager
def stopping_ray(group: Group) -> Iterator[Group]:
    """Stop the Ray of a group at the end of the block."""
    try:
        yield group
    finally:
        stop_head(group.home)


class Group:
    """Runs `raymq` commands for a topology with one replicated broker."""

    def __init__(
        self, home: Path, replicas: int, replication: str = "sync", broker: Mapping[str, Any] | None = None
    ) -> None:
        self.home = home
        self.nameserver_port = free_port()
        self.file = home / "pair.yaml"
        make_token(home / "token")
        self.environment = os.environ | {
            "RAYMQ_HOME": str(home),
            "RAY_AUTH_TOKEN_PATH": str(home / "token"),
            "RAY_AUTH_MODE": "token",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "PYTHONPATH": str(REPO),
        }
        self.environment.pop("RAY_ADDRESS", None)
        group = {
            "name": "broker-a", "listen_port": free_port(-2, 8, 10, 18, 20), "replicas": replicas,
            "replication": replication, "replicas_on_one_node": True,
        }  # fmt: skip
        if replication == "sync":
            group["in_sync_replicas"] = 2
        topology = {
            "cluster": "Pair",
            "route_refresh_ms": 0,
            "ray": {"address": "new", "port": 0, "dashboard_port": 0},
            "nameservers": [{"listen_port": self.nameserver_port}],
            "rebalancers": [{}],
            "brokers": [group],
            "broker_settings": {
                "register_interval_ms": 1000,
                **(broker or {}),
                "store": {"commit_log_file_bytes": COMMIT_LOG_FILE_BYTES},
            },
        }
        self.file.write_text(yaml.safe_dump(topology))

    def topology(self, **keys: Any) -> str:
        """Return the topology with other keys of its broker; None removes a key."""
        topology = yaml.safe_load(self.file.read_text())
        entry = topology["brokers"][0] | keys
        topology["brokers"][0] = {key: value for key, value in entry.items() if value is not None}
        return yaml.safe_dump(topology)

    def topology_of_single(self) -> str:
        """Return the topology with a broker without replicas."""
        keys = ("replicas", "replication", "replicas_on_one_node", "in_sync_replicas")
        return self.topology(**dict.fromkeys(keys))

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.nameserver_port}"

    def run(self, *command: str, code: int | tuple[int, ...] = 0) -> str:
        """Run a command with the topology as its last argument."""
        return self.raymq(*command, str(self.file), code=code)

    def raymq(self, *command: str, code: int | tuple[int, ...] = 0) -> str:
        """Run a command, whose exit code must be `code`, or one of these; return its output.

        The errors of a command that must fail are returned, too.
        """
        done = subprocess.run(
            [sys.executable, "-m", "cluster.cli.main", *command],
            env=self.environment, cwd=REPO, capture_output=True, text=True, check=False,
            timeout=CLI_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stdout + done.stderr
        return done.stdout + (done.stderr if code and isinstance(code, int) else "")

    def actors(self) -> list[dict[str, Any]]:
        """Return the actors as `raymq status` shows them."""
        actors: list[dict[str, Any]] = json.loads(self.run("status", code=(0, 1)))["actors"]
        return actors

    def status(self, actor: str) -> dict[str, Any]:
        (found,) = (each for each in self.actors() if each["actor"] == actor)
        return found

    def serves(self) -> bool:
        """Return True if all actors serve."""
        return all(each["state"] == "serving" for each in self.actors())

    def pid(self, actor: str) -> int:
        return int(self.status(actor)["process"])

    def leader(self) -> str:
        """Wait until one of the replicas leads a Raft group and accepts sends; return its actor."""

        def found() -> list[str]:
            return [
                each["actor"]
                for each in self.actors()
                if each["role"] == "leader" and each["details"]["role"] == "master"
            ]

        return eventually(found, "a leader")[0]

    def transfer_to_first(self) -> None:
        """Let broker-a-0 lead: only then the group becomes a single broker."""
        if self.leader() != "broker-a-0":
            self.raymq("transfer", "broker-a", "--to", "0", "--yes", "-n", self.nameserver)
            eventually(lambda: self.leader() == "broker-a-0", "the leadership")

    def start_single(self) -> str:
        """Start the broker without replicas; return the topology that it has then."""
        alone = self.topology_of_single()
        self.file.write_text(alone)
        self.run("up")
        return alone

    def send_all(self, sent: list[bytes]) -> None:
        """Send messages by a new producer, as `send_all`."""
        with self.producer() as producer:
            send_all(producer, sent)

    def await_log_of_master(self, *slaves: str) -> None:
        for slave in slaves:
            eventually(lambda slave=slave: self.status(slave)["lag_bytes"] == 0, f"the log of {slave}")

    def producer(self) -> Producer:
        limit_ms = int(LIMIT_S * 1000)
        config = ProducerConfig(
            group="P", send_timeout_ms=limit_ms, delivery_timeout_ms=limit_ms, route_refresh_ms=1000
        )
        return Producer(self.nameserver, config=config)

    def await_all(self, sent: Sequence[bytes], group: str = "G") -> None:
        """Consume until all messages are received."""
        received: set[bytes] = set()
        with PullConsumer(self.nameserver, group) as consumer:
            consumer.subscribe("T")
            while received < set(sent):
                received |= {message.body for message in consumer.poll(1000, 100)}

    def log(self, replica: int) -> bytes:
        files = sorted((self.home / "store" / f"broker-a-{replica}" / "commitlog").glob("0*"))
        return b"".join(each.read_bytes() for each in files)


def send(producer: Producer, sent: list[bytes], count: int = 100) -> None:
    """Send messages and add the body of each acknowledged one to `sent`."""
    for _ in range(count):
        body = b"message-%d" % len(sent)
        producer.send("T", body)
        sent.append(body)


def send_all(producer: Producer, sent: list[bytes], count: int = 100) -> None:
    """Send messages, each until it is acknowledged, as an application that repeats failed sends."""

    def is_sent(body: bytes) -> bool:
        try:
            producer.send("T", body)
        except ClientError:
            return False
        return True

    for _ in range(count):
        body = b"message-%d" % len(sent)
        eventually(lambda body=body: is_sent(body), "an acknowledged send")  # type: ignore[misc]
        sent.append(body)
