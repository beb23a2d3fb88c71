"""A cluster on Ray with access control and TLS, started from a topology file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.wire.signing import Credentials, write_credentials
from cluster.client import ConsumerConfig, Producer, ProducerConfig, PullConsumer, PushConsumer, TlsConfig
from cluster.client.errors import ClientError
from cluster.control.session.environment import make_token
from cluster.control.session.ray_head import stop_head
from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeTable
from tests.actors.broker.core.auth.access_peers import INNER
from tests.certificates import Authority
from tests.checkers import Recorder, assert_consistent
from tests.cluster.conftest import CLI_TIMEOUT_S, COMMIT_LOG_FILE_BYTES, REPO
from tests.eventually import LIMIT_S, eventually
from tests.faults.member import config_of, ordered_listener_of
from tests.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]

SECRET = "alice-secret"
TIMEOUT_MS = int(LIMIT_S * 1000)


class Secured:
    """Runs `raymq` commands as the inner user, with a topology file and a CA."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.authority = Authority(home / "certificates")
        self.nameserver_port = free_port()
        self.keys = home / "inner.key"
        self.file = home / "secured.yaml"
        write_credentials(self.keys, INNER)
        make_token(home / "token")
        self.environment = os.environ | {
            "RAYMQ_HOME": str(home),
            "RAYMQ_NAMESERVERS": self.nameserver,
            "RAYMQ_CREDENTIALS": str(self.keys),
            "RAYMQ_TLS_CA": str(self.authority.ca_file),
            "RAY_AUTH_TOKEN_PATH": str(home / "token"),
            "RAY_AUTH_MODE": "token",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "PYTHONPATH": str(REPO),
        }
        self.environment.pop("RAY_ADDRESS", None)
        self.file.write_text(yaml.safe_dump(self.topology()))

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.nameserver_port}"

    def add_slave(self) -> None:
        """Give the broker a slave, which follows over TLS."""
        topology = self.topology()
        topology["broker_settings"] |= {"ha_tls": True, "register_interval_ms": 1000}
        topology["brokers"][0] |= {
            "replicas": 2, "replication": "sync", "in_sync_replicas": 2, "replicas_on_one_node": True,
        }  # fmt: skip
        self.file.write_text(yaml.safe_dump(topology))

    def add_lake(self) -> Path:
        """Add a lake that reads as a user of its own; return the file of its keys."""
        keys = self.home / "lake.key"
        topology = self.topology()
        topology["lakes"] = [{"topics": ["orders"], "freshness_s": 0.5, "credentials_file": str(keys)}]
        self.file.write_text(yaml.safe_dump(topology))
        return keys

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the status of each actor by name."""
        actors = json.loads(self.run("status", str(self.file)))["actors"]
        return {actor["actor"]: actor for actor in actors}

    def topology(self) -> dict[str, Any]:
        certificate, key = map(str, self.authority.issue())
        secured = {
            "authentication_enabled": True,
            "inner_credentials_file": str(self.keys),
            "tls": "enforced",
            "tls_certificate": certificate,
            "tls_key": key,
            "tls_ca": str(self.authority.ca_file),
        }
        store = {"commit_log_file_bytes": COMMIT_LOG_FILE_BYTES}
        return {
            "cluster": "Secured",
            "ray": {"address": "new", "port": 0, "dashboard_port": 0},
            "nameservers": [{"listen_port": self.nameserver_port, "settings": secured}],
            "rebalancers": [{"settings": secured}],
            "brokers": [{"name": "broker-a", "listen_port": free_port(-2)}],
            "broker_settings": {**secured, "authorization_enabled": True, "store": store},
        }

    def run(self, *command: str, environment: dict[str, str] | None = None, given: str = "") -> str:
        """Run a command; return its output. Fails if its exit code is not 0."""
        done = subprocess.run(
            [sys.executable, "-m", "cluster.cli.main", *command],
            env=environment or self.environment, cwd=REPO, capture_output=True, text=True,
            input=given, check=False, timeout=CLI_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def create_user(self, queues: int) -> dict[str, Any]:
        """Create a topic and a user of it, and return the settings of a client of that user."""
        self.run("topic", "create", "orders", "--queues", str(queues))
        self.run("user", "create", "alice", "--secret-file", "-", given=SECRET)
        self.run("acl", "set", "alice", "-r", "Topic:orders", "-r", "Group:billing", "-a", "Pub", "-a", "Sub")
        return {
            "nameservers": self.nameserver,
            "access_key": "alice",
            "secret_key": SECRET,
            "tls": TlsConfig(ca_file=self.authority.ca_file),
        }


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    try:
        yield made
    finally:
        stop_head(made.home)


def test_secured_cluster_on_ray_sends_consumes_and_shows_its_status(secured: Secured) -> None:
    started = secured.run("up", str(secured.file))
    assert started.strip().splitlines()[-1] == f"READY {secured.nameserver}"
    actors = secured.status()
    assert [actor["state"] for actor in actors.values()] == ["serving"] * 3, actors
    shared = secured.create_user(queues=1)
    with Producer(config=ProducerConfig(send_timeout_ms=TIMEOUT_MS, **shared)) as producer:
        offsets = [producer.send("orders", b"%d" % number).queue_offset for number in range(3)]
    assert offsets == [0, 1, 2]
    with PullConsumer(config=ConsumerConfig(group="billing", **shared)) as consumer:
        consumer.subscribe("orders")
        bodies: list[bytes] = []
        eventually(lambda: bodies.extend(message.body for message in consumer.poll()) or len(bodies) == 3)
    assert bodies == [b"0", b"1", b"2"]
    plain = ProducerConfig(secured.nameserver, access_key="alice", secret_key=SECRET, send_timeout_ms=2_000)
    with Producer(config=plain) as producer, pytest.raises(ClientError):
        producer.send("orders", b"plain")
    shown = secured.run("status", str(secured.file)) + secured.run("user", "list", "--json")
    assert "alice" in shown
    assert SECRET not in shown
    secured.run("down", str(secured.file))


def test_lake_reads_a_secured_cluster_as_its_own_user(secured: Secured) -> None:
    write_credentials(secured.add_lake(), Credentials("lake", SECRET))
    secured.run("up", str(secured.file))
    shared = secured.create_user(queues=1)
    with Producer(config=ProducerConfig(send_timeout_ms=TIMEOUT_MS, **shared)) as producer:
        for number in range(3):
            producer.send("orders", b"%d" % number)
    secured.run("user", "create", "lake", "--secret-file", "-", given=SECRET)

    refused = "User:lake has no permission"
    eventually(lambda: refused in secured.run("logs", "lake-0", "-t", str(secured.file)), "a refused round")
    groups = "Group:raymq-lake-0", "Group:RAYMQ_BULK_READER"
    resources = [part for each in ("Topic:orders", *groups) for part in ("-r", each)]
    secured.run("acl", "set", "lake", *resources, "-a", "Sub")
    catalog = open_catalog(LakeSettings(str(secured.home / "lake")))
    eventually(lambda: (table := LakeTable.find(catalog, "raymq", "orders")) and table.state().offsets)
    table = LakeTable.find(catalog, "raymq", "orders")
    assert table is not None
    assert sorted(table.iceberg.scan().to_arrow()["body"].to_pylist()) == [b"0", b"1", b"2"]
    assert secured.status()["lake-0"]["details"]["problem"] == ""
    secured.run("down", str(secured.file))


def test_promoted_slave_knows_the_users_and_keeps_the_order_of_a_group(secured: Secured) -> None:
    """The master is killed while an ordered consumer is online."""
    secured.add_slave()
    secured.run("up", str(secured.file))
    shared = secured.create_user(queues=4)
    recorder = Recorder()
    limit_ms = {"delivery_timeout_ms": TIMEOUT_MS, "send_timeout_ms": TIMEOUT_MS, "route_refresh_ms": 1000}
    config = replace(config_of("billing"), ordered=True, route_refresh_ms=1000, **shared)
    with (
        PushConsumer(listener=ordered_listener_of(recorder, "member", "billing"), config=config) as consumer,
        Producer(config=ProducerConfig(**limit_ms, **shared)) as producer,
    ):
        consumer.subscribe("orders")

        def send(first: int) -> None:
            for number in range(first, first + 200):
                key = f"k{number % 7}"
                operation = recorder.send("producer", "orders", str(number), key=key)
                result = producer.send("orders", str(number), sharding_key=key)
                operation.ok(result.queue.queue_id, result.queue_offset, attempts=100)

        def consumed() -> int:
            return len({event.value for event in recorder.events if event.op == "read"})

        send(0)
        eventually(lambda: consumed() >= 100, "messages")
        eventually(lambda: secured.status()["broker-a-1"]["lag_bytes"] == 0, "the log of the slave")
        os.kill(int(secured.status()["broker-a-0"]["process"]), signal.SIGKILL)
        shown = secured.run("promote", "broker-a-1", "--yes", "--topology", str(secured.file))
        assert "broker-a-1 is the master of broker-a" in shown
        assert "broker-a-0 follows it" in shown
        send(200)
        eventually(lambda: consumed() == 400, "every message")
    # The consumer continues at the offsets that the slave has copied.
    assert_consistent(recorder.events, ignore=["not_sequential"])
    strangers = ProducerConfig(**{**shared, "access_key": "bob"}, send_timeout_ms=2_000)
    with Producer(config=strangers) as producer, pytest.raises(ClientError, match="bob"):
        producer.send("orders", b"refused")
    assert "alice" in secured.run("user", "list", "--json")
    secured.run("down", str(secured.file))
