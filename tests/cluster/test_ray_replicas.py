"""A master and its slaves on Ray: rolling restart and promotion lose nothing and keep the logs equal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.client import Producer, ProducerConfig, PullConsumer
from cluster.client.errors import BrokerRefused
from cluster.session.environment import make_token
from cluster.session.ray_head import stop_head
from tests.cluster.conftest import CLI_TIMEOUT_S, COMMIT_LOG_FILE_BYTES, REPO
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


class Group:
    """Runs `raymq` commands for a topology with a master and one or more slaves."""

    def __init__(self, home: Path, replicas: int, replication: str = "sync") -> None:
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
            "name": "broker-a", "listen_port": free_port(-2), "replicas": replicas,
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
                "store": {"commit_log_file_bytes": COMMIT_LOG_FILE_BYTES},
            },
        }
        self.file.write_text(yaml.safe_dump(topology))

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.nameserver_port}"

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command with the topology as its last argument."""
        return self.raymq(*command, str(self.file), code=code)

    def raymq(self, *command: str, code: int = 0) -> str:
        """Run a command, whose exit code must be `code`; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "cluster.cli.main", *command],
            env=self.environment, cwd=REPO, capture_output=True, text=True, check=False,
            timeout=CLI_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def status(self, actor: str, code: int = 0) -> dict[str, Any]:
        actors: list[dict[str, Any]] = json.loads(self.run("status", code=code))["actors"]
        (found,) = (each for each in actors if each["actor"] == actor)
        return found

    def pid(self, actor: str) -> int:
        return int(self.status(actor)["process"])

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


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Group]:
    try:
        yield Group(tmp_path, replicas=2)
    finally:
        stop_head(tmp_path)


@pytest.fixture
def asynchronous(tmp_path: Path) -> Iterator[Group]:
    try:
        yield Group(tmp_path, 2, "async")
    finally:
        stop_head(tmp_path)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Group]:
    try:
        yield Group(tmp_path, replicas=3)
    finally:
        stop_head(tmp_path)


def send(producer: Producer, sent: list[bytes], count: int = 100) -> None:
    """Send messages and add the body of each acknowledged one to `sent`."""
    for _ in range(count):
        body = b"%d" % len(sent)
        producer.send("T", body)
        sent.append(body)


def test_rolling_restart_begins_with_the_slave_and_loses_nothing(pair: Group) -> None:
    pair.run("up")
    with pair.producer() as producer:
        sent = [b"before-%d" % number for number in range(100)]
        for body in sent:
            producer.send("T", body)
        lines = pair.run("restart", "--rolling", "--no-wait", "--topology").splitlines()
        for number in range(100):
            producer.send("T", b"after-%d" % number)
            sent.append(b"after-%d" % number)
    found = [line.split(" (")[0] for line in lines if "broker-a" in line]
    first, synced, last = (
        next(index for index, line in enumerate(found) if text in line)
        for text in ("stopped broker-a-1", "broker-a-1 is in sync", "stopped broker-a-0")
    )
    assert first < synced < last, found
    pair.await_all(sent)
    pair.run("down")
    assert pair.log(0) == pair.log(1)


def test_single_broker_becomes_a_pair_and_a_single_broker_again(pair: Group) -> None:
    of_pair = pair.file.read_text()
    topology = yaml.safe_load(of_pair)
    for key in ("replicas", "replication", "in_sync_replicas", "replicas_on_one_node"):
        del topology["brokers"][0][key]
    of_single = yaml.safe_dump(topology)
    pair.file.write_text(of_single)
    pair.run("up")
    sent: list[bytes] = []
    with pair.producer() as producer:

        def is_sent(body: bytes) -> bool:
            try:
                producer.send("T", body)
            except BrokerRefused:  # the slave of a restarted master has not connected yet
                return False
            return True

        def send(name: str) -> None:
            for number in range(100):
                body = f"{name}-{number}".encode()
                eventually(lambda body=body: is_sent(body), "a send")  # type: ignore[misc]
                sent.append(body)

        send("single")
        pair.file.write_text(of_pair)
        pair.run("up")
        send("pair")
        pair.file.write_text(of_single)
        assert "broker-a-1" in pair.run("up", "--prune")
        send("single again")
    pair.await_all(sent)
    pair.run("down")
    copied = pair.log(1).rstrip(b"\0")
    assert b"pair-99" in copied
    assert pair.log(0).startswith(copied)


def test_promoted_slave_has_every_acknowledged_message_of_a_killed_master(pair: Group) -> None:
    pair.run("up")
    with pair.producer() as producer:
        sent = [b"before-%d" % number for number in range(100)]
        for body in sent:
            producer.send("T", body)
        assert "broker-a-1 has the log of broker-a up to" in pair.run(
            "promote", "broker-a-1", "--dry-run", "--topology"
        )
        os.kill(pair.pid("broker-a-0"), signal.SIGKILL)
        shown = pair.run("promote", "broker-a-1", "--topology")
        assert "broker-a-1 is the master of broker-a" in shown
        assert "broker-a-0 follows it" in shown
        for number in range(100):
            producer.send("T", b"after-%d" % number)
            sent.append(b"after-%d" % number)
    pair.await_all(sent)
    pair.run("down")
    pair.run("up")  # the promotion is remembered
    pair.await_all(sent, "again")
    pair.run("down")
    assert pair.log(0) == pair.log(1)


def test_all_slaves_follow_a_promoted_replica_of_three(three: Group) -> None:
    """The second promotion is interrupted after it was recorded, and finished by `raymq up`."""
    three.run("up")
    sent: list[bytes] = []
    with three.producer() as producer:
        send(producer, sent)
        three.await_log_of_master("broker-a-1", "broker-a-2")
        os.kill(three.pid("broker-a-0"), signal.SIGKILL)
        shown = three.run("promote", "broker-a-1", "--topology")
        assert "broker-a-0 follows it" in shown
        assert "broker-a-2 follows it" in shown
        send(producer, sent)

        (three.home / "groups" / "broker-a.json").write_text('{"epoch": 2, "replica": 2}')
        lines = three.run("up").splitlines()
        stopped = [line.split()[1] for line in lines if line.startswith("stopped broker-a")]
        assert stopped == ["broker-a-1", "broker-a-2", "broker-a-0"], lines
        assert "broker-a-0 is in sync with its master" in lines
        send(producer, sent)
    three.await_all(sent)
    three.await_log_of_master("broker-a-0", "broker-a-1")
    assert three.status("broker-a-2")["role"] == "master"
    three.run("down")
    assert three.log(0) == three.log(1) == three.log(2)


def test_diverged_former_master_copies_the_log_again_after_a_resync(asynchronous: Group) -> None:
    group = asynchronous
    group.run("up")
    with group.producer() as producer:
        send(producer, [], 20)
        group.await_log_of_master("broker-a-1")
        slow = ("--set", "ha_max_bytes_per_s=1", "-n", group.nameserver)
        group.raymq("broker", "config", "broker-a", *slow)
        lost: list[bytes] = []
        send(producer, lost)
        shown = group.run("promote", "broker-a-1", "--topology")
        assert "broker-a-0 does not follow it: stopped" in shown
        send(producer, [])
    found = group.status("broker-a-0", code=1)
    assert found["state"] == "failing"
    assert "raymq replica resync" in found["reason"]
    assert "stopped broker-a-0" in group.run("drain", "broker-a-0", "--topology")
    done = json.loads(group.raymq("replica", "resync", found["store"], "--yes"))
    where = (done["directory"], "--from-position", str(done["position"]))
    lines = group.raymq("store", "messages", *where).splitlines()
    assert 0 < len(lines) == done["messages"]
    assert {json.loads(line)["body"].encode() for line in lines} <= set(lost)
    group.run("up")
    group.await_log_of_master("broker-a-0")
    group.run("down")
    assert group.log(0) == group.log(1)
