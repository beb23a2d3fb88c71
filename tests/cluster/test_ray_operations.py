"""Restarting and draining under load: clients go on, and nothing that was acknowledged is lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from cluster import launch
from cluster.client import Admin, ClientError, Producer, PullConsumer
from cluster.driver import LaunchFailed, LaunchRefused
from cluster.report import Report
from cluster.topology_file import load_topology
from tests.cluster.conftest import RayMQ
from tests.cluster.ray_helpers import kill_process, status_of, wait_for_successor
from tests.cluster.test_ray_faults import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ATTEMPTS = 5
ACTORS = ("nameserver-0", "nameserver-1", "rebalancer-0", "broker-a-0", "broker-b-0")


class Story(Report):
    """What a command told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(text)


class Sending:
    """A producer that sends numbered bodies, each again after a failure, and knows what was acknowledged."""

    def __init__(self, raymq: RayMQ, topic: str, name: str, *, keyed: bool) -> None:
        self.acknowledged: list[bytes] = []
        self.brokers: list[str] = []
        self.lost: list[str] = []
        self._raymq, self._topic, self._name, self._keyed = raymq, topic, name, keyed
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(";".join(self._raymq.nameservers), group="operations") as producer:
            number = 0
            while not self._is_over.wait(0.002):
                self._send(producer, f"{self._name}-{number:06d}".encode(), str(number % 7))
                number += 1

    def _send(self, producer: Producer, body: bytes, key: str) -> None:
        error: ClientError | None = None
        for _ in range(ATTEMPTS):
            try:
                result = producer.send(self._topic, body, sharding_key=key if self._keyed else None)
            except ClientError as failure:
                error = failure
                if not failure.retriable:
                    break
            else:
                self.acknowledged.append(body)
                self.brokers.append(result.queue.broker_name)
                return
        self.lost.append(f"{body!r}: {error}")


class Load:
    """Two producers, one of them keyed, and a consumer group over one topic."""

    def __init__(self, raymq: RayMQ, topic: str) -> None:
        self.received: Counter[bytes] = Counter()
        self.sendings = [Sending(raymq, topic, name, keyed=name == "keyed") for name in ("keyed", "free")]
        self._consumer = PullConsumer(";".join(raymq.nameservers), group=topic)
        self._topic = topic

    @contextmanager
    def open(self) -> Iterator[Load]:
        with ExitStack() as stack:
            stack.enter_context(self._consumer)
            self._consumer.subscribe(self._topic)
            for sending in self.sendings:
                stack.enter_context(sending)
            self._polls = stack.enter_context(Polling(self._consumer, self.received))
            yield self

    def acknowledged(self) -> set[bytes]:
        return {body for sending in self.sendings for body in list(sending.acknowledged)}

    def go_on(self, count: int = 100) -> None:
        """Wait until so many more have been sent and received."""
        sent = len(self.acknowledged()) + count
        wait_until(lambda: len(self.acknowledged()) >= sent, "sends go on")
        everything = self.acknowledged()
        wait_until(lambda: self.received.keys() >= everything, "every acknowledged message")
        assert [line for sending in self.sendings for line in sending.lost] == []


class Polling:
    """A thread that polls a consumer."""

    def __init__(self, consumer: PullConsumer, received: Counter[bytes]) -> None:
        self._consumer, self._received = consumer, received
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._received.update(message.body for message in self._consumer.poll(1000, 100))

    def __enter__(self) -> Polling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def load(raymq: RayMQ, topic: str) -> Iterator[Load]:
    with Admin(";".join(raymq.nameservers)) as admin:
        admin.create_topic(topic, queues=4)
    with Load(raymq, topic).open() as running:
        running.go_on()
        yield running


def test_either_nameserver_may_be_killed_under_load(running: RayMQ) -> None:
    with load(running, "nameservers-die") as under:
        for actor in ("nameserver-0", "nameserver-1"):
            pid = kill_process(actor)
            under.go_on()
            wait_for_successor(actor, pid)
        with Admin(running.nameservers[0]) as admin:
            wait_until(
                lambda: set(admin.cluster_info().brokers) == {"broker-a", "broker-b"}, "all known again"
            )
        under.go_on()


def test_a_drain_under_load_loses_nothing_and_what_is_not_drained_in_time_is_written_again(
    running: RayMQ,
) -> None:
    topology = load_topology(overrides=running.overrides)
    with load(running, "drained") as under:
        with pytest.raises(
            LaunchFailed, match=r"broker-b-0 is not drained after 0\.5 s: .*; it is written again"
        ):
            launch.drain(topology, "broker-b", timeout_s=0.5)
        assert status_of("broker-b-0")["details"]["departure"] == "stays"
        under.go_on()

        story = Story()
        launch.drain(topology, "broker-b", dry_run=True, report=story)
        assert "would stop broker-b-0; its store stays" in story.lines
        story = Story()
        launch.drain(topology, "broker-b", timeout_s=120, report=story)
        assert "stopped broker-b-0; its store stays, `raymq up` starts it again" in story.lines
        assert [entry.actor.name for entry in launch.status(topology)] == list(ACTORS[:-1])
        under.go_on()
        assert {broker for sending in under.sendings for broker in sending.brokers[-20:]} == {"broker-a"}

        launch.up(overrides=running.overrides)
        under.go_on()


def test_a_rolling_restart_under_load_loses_nothing(running: RayMQ) -> None:
    before = {actor: status_of(actor)["pid"] for actor in ACTORS}
    with load(running, "rolled") as under:
        launch.restart(overrides=running.overrides, rolling=True)
        assert all(status_of(actor)["pid"] != pid for actor, pid in before.items())
        under.go_on()


def test_one_actor_is_restarted_alone(running: RayMQ) -> None:
    before = {actor: status_of(actor)["pid"] for actor in ACTORS}
    launch.restart(overrides=running.overrides, names=["broker-a"])
    after = {actor: status_of(actor)["pid"] for actor in ACTORS}
    assert [actor for actor in ACTORS if before[actor] != after[actor]] == ["broker-a-0"]
    with pytest.raises(LaunchRefused, match="there is no actor 'broker-z'"):
        launch.restart(overrides=running.overrides, names=["broker-z"])
    with pytest.raises(LaunchRefused, match="no broker 'broker-z' runs; there are: broker-a-0, broker-b-0"):
        launch.drain(load_topology(overrides=running.overrides), "broker-z")
