"""Load: the producers and consumers of a measured experiment. They offer its profile and record a history."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.history.events import Recorder
from cluster.client import ConsumerConfig, ProducerConfig, PullConsumer
from cluster.client.aio import Producer
from cluster.client.errors import ClientError

TOPIC, GROUP = "experiment", "experiment-consumers"
STEP_S = 0.01
RETRY_S = 0.05
ATTEMPT_MS = 5_000
POLL_MS = 200


@dataclass
class Counts:
    """Numbers of messages since the start. Each field is changed under `Load`'s lock."""

    offered: int = 0
    accepted: int = 0
    delivered: int = 0


class Load:
    """Runs the producers and consumers of one run in threads of this process.

    Messages of one key are sent one after another, each until it is acknowledged; keys do not wait for each
    other. A consumer consumes at most `caps.consumer_per_s` messages per second.
    """

    def __init__(self, experiment: Experiment, nameservers: list[str]) -> None:
        self.recorder = Recorder()
        self.problems: list[str] = []
        self._experiment = experiment
        self._nameservers = nameservers
        self._counts = Counts()
        self._latencies_ms: list[float] = []
        self._seen: set[int] = set()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._due_s: dict[int, float] = {}

    def start(self) -> None:
        """Start the consumers, and then the producers with the load of time 0."""
        clients, begin_s = self._experiment.clients, time.monotonic()
        for number in range(clients.consumers):
            self._thread(self._consume, f"consumer-{number}")
        for number in range(clients.producers):
            self._thread(self._produce, number, begin_s)

    def counts(self) -> Counts:
        """Return the numbers of messages until now."""
        with self._lock:
            return Counts(self._counts.offered, self._counts.accepted, self._counts.delivered)

    def latency_ms(self) -> tuple[float, float]:
        """Return the median and the 99th percentile of the time from a message's due time to its delivery."""
        with self._lock:
            found = list(self._latencies_ms) or [0.0]
        return float(np.percentile(found, 50)), float(np.percentile(found, 99))

    def finish(self) -> None:
        """Stop all clients and wait for their threads."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _thread(self, target: object, *arguments: object) -> None:
        def run() -> None:
            try:
                target(*arguments)  # type: ignore[operator]
            # A failed client must not look like a slow one.
            except Exception as error:  # noqa: BLE001 - reported in the notes of the run
                self.problems.append(
                    f"{getattr(target, '__name__', target)}: {type(error).__name__}: {error}"
                )

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    # ---- producers ---------------------------------------------------------------------------------------

    def _produce(self, producer_number: int, begin_s: float) -> None:
        asyncio.run(self._run_producer(producer_number, begin_s))

    async def _run_producer(self, number: int, begin_s: float) -> None:
        """Send the messages of each `clients.producers`-th key when they are due."""
        clients = self._experiment.clients
        name = f"producer-{number}"
        config = ProducerConfig(
            group=name, route_refresh_ms=int(clients.route_refresh_s * 1000), sticky_key_groups=(GROUP,)
        )
        due: dict[int, asyncio.Queue[int]] = {
            key: asyncio.Queue() for key in range(number, clients.keys, clients.producers)
        }
        async with Producer(self._nameservers, config=config) as producer, asyncio.TaskGroup() as tasks:
            senders = [tasks.create_task(self._send_all(producer, name, queue)) for queue in due.values()]
            await self._offer(due, begin_s)
            for sender in senders:
                sender.cancel()

    async def _offer(self, due: Mapping[int, asyncio.Queue[int]], begin_s: float) -> None:
        """Add each message of the load to the queue of its key when it is due, until the end of the run."""
        expected, number, last_s = 0.0, 0, 0.0
        while not self._is_over.is_set():
            await asyncio.sleep(STEP_S)
            now_s = time.monotonic() - begin_s
            expected += self._experiment.offered_per_s((now_s + last_s) / 2) * (now_s - last_s)
            last_s = now_s
            while number < int(expected):
                if (queue := due.get(number % self._experiment.clients.keys)) is not None:
                    with self._lock:
                        self._counts.offered += 1
                        self._due_s[number] = begin_s + now_s
                    queue.put_nowait(number)
                number += 1

    async def _send_all(self, producer: Producer, process: str, due: asyncio.Queue[int]) -> None:
        while True:
            await self._send(producer, process, await due.get())

    async def _send(self, producer: Producer, process: str, number: int) -> None:
        key = f"key-{number % self._experiment.clients.keys}"
        body = str(number).encode().ljust(self._experiment.clients.body_bytes)
        operation = self.recorder.send(process, TOPIC, str(number), key=key)
        for attempt in itertools.count(1):
            try:
                sent = await producer.send(TOPIC, body, sharding_key=key, timeout_ms=ATTEMPT_MS)
            except ClientError:
                await asyncio.sleep(RETRY_S)
            else:
                queue = queue_number(sent.queue.broker_name, sent.queue.queue_id)
                operation.ok(queue, sent.queue_offset, attempt)
                with self._lock:
                    self._counts.accepted += 1
                return

    # ---- consumers ---------------------------------------------------------------------------------------

    def _consume(self, name: str) -> None:
        experiment = self._experiment
        config = ConsumerConfig(
            group=GROUP,
            route_refresh_ms=int(experiment.clients.route_refresh_s * 1000),
            commit_interval_ms=100,
        )
        per_s = experiment.caps.consumer_per_s
        with PullConsumer(self._nameservers, config=config) as consumer:
            consumer.subscribe(TOPIC)
            while not self._is_over.is_set():
                begin_s = time.monotonic()
                messages = consumer.poll(max_messages=max(int(per_s * STEP_S * 5), 1), timeout_ms=POLL_MS)
                for message in messages:
                    value = message.body.decode().strip()
                    queue = queue_number(message.broker_name, message.queue_id)
                    self.recorder.read(name, GROUP, TOPIC, queue, message.queue_offset, value)
                    self._delivered(int(value))
                self._is_over.wait(max(begin_s + len(messages) / per_s - time.monotonic(), 0))

    def _delivered(self, number: int) -> None:
        with self._lock:
            if number not in self._seen:
                self._seen.add(number)
                self._counts.delivered += 1
                self._latencies_ms.append((time.monotonic() - self._due_s[number]) * 1000)


def queue_number(broker: str, queue_id: int) -> int:
    """Return one number for a queue of a broker `NAME-N`, because a history has numbered queues."""
    return int(broker.rpartition("-")[2]) * 1_000 + queue_id
