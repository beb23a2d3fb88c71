"""The producer, async face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cluster.client.config import KIB, Nameservers, ProducerConfig
from cluster.client.producer.arguments import as_message, chooser
from cluster.client.producer.producer_core import ProducerCore, open_producer, producer_config
from cluster.client.producer.sender import Choose, Send
from cluster.client.results import SendResult, TableReceipt
from cluster.client.selectors import MessageQueueSelector
from cluster.client.transport.faces import AsyncFace
from store.clock import Clock
from store.message.message import Message
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.client.producer.table_columns import TableColumns

# From here on a body is compressed in a thread: the loop would stand still for milliseconds.
COMPRESS_APART_BYTES = 64 * KIB


class Producer(AsyncFace[ProducerCore]):
    """Sends messages. One per process and group is enough; safe for any number of tasks of one loop.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send("orders", b"4 apples", tags="fruit", keys="order-1")
            print(result.msg_id, result.queue, result.queue_offset)

    `nameservers` is `"host:port;host:port"`, a list, or a function that gives one; by default
    RAYMQ_NAMESERVERS or 127.0.0.1:9876.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        *,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        config = producer_config(nameservers, group, config)
        super().__init__("producer", lambda: open_producer(config, clock))

    async def close(self) -> None:
        """Wait for what is under way (each send has its deadline), then end the connections."""
        if (core := self._closing()) is not None:
            await core.close()

    async def send(
        self,
        message: Message | str,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: dict[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        argument: object = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message – a `Message`, or a topic and a body – and return where it is stored.

        Equal `sharding_key`s share a queue and keep their order if each send ends before the next begins. A
        send with `sharding_key`, `queue` or `selector` waits for its own queue until `delivery_timeout_ms`;
        any other is tried on two more queues within `send_timeout_ms`.

        Raises MessageRejected, TopicNotFound, SendFailed, DeadlineExceeded and others of
        `cluster.client.errors`.
        """
        core = self._opened()
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        return await self._finished(core, await self._prepared(core, ready, choose, timeout_ms))

    async def _prepared(
        self,
        core: ProducerCore,
        message: Message,
        choose: Choose | None,
        timeout_ms: int | None,
        *,
        is_oneway: bool = False,
    ) -> Send:
        if core.config.compression is not None and len(message.body) >= COMPRESS_APART_BYTES:
            return await asyncio.to_thread(core.prepare, message, choose, timeout_ms, is_oneway=is_oneway)
        return core.prepare(message, choose, timeout_ms, is_oneway=is_oneway)

    async def _finished(self, core: ProducerCore, send: Send) -> SendResult:
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        core.sender.start(send, future)
        return await future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store `messages`, all of one topic, in one queue: all or none. At most 4 MiB together.

        `msg_id` and `offset_msg_id` of the result are comma-joined, `queue_offset` is the first message's.
        """
        core = self._opened()
        return await self._finished(core, core.prepare_batch(messages, sharding_key, queue, timeout_ms))

    async def send_oneway(
        self,
        message: Message | str,
        body: bytes | str | None = None,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: dict[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        argument: object = None,
    ) -> None:
        """Send without a response: fast, and lost without an error if the broker is away."""
        core = self._opened()
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        await core.sender.oneway(await self._prepared(core, ready, choose, None, is_oneway=True))

    async def send_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: Sequence[str | None] | str | None = None,
        keys: Sequence[str | None] | None = None,
        sharding_keys: Sequence[str] | None = None,
        queue: MessageQueue | None = None,
    ) -> TableReceipt:
        """Send plain sequences, one element a message, by the fast path of `send_table`. Raises as that.

        await producer.send_many("numbers", [b"1", b"2"], tags="odd-and-even", keys=["one", "two"])
        """
        from cluster.client.producer.table_columns import columns_of_sequences

        columns = columns_of_sequences(bodies, tags, keys, sharding_keys)
        return await self._send_columns(topic, columns, queue)

    async def send_table(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        body: str = "body",
        tags: str | None = None,
        keys: str | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
    ) -> TableReceipt:
        """Send a table, a message a row; the arguments name its columns.

            columns = {"body": [b"a", b"b"], "carrier": ["UA", "B6"], "tail": ["N14228", "N804JB"]}
            table = pyarrow.table(columns)
            receipt = await producer.send_table("flights", table, tags="carrier", sharding_key="tail")

        `body` is of bytes or text; `tags` and `keys` are of text (null: none). Rows with equal
        `sharding_key` go to one queue in the table's order; without one the rows are dealt to the queues in
        runs. Every row gets a UNIQ_KEY. At most one batch a queue is unresolved, and it is sent again before
        its successors when its result is unknown: a restarting broker costs time and perhaps duplicates, no
        order and no rows.

        Raises TableSendFailed when rows stay unacknowledged at `delivery_timeout_ms`.
        """
        from cluster.client.producer.table_columns import columns_of_table

        columns = columns_of_table(table, body, tags, keys, sharding_key)
        return await self._send_columns(topic, columns, queue)

    async def _send_columns(
        self, topic: str, columns: TableColumns, queue: MessageQueue | None
    ) -> TableReceipt:
        tables = self._opened().tables
        stop = threading.Event()
        try:
            # A thread encodes: kernels let go of the GIL, and waiting for room must not hold up the loop.
            return await asyncio.to_thread(tables.send, topic, columns, queue, stop)
        finally:
            stop.set()

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues over which keyed sends to `topic` are spread."""
        return await self._opened().queues_of(topic)

    async def flush(self) -> None:
        """Wait until every send that has begun is acknowledged or has failed."""
        await self._opened().sender.flush()
