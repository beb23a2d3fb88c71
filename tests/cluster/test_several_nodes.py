"""A cluster on several Ray nodes: actors and reads run on the node with their store, and a lost node rejoins.

The nodes are raylets on this machine; each has a different IP address and machine id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from actors.host import ray_port
from actors.host.ray_port import ActorName
from cluster import launch
from cluster.client import Admin, MessageQueue, Producer, ProducerConfig, PullConsumer
from cluster.client.errors import BrokerRefused
from cluster.control.fleet import actor_status
from cluster.control.logs import actor_logs
from cluster.control.logs.log_files import Query, event_of
from cluster.control.replica_roles import replica_roles
from cluster.control.session.environment import ray_environment
from cluster.control.session.ray_head import ANY_PORT, MARK_ENV, read_record
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import TopologyError, load_topology
from cluster.views.replicas import ReplicaRole
from jobs import read_dataset
from jobs.reading.log_epochs import READER_GROUP
from store.ownership.machine import MACHINE_ENV
from tests.cluster.conftest import COMMIT_LOG_FILE_BYTES, REPO, RayMQ
from tests.cluster.ray_helpers import ensure_up
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BROKERS = ("x", "y")
COUNT = 2_000
SECOND_IP = "127.0.0.2"
RESOURCE = "disk-y"
THIRD_IP = "127.0.0.3"
THIRD_RESOURCE = "disk-z"
LIMIT_MS = int(LIMIT_S * 1000)
PATIENT = ProducerConfig(
    group="P", send_timeout_ms=LIMIT_MS, delivery_timeout_ms=LIMIT_MS, route_refresh_ms=1000
)


class OtherNode:
    """Raylet that joins the Ray of the session. It carries the mark of the head and is stopped with it."""

    def __init__(self, raymq: RayMQ, ip: str, resource: str, first_port: int) -> None:
        record = read_record(raymq.home)
        assert record is not None
        self._ip, self._resource, self._first_port = ip, resource, first_port
        self._address = record.address
        self._environment = {
            **ray_environment(os.environ),
            MARK_ENV: record.mark,
            MACHINE_ENV: ip,
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self._address}"]
        command += [
            f"--node-ip-address={self._ip}",
            f'--resources={{"{self._resource}": 1, "java": 1}}',
            "--num-cpus=1",
        ]
        command += ["--object-store-memory=80000000", f"--min-worker-port={self._first_port}"]
        command += [f"--max-worker-port={self._first_port + 1000}"]
        command += [f"--dashboard-agent-listen-port={ANY_PORT}"]

        def has_started() -> bool:
            done = subprocess.run(command, env=self._environment, check=False, timeout=4 * LIMIT_S)
            if done.returncode != 0:  # Ray's start timeout of 30 s may be too short on a busy machine
                self.lose()
            return done.returncode == 0

        eventually(has_started, "the start of the node", within_s=180)
        eventually(lambda: self.is_up, "the node")

    @property
    def is_up(self) -> bool:
        return any(node.ip == self._ip for node in ray_port.nodes())

    def raylets(self) -> list[psutil.Process]:
        marks = {f"--node_ip_address={self._ip}", f"--gcs-address={self._address}"}  # not of another session
        return [
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "raylet" and marks.issubset(process.info["cmdline"] or ())
        ]

    def lose(self) -> None:
        """Kill the raylet, as a power loss would."""
        for raylet in self.raylets():
            raylet.kill()

    def leave(self) -> None:
        for raylet in self.raylets():
            raylet.terminate()
        eventually(lambda: not self.is_up, "the end of the node")


@dataclass(frozen=True)
class Multi:
    """Cluster with broker x on the head node and broker y on the second node."""

    file: Path
    node: OtherNode
    host: str

    @property
    def topology(self) -> Topology:
        return load_topology(self.file)

    @property
    def nameserver(self) -> str:
        (address,) = launch.find_nameservers("multi")
        return address


def write_topology(file: Path, address: str, host: str) -> None:
    content = {
        "cluster": "Multi", "namespace": "multi", "listen_host": host, "insecure": True,
        "ray": {"address": address},
        "broker_settings": {
            "store": {"commit_log_file_bytes": COMMIT_LOG_FILE_BYTES}, "register_interval_ms": 1000,
        },
        "nameservers": [{"listen_port": 0}],
        "brokers": [
            {"name": "x", "listen_port": 0}, {"name": "y", "listen_port": 0, "resource": RESOURCE},
        ],
        "rebalancers": [{"listen_port": 0, "settings": {"min_lease_ms": 200}}],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def multi(raymq: RayMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Multi]:
    """Yield a cluster on two nodes. The single-node cluster of the other tests runs on the same Ray."""
    ensure_up(raymq)
    host = ray_port.own_node_ip()
    if host.startswith("127."):
        pytest.skip("this machine has only a loopback address, which a cluster of several nodes refuses")
    record = read_record(raymq.home)
    assert record is not None
    home = tmp_path_factory.mktemp("multi-home")
    write_topology(home / "multi.yaml", record.address, host)
    node = OtherNode(raymq, SECOND_IP, RESOURCE, 30_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMQ_HOME", str(home))
        node.start()
        try:
            launch.up(home / "multi.yaml")
            yield Multi(home / "multi.yaml", node, host)
        finally:
            if not node.is_up:
                node.start()
            launch.down(load_topology(home / "multi.yaml"))
            node.leave()


def pid_of(actor: str) -> int:
    return int(actor_status(ActorName("multi", actor), LIMIT_S)["pid"])


def failing(multi: Multi) -> dict[str, str]:
    return {entry.actor.name: entry.failing for entry in launch.status(multi.topology)}


def receive_all(consumer: PullConsumer, sent: list[bytes]) -> None:
    """Wait until the consumer, which has subscribed, has received all bodies that were sent."""
    received: set[bytes] = set()

    def has_all() -> bool:
        received.update(message.body for message in consumer.poll(1000, 200))
        return received >= set(sent)

    eventually(has_all, "every acknowledged message")


def log_of(home: Path, broker: str) -> bytes:
    """Return the bytes of the CommitLog of a broker or replica of a group."""
    files = sorted((home / "store" / broker / "commitlog").glob("0*"))
    return b"".join(file.read_bytes() for file in files)


def test_loopback_address_is_refused_on_several_nodes(multi: Multi, raymq: RayMQ) -> None:
    with pytest.raises(
        TopologyError, match=r"brokers\[0\]\.advertised_host: advertised address 127\.0\.0\.1"
    ):
        launch.up(overrides=raymq.overrides)


def test_brokers_run_on_the_node_with_their_resource(multi: Multi) -> None:
    found = {entry.actor.name: entry.actor for entry in launch.status(multi.topology)}
    assert found["x-0"].node_ip == multi.host
    assert found["y-0"].node_ip == SECOND_IP
    eventually(lambda: not any(failing(multi).values()), "all serving")
    with Admin(multi.nameserver) as admin:
        brokers = admin.cluster_info().brokers.values()
        assert {data.broker_addrs[0].rpartition(":")[0] for data in brokers} == {multi.host}


def test_log_events_of_all_nodes_are_shown_once(multi: Multi) -> None:
    lines = list(actor_logs.read(multi.topology, Query("multi", ("y",))))
    serving = [event_of(line) for _, line in lines if event_of(line)["event"] == "broker_serving"]
    assert [(event["broker"], event["level"]) for event in serving] == [("y", "info")]


def fill(multi: Multi, topic: str) -> None:
    """Create a topic with `COUNT` messages in one queue of each broker."""
    with Admin(multi.nameserver) as admin, Producer(multi.nameserver) as producer:
        admin.create_topic(topic, queues=1)
        for broker in BROKERS:
            bodies = [f"{broker}-{number}".encode() for number in range(COUNT)]
            producer.send_many(topic, bodies, queue=MessageQueue(topic, broker, 0))


def stored_bytes(multi: Multi, topic: str) -> dict[str, int]:
    """Return the size of the records of the topic, by broker."""
    return bytes_of(multi, "TOPIC_PUT_SIZE", topic)


def fetched_bytes(multi: Multi, topic: str) -> dict[str, int]:
    """Return the size of the records that bulk readers got over sockets, by broker."""
    return bytes_of(multi, "GROUP_GET_SIZE", f"{topic}@{READER_GROUP}")


def bytes_of(multi: Multi, table: str, key: str) -> dict[str, int]:
    with Admin(multi.nameserver) as admin:
        found = {broker: admin.broker_stats(broker, table, key) for broker in BROKERS}
    return {broker: 0 if stats is None else stats.day.sum for broker, stats in found.items()}


@pytest.mark.extended
def test_dataset_is_mapped_on_the_nodes_of_its_stores(multi: Multi) -> None:
    import ray

    fill(multi, "placed")
    for options in ({}, {"committed": True}, {"override_num_blocks": 4}):
        dataset = read_dataset("placed", nameservers=multi.nameserver, columns=["body"], **options)
        assert len({row["body"] for row in dataset.take_all()}) == 2 * COUNT
    assert fetched_bytes(multi, "placed") == {"x": 0, "y": 0}

    head = ray.get_runtime_context().get_node_id()
    elsewhere = read_dataset("placed", nameservers=multi.nameserver, label_selector={"ray.io/node-id": head})
    assert elsewhere.count() == len(elsewhere.take_all()) == 2 * COUNT
    assert fetched_bytes(multi, "placed") == {"x": 0, "y": stored_bytes(multi, "placed")["y"]}


@pytest.mark.spark
@pytest.mark.extended
def test_spark_partitions_are_mapped_on_the_nodes_of_their_stores(multi: Multi) -> None:
    fill(multi, "placed-spark")

    def read_with(executors: int, resource: str) -> None:
        record = [load_topology(multi.file).ray.address, multi.nameserver, "placed-spark"]
        command = [sys.executable, "-m", "tests.cluster.raydp_reader", *record, str(executors), resource]
        done = subprocess.run(
            command, cwd=REPO, capture_output=True, text=True, check=False, timeout=4 * LIMIT_S
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert f"{2 * COUNT} messages" in done.stdout

    read_with(2, "java=1")  # each node has one unit: one executor on each
    assert fetched_bytes(multi, "placed-spark") == {"x": 0, "y": 0}
    read_with(1, f"node:{multi.host}=0.01")
    assert fetched_bytes(multi, "placed-spark") == {"x": 0, "y": stored_bytes(multi, "placed-spark")["y"]}


def test_broker_of_a_lost_node_restarts_with_all_messages(multi: Multi) -> None:
    with Admin(multi.nameserver) as admin:
        admin.create_topic("kept", queues=2)
    sent: list[bytes] = []

    def send(producer: Producer, count: int) -> set[str]:
        results = []
        for _ in range(count):
            results.append(producer.send("kept", b"%d" % len(sent)))
            sent.append(b"%d" % len(sent))
        return {result.queue.broker_name for result in results}

    with (
        Producer(multi.nameserver, group="multi") as producer,
        PullConsumer(multi.nameserver, "multi") as consumer,
    ):
        consumer.subscribe("kept")
        assert send(producer, 40) == {"x", "y"}
        before = pid_of("y-0")
        multi.node.lose()
        eventually(lambda: len(ray_port.nodes()) == 1, "the loss of the node")
        assert send(producer, 40) <= {"x", "y"}
        missing = f"no live node has the resource '{RESOURCE}'"
        eventually(lambda: failing(multi)["y-0"] == missing, "the report of the lost node")
        eventually(lambda: not psutil.pid_exists(before), "the exit of the broker on the lost node")
        assert send(producer, 40) == {"x"}

        multi.node.start()
        eventually(lambda: not any(failing(multi).values()), "all serving again")
        assert pid_of("y-0") != before
        receive_all(consumer, sent)
    # A new producer fetches the new route; running clients refresh theirs only every 30 s.
    with Producer(multi.nameserver, group="multi") as producer:
        assert send(producer, 40) == {"x", "y"}


@pytest.fixture
def group(multi: Multi, tmp_path: Path) -> Iterator[Path]:
    """Yield the topology file of a running group: its master on the second node, its slave on the first."""
    content = {
        "cluster": "Group", "namespace": "group", "listen_host": multi.host, "insecure": True,
        "ray": {"address": multi.topology.ray.address},
        "broker_settings": {
            "store": {"commit_log_file_bytes": COMMIT_LOG_FILE_BYTES}, "register_interval_ms": 1000,
        },
        "nameservers": [{"listen_port": 0}],
        "brokers": [{
            "name": "z", "listen_port": 0, "replicas": 2, "replication": "sync", "in_sync_replicas": 2,
            "resources": [RESOURCE, f"node:{multi.host}"],
        }],
    }  # fmt: skip
    file = tmp_path / "group.yaml"
    file.write_text(yaml.safe_dump(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMQ_HOME", str(tmp_path))
        launch.up(file)
        try:
            yield file
        finally:
            launch.down(load_topology(file))


def roles(file: Path) -> dict[str, ReplicaRole]:
    return replica_roles(entry.actor for entry in launch.status(load_topology(file)))


@pytest.mark.extended
def test_promotion_after_the_node_of_the_master_is_lost(multi: Multi, group: Path, tmp_path: Path) -> None:
    """The slave has each acknowledged message. Sends are refused until the old master follows it."""
    (nameserver,) = launch.find_nameservers("group")
    eventually(lambda: roles(group)["z-1"].is_in_sync, "the slave to follow")
    sent: list[bytes] = []
    with Producer(nameserver, config=PATIENT) as producer, PullConsumer(nameserver, "G") as consumer:
        for _ in range(100):
            producer.send("T", b"%d" % len(sent))
            sent.append(b"%d" % len(sent))
        before = int(actor_status(ActorName("group", "z-0"), LIMIT_S)["pid"])
        multi.node.lose()
        eventually(lambda: len(ray_port.nodes()) == 1, "the loss of the node")
        eventually(lambda: not psutil.pid_exists(before), "the exit of the master")
        launch.promote(group, [], "z-1")
        with pytest.raises(BrokerRefused, match="1 of in_sync_replicas 2"):
            producer.send("T", b"refused")
        consumer.subscribe("T")
        receive_all(consumer, sent)

    multi.node.start()
    launch.up(group)
    eventually(lambda: roles(group)["z-0"].is_in_sync, "the return of the former master")
    with Producer(nameserver, config=PATIENT) as producer:
        producer.send("T", b"accepted again")
    eventually(lambda: roles(group)["z-0"].lag_bytes == 0, "the former master to follow")
    assert roles(group)["z-1"].name == "master"
    launch.down(load_topology(group))
    assert log_of(tmp_path, "z-0") == log_of(tmp_path, "z-1")


@pytest.fixture
def raft(multi: Multi, raymq: RayMQ, tmp_path: Path) -> Iterator[tuple[Path, OtherNode]]:
    """Yield the topology file of a Raft group whose replicas have a node each, and the third node."""
    content = {
        "cluster": "Raft", "namespace": "raft", "listen_host": multi.host, "insecure": True,
        "ray": {"address": multi.topology.ray.address}, "route_refresh_ms": 0,
        "broker_settings": {
            "store": {"commit_log_file_bytes": COMMIT_LOG_FILE_BYTES, "flush": "sync"},
            "register_interval_ms": 1000,
        },
        "nameservers": [{"listen_port": 0}],
        "brokers": [{
            "name": "z", "listen_port": free_port(10, 20), "replicas": 3, "replication": "raft",
            "resources": [f"node:{multi.host}", RESOURCE, THIRD_RESOURCE],
        }],
    }  # fmt: skip
    file = tmp_path / "raft.yaml"
    file.write_text(yaml.safe_dump(content))
    third = OtherNode(raymq, THIRD_IP, THIRD_RESOURCE, 32_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYMQ_HOME", str(tmp_path))
        third.start()
        try:
            launch.up(file)
            yield file, third
        finally:
            launch.down(load_topology(file))
            third.leave()


@pytest.mark.extended
def test_raft_group_continues_when_the_node_of_its_leader_is_lost(
    multi: Multi, raft: tuple[Path, OtherNode], tmp_path: Path
) -> None:
    file, third = raft
    (nameserver,) = launch.find_nameservers("raft")

    def pid(actor: str) -> int:
        return int(actor_status(ActorName("raft", actor), LIMIT_S)["pid"])

    def leader() -> str:
        """Return the replica that leads; one on the head's node is killed, so that another one does."""
        found = "".join(name for name, role in roles(file).items() if role.name == "leader")
        if found == "z-0":
            os.kill(pid(found), signal.SIGKILL)
        return found.replace("z-0", "")

    sent: list[bytes] = []
    with Producer(nameserver, config=PATIENT) as producer, PullConsumer(nameserver, "G") as consumer:

        def send() -> None:
            for _ in range(100):
                producer.send("T", b"%d" % len(sent))
                sent.append(b"%d" % len(sent))

        eventually(lambda: all(role.name != "failed" for role in roles(file).values()), "a group")
        send()
        lost = eventually(leader, "a leader on another node than the head's")
        node, before = {"z-1": multi.node, "z-2": third}[lost], pid(lost)
        node.lose()
        send()
        eventually(lambda: not node.is_up and not psutil.pid_exists(before), "the loss of the node")
        send()
        consumer.subscribe("T")
        receive_all(consumer, sent)
    node.start()
    launch.up(file)
    eventually(lambda: roles(file)[lost].lag_bytes == 0, "the replica on the lost node to follow")
    launch.down(load_topology(file))
    ends = [log_of(tmp_path, name).rstrip(b"\0") for name in ("z-0", "z-1", "z-2")]
    # The leaders that were stopped one by one have more records.
    assert all(max(ends, key=len).startswith(end) for end in ends)
