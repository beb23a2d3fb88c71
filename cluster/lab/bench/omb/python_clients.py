"""Clients of a workload: producers and consumers of the asyncio client in this process."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from cluster.client import MessageExt, PushConfig
from cluster.client.aio import Producer, PushConsumer
from cluster.client.errors import ClientError
from cluster.lab.bench.omb.figures import Period
from cluster.lab.bench.omb.rate import FIRST_RATE, Pacer
from cluster.lab.bench.omb.workload import KEYS, PROBE_TIMEOUT_S, SENDS_IN_FLIGHT, Workload
from cluster.lab.bench.options import BenchFailed, Progress

CONSUME_BATCH = 32


@asynccontextmanager
async def python_clients(
    workload: Workload, payloads: Sequence[bytes], nameservers: str, topics: Sequence[str], progress: Progress
) -> AsyncIterator[PythonClients]:
    """Start the clients, and wait until each subscription has received a message.

    Raises BenchFailed if one has not, and ClientError.
    """
    async with AsyncExitStack() as stack:
        clients = PythonClients(workload, payloads, nameservers, topics)
        await clients.start(stack)
        progress("waiting for one message of each topic in each subscription")
        await clients.probe()
        yield clients


class PythonClients:
    """Producers with concurrent sends, and push consumers that count; see `Clients`."""

    driver = "raymq"

    def __init__(
        self, workload: Workload, payloads: Sequence[bytes], nameservers: str, topics: Sequence[str]
    ) -> None:
        self.period = Period()
        self.sent = 0
        self.received = 0
        self._workload = workload
        self._payloads = payloads
        self._nameservers = nameservers
        self._topics = topics
        self._producers: list[tuple[Producer, str]] = []
        self._consumers: list[PushConsumer] = []
        self._unprobed = {
            (topic, f"{topic}-sub-{number}")
            for topic in topics
            for number in range(workload.subscriptionsPerTopic)
        }
        self._is_probed = asyncio.Event()
        self._numbers = itertools.count()
        self._pacer = Pacer(workload.producerRate or FIRST_RATE, time.perf_counter())

    async def start(self, clients: AsyncExitStack) -> None:
        """Start consumers and producers; `clients` stops them."""
        for topic, group in sorted(self._unprobed):
            for _ in range(self._workload.consumerPerSubscription):
                await self._consume(clients, topic, group)
        for topic in self._topics:
            for _ in range(self._workload.producersPerTopic):
                producer = await clients.enter_async_context(Producer(self._nameservers))
                self._producers.append((producer, topic))

    async def probe(self) -> None:
        """Send a message to each topic and wait until each subscription has received one."""
        for topic in self._topics:
            await self._producers[0][0].send(topic, self._payloads[0])
            self.sent += 1
        if not self._unprobed:
            return
        try:
            await asyncio.wait_for(self._is_probed.wait(), PROBE_TIMEOUT_S)
        except TimeoutError:
            raise BenchFailed(
                f"after {PROBE_TIMEOUT_S:g} s {len(self._unprobed)} subscriptions have received no message"
            ) from None

    async def send(self) -> None:
        """Send messages at their intended times, until cancelled."""
        self.change_rate(self._pacer.rate)
        await asyncio.gather(*(self._send(*each) for each in self._producers for _ in range(SENDS_IN_FLIGHT)))

    def change_rate(self, rate: float) -> None:
        """Send `rate` messages/s from now on."""
        self._pacer.restart(rate, time.perf_counter())

    async def pause(self) -> None:
        """Pause all consumers."""
        for consumer in self._consumers:
            await consumer.pause()

    async def resume(self) -> None:
        """Resume all consumers."""
        for consumer in self._consumers:
            await consumer.resume()

    async def _consume(self, clients: AsyncExitStack, topic: str, group: str) -> None:
        async def listener(messages: list[MessageExt]) -> None:
            now_ms = time.time() * 1000
            add = self.period.latencies["endToEndLatency"].add
            for message in messages:
                add(max(now_ms - message.born_timestamp, 0.0) * 1000)
            self._unprobed.discard((topic, group))
            if not self._unprobed:
                self._is_probed.set()
            self.period.received += len(messages)
            self.received += len(messages)

        config = PushConfig(consume_batch=CONSUME_BATCH)
        consumer = await clients.enter_async_context(
            PushConsumer(self._nameservers, group, listener, config=config)
        )
        await consumer.subscribe(topic)
        self._consumers.append(consumer)

    async def _send(self, producer: Producer, topic: str) -> None:
        """Send messages until cancelled; a failed send counts as an error."""
        while True:
            intended_s = self._pacer.next_s()
            await asyncio.sleep(max(intended_s - time.perf_counter(), 0))
            number = next(self._numbers)
            body = self._payloads[number % len(self._payloads)]
            began_s = time.perf_counter()
            try:
                await producer.send(topic, body, keys=self._key(number))
            except ClientError:
                self.period.errors += 1
                continue
            latencies = self.period.latencies
            latencies["publishLatency"].add((time.perf_counter() - began_s) * 1e6)
            latencies["publishDelayLatency"].add(max(began_s - intended_s, 0.0) * 1e6)
            self.period.sent += 1
            self.sent += 1

    def _key(self, number: int) -> str | None:
        match self._workload.keyDistributor:
            case "NO_KEY":
                return None
            case "KEY_ROUND_ROBIN":
                return str(number % KEYS)
            case _:
                return str(random.randrange(KEYS))
