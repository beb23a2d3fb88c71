"""Sessions: producers and consumers of many lite topics while brokers are killed, and what they notice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from cluster.client import ClientError, aio
from cluster.client.config import ProducerConfig
from store.message.group_config import SubscriptionGroupConfig
from tests.eventually import LIMIT_S, eventually_async

TOPIC, GROUP = "LiteT", "LiteG"
SENDERS, CONSUMERS = 16, 4
OUTAGE_S = 0.5
"""Without an acknowledged send for so long, the service was away."""


class Sessions:
    """Sends numbered messages to each session in turn, and receives them."""

    def __init__(self, names: Sequence[str], producer: aio.Producer) -> None:
        self._names = names
        self._producer = producer
        self._sent = Counter[str]()
        self._received = Counter[str]()
        self._sent_at: dict[tuple[str, int], float] = {}
        self._served_at = self._since = time.monotonic()
        self._may_skip: set[str] = set()
        self._sending: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self.out_of_order: list[tuple[str, int, int]] = []
        self.outage_s = self.wait_s = 0.0
        """The longest time without service, and from a send or the end of an outage to the receipt."""

    def send(self) -> None:
        """Begin to send; each sender has sessions of its own."""
        self._is_over = False
        parts = [self._names[each::SENDERS] for each in range(SENDERS)]
        self._sending = [asyncio.ensure_future(self._send(each)) for each in parts]

    async def pause(self) -> None:
        """Stop to send; what was sent must have succeeded."""
        self._is_over = True
        await asyncio.gather(*self._sending)

    async def _send(self, names: Sequence[str]) -> None:
        while not self._is_over:
            for name in names:
                if self._is_over:
                    return
                number = self._sent[name] + 1
                await self._producer.send(TOPIC, b"%d" % number, lite_topic=name)
                now = time.monotonic()
                if now - self._served_at > OUTAGE_S:
                    self.outage_s, self._since = max(self.outage_s, now - self._served_at), now
                self._served_at = self._sent_at[name, number] = now
                self._sent[name] = number

    def receive(self, consumer: aio.LiteConsumer) -> None:
        """Begin to receive and acknowledge."""
        self._receiving.append(asyncio.ensure_future(self._receive(consumer)))

    async def stop(self) -> None:
        """End all tasks."""
        tasks = (*self._sending, *self._receiving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, consumer: aio.LiteConsumer) -> None:
        while True:
            with suppress(ClientError):
                messages = await consumer.receive(max_messages=32)
                for each in messages:
                    assert each.lite_topic is not None
                    self._note(each.lite_topic, int(each.body))
                await consumer.ack(messages)

    def _note(self, name: str, number: int) -> None:
        last = self._received[name]
        if number > last + 1 and name not in self._may_skip:
            self.out_of_order.append((name, last, number))
        if number > last:
            self._may_skip.discard(name)
            self._received[name] = number
            sent_at, now = self._sent_at.pop((name, number), None), time.monotonic()
            if sent_at is not None and now - self._served_at < OUTAGE_S:
                self.wait_s = max(self.wait_s, now - max(sent_at, self._since))

    async def more(self) -> None:
        """Wait until each session has received a message that is sent from now on."""
        wanted = {name: self._sent[name] + 1 for name in self._names}
        await eventually_async(lambda: all(self._received[name] >= wanted[name] for name in self._names))

    async def all_received(self) -> None:
        """Wait until each acknowledged message is received."""
        await eventually_async(lambda: all(self._received[name] >= self._sent[name] for name in self._names))

    def lose(self) -> None:
        """Note that messages may be lost, as the store of the broker was replaced by a copy."""
        self._may_skip.update(self._names)
        self._sent_at.clear()


@asynccontextmanager
async def sessions(nameserver: str, count: int) -> AsyncIterator[Sessions]:
    """Run sessions in the block; at its end, each message must have been received in its order."""
    names = [f"session-{number}" for number in range(count)]
    config = ProducerConfig(delivery_timeout_ms=int(LIMIT_S * 1000))
    async with AsyncExitStack() as stack:
        await _create(nameserver)
        producer = await stack.enter_async_context(aio.Producer(nameserver, "PG", config=config))
        found = Sessions(names, producer)
        for each in range(CONSUMERS):
            consumer = await stack.enter_async_context(aio.LiteConsumer(nameserver, GROUP, TOPIC))
            await consumer.subscribe(*names[each::CONSUMERS])
            found.receive(consumer)
        stack.push_async_callback(found.stop)  # before its consumers are closed
        found.send()
        await found.more()
        found.outage_s = found.wait_s = 0.0
        yield found
        await found.more()
        await found.pause()
        await found.all_received()
        assert found.out_of_order == []


async def _create(nameserver: str) -> None:
    async def is_created() -> bool:  # the broker may not be registered yet
        with suppress(ClientError):
            async with aio.Admin(nameserver) as admin:
                await admin.create_topic(TOPIC, queues=8, attributes={"message.type": "LITE"})
                attributes = {"lite.bind.topic": TOPIC, "lite.sub.client.quota": "-1"}
                await admin.put_group(SubscriptionGroupConfig(GROUP, attributes=attributes))
                return True
        return False

    await eventually_async(is_created)
