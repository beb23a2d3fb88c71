"""Load of a workload: producers and consumers of the asyncio client in this process."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from contextlib import AsyncExitStack, suppress
from typing import Any

from cluster.bench.omb.figures import LATENCIES, Histogram, Period, add_period, add_totals, result
from cluster.bench.omb.rate import FIRST_RATE, SEARCH_STEP_S, Pacer, RateSearch
from cluster.bench.omb.workload import GIB, Workload
from cluster.bench.options import BenchFailed, Progress
from cluster.client import MessageExt, PushConfig
from cluster.client.aio import Admin, Producer, PushConsumer
from cluster.client.errors import ClientError

PERIOD_S = 10.0
PROBE_TIMEOUT_S = 60.0
STALL_TIMEOUT_S = 60.0
POLL_S = 0.02
SENDS_IN_FLIGHT = 64
"""Concurrent sends of one producer."""
KEYS = 10_000
CONSUME_BATCH = 32
DRAINED = 1_000
"""Messages that remain in flight while producers send; a backlog of at most so many is drained."""


def run_omb(
    workload: Workload, payloads: list[bytes], nameservers: str, progress: Progress
) -> dict[str, Any]:
    """Run a workload against the cluster at `nameservers` and return its result.

    The topics are new and are deleted at the end. Raises BenchFailed and ClientError.
    """
    return asyncio.run(_Load(workload, payloads, nameservers, progress).run())


class _Load:
    """The clients of a workload and the counts of its messages."""

    def __init__(
        self, workload: Workload, payloads: list[bytes], nameservers: str, progress: Progress
    ) -> None:
        self._workload = workload
        self._payloads = payloads
        self._nameservers = nameservers
        self._progress = progress
        self._run = uuid.uuid4().hex[:8]
        self._topics = [f"omb-{self._run}-{number}" for number in range(workload.topics)]
        self._consumers: list[PushConsumer] = []
        self._unprobed = {
            (topic, f"{topic}-sub-{number}")
            for topic in self._topics
            for number in range(workload.subscriptionsPerTopic)
        }
        self._is_probed = asyncio.Event()
        self._numbers = itertools.count()
        self._pacer = Pacer(workload.producerRate or FIRST_RATE, time.perf_counter())
        self._period = Period()
        self._sent = 0
        self._received = 0

    async def run(self) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(self._nameservers))
            self._progress(f"creating {self._workload.topics} topics")
            try:
                for topic in self._topics:
                    await admin.create_topic(topic, queues=self._workload.partitionsPerTopic)
                async with AsyncExitStack() as clients:
                    return await self._with_clients(clients)
            finally:
                for topic in self._topics:
                    with suppress(ClientError):
                        await admin.delete_topic(topic)

    async def _with_clients(self, clients: AsyncExitStack) -> dict[str, Any]:
        for topic in self._topics:
            for number in range(self._workload.subscriptionsPerTopic):
                for _ in range(self._workload.consumerPerSubscription):
                    await self._consume(clients, topic, f"{topic}-sub-{number}")
        producers = [
            (await clients.enter_async_context(Producer(self._nameservers)), topic)
            for topic in self._topics
            for _ in range(self._workload.producersPerTopic)
        ]
        await self._probe(producers[0][0])
        self._pacer.restart(self._pacer.rate, time.perf_counter())
        senders = asyncio.gather(*(self._send(*each) for each in producers for _ in range(SENDS_IN_FLIGHT)))
        test = asyncio.ensure_future(self._measure())
        try:
            await asyncio.wait((test, senders), return_when=asyncio.FIRST_COMPLETED)
            if senders.done():
                senders.result()  # raises: the senders have no other end
            return await test
        finally:
            test.cancel()
            senders.cancel()
            await asyncio.gather(test, senders, return_exceptions=True)

    async def _consume(self, clients: AsyncExitStack, topic: str, group: str) -> None:
        async def listener(messages: list[MessageExt]) -> None:
            now_ms = time.time() * 1000
            add = self._period.latencies["endToEndLatency"].add
            for message in messages:
                add(max(now_ms - message.born_timestamp, 0.0) * 1000)
            self._unprobed.discard((topic, group))
            if not self._unprobed:
                self._is_probed.set()
            self._period.received += len(messages)
            self._received += len(messages)

        config = PushConfig(consume_batch=CONSUME_BATCH)
        consumer = await clients.enter_async_context(
            PushConsumer(self._nameservers, group, listener, config=config)
        )
        await consumer.subscribe(topic)
        self._consumers.append(consumer)

    async def _probe(self, producer: Producer) -> None:
        self._progress("waiting for one message of each topic in each subscription")
        for topic in self._topics:
            await producer.send(topic, self._payloads[0])
            self._sent += 1
        if not self._unprobed:
            return
        try:
            await asyncio.wait_for(self._is_probed.wait(), PROBE_TIMEOUT_S)
        except TimeoutError:
            raise BenchFailed(
                f"after {PROBE_TIMEOUT_S:g} s {len(self._unprobed)} subscriptions have received no message"
            ) from None

    async def _send(self, producer: Producer, topic: str) -> None:
        """Send messages at their intended times, until cancelled; a failed send counts as an error."""
        while True:
            intended_s = self._pacer.next_s()
            await asyncio.sleep(max(intended_s - time.perf_counter(), 0))
            number = next(self._numbers)
            body = self._payloads[number % len(self._payloads)]
            began_s = time.perf_counter()
            try:
                await producer.send(topic, body, keys=self._key(number))
            except ClientError:
                self._period.errors += 1
                continue
            latencies = self._period.latencies
            latencies["publishLatency"].add((time.perf_counter() - began_s) * 1e6)
            latencies["publishDelayLatency"].add(max(began_s - intended_s, 0.0) * 1e6)
            self._period.sent += 1
            self._sent += 1

    def _key(self, number: int) -> str | None:
        match self._workload.keyDistributor:
            case "NO_KEY":
                return None
            case "KEY_ROUND_ROBIN":
                return str(number % KEYS)
            case _:
                return str(random.randrange(KEYS))

    def _backlog(self) -> int:
        return max(self._sent * self._workload.subscriptionsPerTopic - self._received, 0)

    async def _measure(self) -> dict[str, Any]:
        """Warm up, build the backlog and run the test; a search of the rate continues until its end."""
        workload = self._workload
        search = None if workload.producerRate else asyncio.ensure_future(self._search_rate())
        try:
            self._progress("warm-up")
            await asyncio.sleep(workload.warmupDurationMinutes * 60)
            drained_at = await self._build_backlog() if workload.consumerBacklogSizeGB else None
            return await self._test(drained_at)
        finally:
            if search is not None:
                search.cancel()

    async def _search_rate(self) -> None:
        search = RateSearch()
        while True:
            sent, backlog, began_s = self._sent, self._backlog(), time.perf_counter()
            await asyncio.sleep(SEARCH_STEP_S)
            now_s = time.perf_counter()
            rate = search.step(now_s - began_s, self._sent - sent, self._backlog() - backlog)
            self._pacer.restart(rate, now_s)

    async def _build_backlog(self) -> float:
        """Pause the consumers until the backlog is built; return the backlog that counts as drained."""
        size = self._workload.messageSize
        wanted = self._workload.consumerBacklogSizeGB * GIB / size
        self._progress(f"building a backlog of {wanted:,.0f} messages")
        for consumer in self._consumers:
            await consumer.pause()
        sent, last_s = self._sent, time.perf_counter()
        while self._backlog() < wanted:
            await asyncio.sleep(POLL_S)
            if self._sent > sent:
                sent, last_s = self._sent, time.perf_counter()
            elif time.perf_counter() - last_s > STALL_TIMEOUT_S:
                raise BenchFailed(f"no message was sent for {STALL_TIMEOUT_S:g} s while building the backlog")
        for consumer in self._consumers:
            await consumer.resume()
        return wanted * (1 - self._workload.backlogDrainRatio) + DRAINED

    async def _test(self, drained_at: float | None) -> dict[str, Any]:
        """Measure until the end of the test, and until the backlog is at most `drained_at`."""
        found = result(self._workload, "raymq")
        totals = {name: Histogram() for name in LATENCIES}
        self._period = Period()
        began_s = last_s = time.perf_counter()
        end_s = began_s + self._workload.testDurationMinutes * 60
        while last_s < end_s or (drained_at is not None and self._backlog() > drained_at):
            await asyncio.sleep(min(PERIOD_S, end_s - last_s) if last_s < end_s else PERIOD_S)
            now_s = time.perf_counter()
            period, self._period = self._period, Period()
            add_period(found, period, now_s - last_s, self._backlog())
            for name, each in period.latencies.items():
                totals[name].merge(each)
            self._progress(
                f"{now_s - began_s:,.0f} s: {found['publishRate'][-1]:,.0f} sent/s,"
                f" {found['consumeRate'][-1]:,.0f} received/s, backlog {self._backlog():,}"
            )
            last_s = now_s
        add_totals(found, totals)
        return found
