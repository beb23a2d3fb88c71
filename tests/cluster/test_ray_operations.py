"""Restart and drain brokers under load: clients continue, and their history is consistent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from cluster import launch
from cluster.client import (
    Admin,
    ClientError,
    ConsumerConfig,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
)
from cluster.control import drain, driver, fleet
from cluster.control.launch_errors import LaunchFailed, LaunchRefused
from cluster.control.launch_report import Reporter
from cluster.control.topology.topology_file import load_topology, load_with_source
from cluster.waiting import SYSTEM_WAITING, Waiting
from tests.background import Background
from tests.checkers import Recorder, assert_consistent
from tests.cluster.conftest import RayMQ
from tests.cluster.ray_helpers import kill_process, status_of, wait_for_restart
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaNotFound, java_kit
from tests.eventually import LIMIT_S, NEVER_S, TIME_SCALE, eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ATTEMPTS = 5
CLIENT_INTERVAL_MS = 1000
"""Interval of route refreshes and heartbeats of our clients; Java clients use 2 s (`Clients.java`)."""
CLIENT_REFRESH_S = 5 * TIME_SCALE
"""Time after which every client has refreshed its routes and sent a heartbeat."""
ACTORS = ("nameserver-0", "nameserver-1", "rebalancer-0", "broker-a-0", "broker-b-0")


class RecordingReport(Reporter):
    """Report that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(text)


class Sending(Background):
    """Producer thread that sends numbered bodies, retries failures and records acknowledgements."""

    def __init__(self, raymq: RayMQ, topic: str, name: str, history: Recorder, *, keyed: bool) -> None:
        super().__init__()
        self._history = history
        self.acknowledged: list[bytes] = []
        self.brokers: list[str] = []
        self.lost: list[str] = []
        self._raymq, self._topic, self._name, self._keyed = raymq, topic, name, keyed

    def run(self) -> None:
        config = ProducerConfig(
            group="operations",
            route_refresh_ms=CLIENT_INTERVAL_MS,
            heartbeat_ms=CLIENT_INTERVAL_MS,
            send_timeout_ms=int(LIMIT_S * 1000),
            delivery_timeout_ms=int(LIMIT_S * 1000),
        )
        with Producer(";".join(self._raymq.nameservers), config=config) as producer:
            number = 0
            while not self.is_over.wait(0.02):  # clients at full speed take the cores from the restart
                self._send(producer, f"{self._name}-{number:06d}".encode(), str(number % 7))
                number += 1

    def _send(self, producer: Producer, body: bytes, key: str) -> None:
        error: ClientError | None = None
        operation = self._history.send(self._name, self._topic, body.decode(), key=key if self._keyed else "")
        for _ in range(ATTEMPTS):
            try:
                result = producer.send(self._topic, body, sharding_key=key if self._keyed else None)
            except ClientError as failure:
                error = failure
                if not failure.retriable:
                    break
            else:
                operation.ok(number_of(result.queue), result.queue_offset)
                self.acknowledged.append(body)
                self.brokers.append(result.queue.broker_name)
                return
        operation.info()
        self.lost.append(f"{body!r}: {error}")


def number_of(queue: MessageQueue) -> int:
    """Return a unique number for a queue of the two brokers."""
    return queue.queue_id + 1000 * (queue.broker_name == "broker-b")


class Load:
    """Two producers, one of them with keys, and a consumer group, all on one topic."""

    def __init__(self, raymq: RayMQ, topic: str) -> None:
        self.received: Counter[bytes] = Counter()
        self.history = Recorder()
        self.sendings = [
            Sending(raymq, topic, name, self.history, keyed=name == "keyed") for name in ("keyed", "free")
        ]
        config = ConsumerConfig(
            group=topic, route_refresh_ms=CLIENT_INTERVAL_MS, heartbeat_ms=CLIENT_INTERVAL_MS
        )
        self._consumer = PullConsumer(";".join(raymq.nameservers), config=config)
        self._topic = topic

    @contextmanager
    def open(self) -> Iterator[Load]:
        with ExitStack() as stack:
            stack.enter_context(self._consumer)
            self._consumer.subscribe(self._topic)
            for sending in self.sendings:
                stack.enter_context(sending)
            stack.enter_context(Reading(self._consumer, self._topic, self.received, self.history))
            yield self

    def acknowledged(self) -> set[bytes]:
        return {body for sending in self.sendings for body in list(sending.acknowledged)}

    def await_progress(self, count: int = 100) -> None:
        """Wait until `count` more messages are acknowledged and all acknowledged ones are received."""
        sent = len(self.acknowledged()) + count
        eventually(lambda: len(self.acknowledged()) >= sent, "further acknowledged sends")
        everything = self.acknowledged()
        eventually(lambda: self.received.keys() >= everything, "every acknowledged message")
        assert [line for sending in self.sendings for line in sending.lost] == []


class Reading(Background):
    """Thread that polls a consumer."""

    def __init__(
        self, consumer: PullConsumer, topic: str, received: Counter[bytes], history: Recorder
    ) -> None:
        super().__init__()
        self._consumer, self._topic, self._received, self._history = consumer, topic, received, history

    def run(self) -> None:
        while not self.is_over.is_set():
            for message in self._consumer.poll(1000, 100):
                queue = number_of(MessageQueue(self._topic, message.broker_name, message.queue_id))
                value = message.body.decode()
                self._history.read("reads", self._topic, self._topic, queue, message.queue_offset, value)
                self._received[message.body] += 1


@contextmanager
def load(raymq: RayMQ, topic: str) -> Iterator[Load]:
    with Admin(";".join(raymq.nameservers)) as admin:
        admin.create_topic(topic, queues=4)
    with Load(raymq, topic).open() as running:
        running.await_progress()
        yield running
        for sending in running.sendings:
            sending.__exit__()
        running.await_progress(0)
    # Retries of the client and rebalances allow duplicates and repeated reads.
    assert_consistent(running.history.events, topic, ignore=("duplicated", "not_sequential"))


def test_each_nameserver_is_killed_under_load_without_failures(running: RayMQ, topic: str) -> None:
    with load(running, topic) as clients:
        for actor, address in zip(("nameserver-0", "nameserver-1"), running.nameservers, strict=True):
            pid = kill_process(actor)
            clients.await_progress()
            wait_for_restart(actor, pid)
            with Admin(address) as admin:
                eventually(
                    lambda admin=admin: set(admin.cluster_info().brokers) == {"broker-a", "broker-b"},
                    f"both brokers registered at {actor}",
                )
        clients.await_progress()


def test_drain_under_load_loses_nothing_and_timeout_reactivates(
    running: RayMQ, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(drain, "HEARTBEAT_S", CLIENT_REFRESH_S)
    topology = load_topology(overrides=running.overrides)
    with load(running, topic) as clients:
        with pytest.raises(
            LaunchFailed, match=r"broker-b-0 is not drained after 0\.5 s: .*; it is writable again"
        ):
            launch.drain(topology, "broker-b", timeout_s=0.5)
        assert status_of("broker-b-0")["details"]["drain_state"] == "active"
        clients.await_progress()

        report = RecordingReport()
        launch.drain(topology, "broker-b", dry_run=True, report=report)
        assert "would stop broker-b-0; its store is kept" in report.lines
        report = RecordingReport()
        launch.drain(topology, "broker-b", timeout_s=NEVER_S, report=report)
        assert "stopped broker-b-0; its store is kept, `raymq up` starts the broker again" in report.lines
        assert [entry.actor.name for entry in launch.status(topology)] == list(ACTORS[:-1])
        # The first send of each producer may have been in flight.
        sent = [(sending, len(sending.brokers) + 1) for sending in clients.sendings]
        clients.await_progress()
        assert {broker for sending, count in sent for broker in sending.brokers[count:]} == {"broker-a"}

        launch.up(overrides=running.overrides)
        clients.await_progress()


def test_rolling_restart_under_load_loses_nothing(running: RayMQ, tmp_path: Path, topic: str) -> None:
    before = {actor: status_of(actor)["pid"] for actor in ACTORS}
    with (
        load(running, topic) as clients,
        java_clients(running, topic, tmp_path, clients.history) as java,
    ):
        route_refresh_ms = int(CLIENT_REFRESH_S * 1000)
        launch.restart(overrides=[*running.overrides, f"route_refresh_ms={route_refresh_ms}"], rolling=True)
        assert all(status_of(actor)["pid"] != pid for actor, pid in before.items())
        clients.await_progress()
        if java is not None:
            eventually(lambda: len(java.acknowledged) > 100, "messages of the Java producer")
            java.stop()
            everything = clients.acknowledged() | java.acknowledged
            eventually(lambda: java.received() >= everything, "every message at the Java consumer")
            assert java.failures == []
            eventually(lambda: clients.received.keys() >= everything, "every Java message")


class JavaClients:
    """A Java consumer, started first, and a Java producer.

    The producer starts while broker-a is restarting: it knows only broker-b until its next route refresh.
    """

    def __init__(self, raymq: RayMQ, topic: str, agent: Agent, history: Recorder) -> None:
        self.acknowledged: set[bytes] = set()
        self.failures: list[str] = []
        self._raymq, self._topic, self._agent, self._history = raymq, topic, agent, history
        self._consumer = f"{topic}-java"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._agent.call("push_start", name=self._consumer, group=self._consumer, topic=self._topic)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def received(self) -> set[bytes]:
        return {
            str(message["body"]).encode() for message in self._agent.received(self._consumer, 1 << 30, 0.01)
        }

    def _run(self) -> None:
        with Admin(";".join(self._raymq.nameservers)) as admin:
            while not self._is_over.wait(0.05) and "broker-a" in admin.cluster_info().brokers:
                pass
        for number in count():
            if self._is_over.wait(0.05):
                return
            body = f"java-{number}"
            operation = self._history.send("java", self._topic, body)
            [result] = self._agent.send([{"topic": self._topic, "body": body}])
            if result.get("status") == "SEND_OK":
                queue = MessageQueue(self._topic, result["broker"], result["queueId"])
                operation.ok(number_of(queue), result["queueOffset"])
                self.acknowledged.add(body.encode())
            else:
                operation.info()
                self.failures.append(str(result))


@contextmanager
def java_clients(raymq: RayMQ, topic: str, home: Path, history: Recorder) -> Iterator[JavaClients | None]:
    """Yield running Java clients, or None without a JDK."""
    try:
        kit = java_kit()
    except JavaNotFound:
        yield None
        return
    with Agent(kit, CLIENT, ";".join(raymq.nameservers), home) as agent:
        clients = JavaClients(raymq, topic, agent, history)
        clients.start()
        try:
            yield clients
        finally:
            clients.stop()


def test_interrupted_restart_starts_the_stopped_broker_again(
    running: RayMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, pid = fleet.stop, status_of("broker-b-0")["pid"]

    def interrupted(namespace: str, name: str, *, keeps_process: bool) -> str:
        monkeypatch.setattr(fleet, "stop", stop)
        stop(namespace, name)
        raise KeyboardInterrupt

    monkeypatch.setattr(fleet, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt, match="broker-b-0 is starting again"):
        launch.restart(overrides=running.overrides, names=["broker-b"], waits=False)
    assert wait_for_restart("broker-b-0", pid)["details"]["epoch"] > 1

    # The next command learns from the broker itself when it restarted, and waits before it stops another.
    before, report = {actor: status_of(actor)["pid"] for actor in ACTORS}, RecordingReport()
    slept: list[float] = []

    def sleep(for_s: float) -> None:
        (slept.append if for_s > 1 else SYSTEM_WAITING.sleep)(for_s)

    topology, source = load_with_source(None, [*running.overrides, "route_refresh_ms=3600000"])
    driver.Driver(topology, source, report, waiting=Waiting(SYSTEM_WAITING.clock, sleep)).restart(
        ["broker-a"]
    )
    assert any("until all clients know that the last broker has restarted" in line for line in report.lines)
    assert len(slept) == 1
    assert 0 < slept[0] <= 3601
    after = {actor: status_of(actor)["pid"] for actor in ACTORS}
    assert [actor for actor in ACTORS if before[actor] != after[actor]] == ["broker-a-0"]


def test_restart_and_drain_of_unknown_actors_are_refused(running: RayMQ) -> None:
    with pytest.raises(LaunchRefused, match="no actor 'broker-z'"):
        launch.restart(overrides=running.overrides, names=["broker-z"])
    with pytest.raises(
        LaunchRefused, match="no broker 'broker-z' is running; running brokers: broker-a-0, broker-b-0"
    ):
        launch.drain(load_topology(overrides=running.overrides), "broker-z")
