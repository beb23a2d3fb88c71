"""Processes killed and paused under load: clients continue, and their histories are consistent.

A pause lasts until its effect is visible: sends exceed their deadline, or a lease expires.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from actors.broker.core.group.queue_locks import LOCK_TIMEOUT_NS
from cluster.client import Admin, ClientError, Producer, ProducerConfig, PullConsumer, PushConsumer
from tests.background import Background
from tests.checkers import Event, Recorder, assert_consistent, load
from tests.eventually import LIMIT_S, TIME_SCALE, eventually
from tests.faults.member import REQUEST_TIMEOUT_MS, config_of, listener_of, ordered_listener_of
from tests.faults.standalone_process import StandaloneProcess, paused

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REPO = Path(__file__).parent.parent.parent
TOPIC = "load"
QUEUES = 4
SHORT_DELIVERY_MS = int(1500 * TIME_SCALE)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StandaloneProcess]:
    root = tmp_path / "stores"
    root.mkdir()
    process = StandaloneProcess(root)
    with Admin(process.nameserver) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    yield process
    process.stop()


class Load(Background):
    """Thread that sends numbered messages with keys and records the result of each."""

    def __init__(
        self, nameserver: str, recorder: Recorder, timeout_ms: int = int(2 * LIMIT_S * 1000)
    ) -> None:
        super().__init__()
        self._recorder = recorder
        self.acknowledged = 0
        self.errors: list[ClientError] = []
        self._config = ProducerConfig(
            nameservers=nameserver,
            group="load",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=timeout_ms,
        )

    def run(self) -> None:
        with Producer(config=self._config) as producer:
            number = 0
            while not self.is_over.wait(0.002):
                number += 1
                key = f"k{number % 7}"
                operation = self._recorder.send("load", TOPIC, str(number), key=key)
                try:
                    result = producer.send(TOPIC, str(number), sharding_key=key)
                except ClientError as error:
                    self.errors.append(error)
                    operation.info(attempts=100)
                else:
                    # The client retries a send whose response was lost: the message may be stored twice.
                    operation.ok(result.queue.queue_id, result.queue_offset, attempts=100)
                    self.acknowledged += 1


class Reader:
    """Polls a consumer and records the received messages."""

    def __init__(self, consumer: PullConsumer, recorder: Recorder, group: str) -> None:
        self._consumer = consumer
        self._recorder = recorder
        self._group = group
        self.seen: set[str] = set()

    def poll(self) -> int:
        for message in self._consumer.poll(1000, 50):
            value = message.body.decode()
            self.seen.add(value)
            self._recorder.read("reader", self._group, TOPIC, message.queue_id, message.queue_offset, value)
        return len(self.seen)


def acknowledged(recorder: Recorder) -> set[str]:
    return {event.value for event in recorder.events if event.op == "send" and event.type == "ok"}


def test_broker_killed_under_load_loses_no_acknowledged_message(
    broker: StandaloneProcess,
) -> None:
    recorder = Recorder()
    with PullConsumer(broker.nameserver, group="over-kills") as consumer:
        consumer.subscribe(TOPIC)
        reader = Reader(consumer, recorder, "over-kills")
        with Load(broker.nameserver, recorder) as sending:
            for _ in range(2):
                seen = reader.poll()
                eventually(lambda seen=seen: reader.poll() >= seen + 50, "messages")  # type: ignore[misc]
                broker.kill()
                broker.start()
            sent = sending.acknowledged
            eventually(lambda: sending.acknowledged >= sent + 50, "sends after the last kill")
        assert sending.errors == []
        eventually(lambda: bool(reader.poll()) and reader.seen >= acknowledged(recorder), "every message")
    # After a kill a group may resume at older, saved offsets.
    assert_consistent(recorder.events, ignore=["not_sequential"])


def test_sends_to_paused_broker_fail_retriably_and_resume(
    broker: StandaloneProcess,
) -> None:
    recorder = Recorder()
    with PullConsumer(broker.nameserver, group="over-a-pause") as consumer:
        consumer.subscribe(TOPIC)
        reader = Reader(consumer, recorder, "over-a-pause")
        with Load(broker.nameserver, recorder, SHORT_DELIVERY_MS) as sending:
            eventually(lambda: reader.poll() >= 50, "messages")
            with paused(broker.process.pid):
                failed = len(sending.errors)
                eventually(lambda: len(sending.errors) >= failed + 2, "sends that exceed their deadlines")
            sent = sending.acknowledged
            eventually(lambda: sending.acknowledged >= sent + 50, "sends after the pause")
        assert all(error.retriable for error in sending.errors), sending.errors
        eventually(lambda: bool(reader.poll()) and reader.seen >= acknowledged(recorder), "every message")
    assert_consistent(recorder.events, ignore=["not_sequential"])


@contextmanager
def member(nameserver: str, group: str, history: Path, *name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.faults.member", nameserver, group, TOPIC, str(history), *name]
    with subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"READY\n"
        yield process
        process.stdin.close()
        process.wait(LIMIT_S)


def test_paused_consumer_loses_its_queues_and_its_stale_commits(
    broker: StandaloneProcess, tmp_path: Path
) -> None:
    group = "one-sleeps"
    recorder = Recorder(tmp_path / "history")
    listener = listener_of(recorder, "other", group)
    with (
        Admin(broker.nameserver) as admin,
        PushConsumer(broker.nameserver, listener=listener, config=config_of(group)) as other,
        member(broker.nameserver, group, tmp_path / "history") as sleeper,
    ):

        def shares() -> int:
            for queue, offset in admin.committed_offsets(group, TOPIC).items():
                if offset is not None:
                    recorder.commit("seen", group, TOPIC, queue.queue_id, offset)
            return len(other.assignment())

        other.subscribe(TOPIC)
        with Load(broker.nameserver, recorder) as sending:
            eventually(lambda: shares() == QUEUES // 2, "half of the queues for each")
            with paused(sleeper.pid):
                eventually(lambda: shares() == QUEUES, "all queues for the running consumer")
            eventually(lambda: shares() == QUEUES // 2, "half of the queues for each after the pause")
            sent = sending.acknowledged
            eventually(lambda: shares() > 0 and sending.acknowledged > sent + 50, "more messages")

        def all_read() -> bool:
            shares()
            events = load((tmp_path / "history").read_bytes().splitlines())
            return {event.value for event in events if event.op == "read"} >= acknowledged(recorder)

        eventually(all_read, "every message")
    # A reassigned queue resumes at its last commit; concurrent listeners of a queue may overtake each other.
    assert_consistent(
        load((tmp_path / "history").read_bytes().splitlines()), ignore=["not_sequential", "out_of_order"]
    )


def test_ordered_group_keeps_order_over_kills_of_members_and_broker(
    broker: StandaloneProcess, tmp_path: Path
) -> None:
    group, history = "ordered", tmp_path / "history"
    recorder = Recorder(history)
    listener, config = ordered_listener_of(recorder, "other", group), config_of(group)
    with (
        PushConsumer(broker.nameserver, listener=listener, config=replace(config, ordered=True)) as other,
        member(broker.nameserver, group, history, "ordered", "victim") as victim,
        member(broker.nameserver, group, history, "ordered", "survivor"),
    ):
        other.subscribe(TOPIC)
        with Load(broker.nameserver, recorder) as sending:

            def await_sends() -> None:
                sent = sending.acknowledged
                eventually(lambda: sending.acknowledged >= sent + 100, "more messages")

            # The fifth queue is the one of the retry topic.
            eventually(lambda: 0 < len(other.assignment()) < QUEUES - 1, "queues for all three members")
            await_sends()
            victim.kill()
            victim.wait()
            recorder.kill("victim")
            eventually(lambda: len(other.assignment()) == QUEUES // 2, "the queues of the killed member")
            await_sends()
            broker.kill()
            broker.start()
            await_sends()

        def all_read() -> bool:
            events = load(history.read_bytes().splitlines())
            return {event.value for event in events if event.op == "read"} >= acknowledged(recorder)

        # After the load: messages that are sent while the history is parsed would always be unread.
        eventually(all_read, "every message")
    events = load(history.read_bytes().splitlines())
    assert {event.process for event in events if event.op == "consume"} == {"other", "victim", "survivor"}
    assert_consistent(events, ignore=["not_sequential"])


def repeats_of(process: str, events: list[Event]) -> list[Event]:
    """Return the listener calls of `process` with messages that another process has already consumed."""
    consumed: dict[tuple[int, int], str] = {}
    repeated = []
    for event in events:
        at = (event.queue, event.offset)
        if event.op == "consume" and event.type == "invoke" and event.process == process:
            repeated += [event] if consumed.get(at, process) != process else []
        elif event.op == "consume" and event.type == "ok":
            consumed.setdefault(at, event.process)
    return repeated


@pytest.mark.extended
@pytest.mark.parametrize("at_least_ms", [0, LOCK_TIMEOUT_NS // 1_000_000], ids=["lease", "lock"])
def test_hung_ordered_member_is_replaced_and_consumes_nothing_late(
    broker: StandaloneProcess, tmp_path: Path, at_least_ms: int
) -> None:
    """The member stops in a listener call until its lease (or also its locks) is over, and then continues."""
    group, history = "hangs", tmp_path / "history"
    recorder = Recorder(history)
    listener, config = ordered_listener_of(recorder, "other", group), config_of(group)
    with (
        PushConsumer(broker.nameserver, listener=listener, config=replace(config, ordered=True)) as other,
        # With one thread, no other call of the member is just about to begin when it stops.
        member(broker.nameserver, group, history, "ordered", "hung", "1") as hung,
    ):
        other.subscribe(TOPIC)
        with Load(broker.nameserver, recorder) as sending:

            def await_sends() -> None:
                sent = sending.acknowledged
                eventually(lambda: sending.acknowledged >= sent + 100, "more messages")

            eventually(lambda: len(other.assignment()) == QUEUES // 2, "half of the queues for each")
            await_sends()
            assert hung.stdin is not None
            hung.stdin.write(b"stop\n")
            hung.stdin.flush()
            stopped = psutil.Process(hung.pid)
            eventually(lambda: stopped.status() == psutil.STATUS_STOPPED, "the stop")
            until_ns = time.monotonic_ns() + at_least_ms * 1_000_000
            try:
                eventually(lambda: len(other.assignment()) == QUEUES, "all queues for the other member")
                await_sends()
                eventually(lambda: time.monotonic_ns() > until_ns, "the end of the locks", within_s=120)
            finally:
                stopped.resume()
            eventually(lambda: len(other.assignment()) == QUEUES // 2, "half of the queues for each again")
            await_sends()

        def all_read() -> bool:
            events = load(history.read_bytes().splitlines())
            return {event.value for event in events if event.op == "read"} >= acknowledged(recorder)

        eventually(all_read, "every message")
    events = load(history.read_bytes().splitlines())
    assert repeats_of("hung", events) == []
    assert_consistent(events, ignore=["not_sequential"])
