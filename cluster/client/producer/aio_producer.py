"""The producer, async face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from cluster.client.config import KIB, Nameservers, ProducerConfig
from cluster.client.errors import ClientClosed
from cluster.client.hooks import SendContext
from cluster.client.producer.outbound import Outbound
from cluster.client.producer.producer_core import ProducerCore, as_message, chooser, producer_config
from cluster.client.producer.sender import Choose
from cluster.client.producer.table_send import TableSender
from cluster.client.results import SendResult, TableReceipt
from cluster.client.selectors import MessageQueueSelector
from store.clock import Clock
from store.message.message import Message
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.client.producer.table_columns import TableColumns

T = TypeVar("T")
Ready = tuple[Outbound, SendContext | None]

# From here on a body is compressed in a thread: the loop would stand still for milliseconds.
COMPRESS_APART_BYTES = 64 * KIB


class Promise(Generic[T]):
    """An asyncio future as a send's outcome; whoever awaits it may have been cancelled meanwhile."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[T]) -> None:
        self.future = future

    def resolve(self, value: T, /) -> None:
        """Give the result."""
        if not self.future.done():
            self.future.set_result(value)

    def reject(self, error: BaseException, /) -> None:
        """Give the error."""
        if not self.future.done():
            self.future.set_exception(error)


class Producer:
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
        self._core = ProducerCore(producer_config(nameservers, group, config), clock)
        self._tables: TableSender
        self._is_open = False
        self._is_closed = False

    async def start(self) -> Self:
        """Open the producer on the running loop. `async with` and the first send do it too."""
        self._opened()
        return self

    async def close(self) -> None:
        """Wait for what is under way (each send has its deadline), then end the connections."""
        self._is_closed = True
        if self._is_open:
            self._is_open = False
            if not self._core.instance.is_orphan:
                await self._core.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
        """Send one message – a `Message`, or a topic and a body – and give back where it is.

        Equal `sharding_key`s share a queue and keep their order when each send is awaited before the next. A
        send with `sharding_key`, `queue` or `selector` waits for its own queue until `delivery_timeout_ms`;
        any other is tried on two more queues within `send_timeout_ms`.

        Raises MessageRejected, TopicNotFound, SendFailed, DeadlineExceeded and others of
        `cluster.client.errors`.
        """
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        timeout_ms = self._core.timeout_ms(choose, timeout_ms)
        return await self._send(*await self._ready(ready), choose, timeout_ms)

    async def _ready(self, message: Message, *, is_oneway: bool = False) -> Ready:
        core = self._opened()
        config = core.config
        if config.compression is not None and len(message.body) >= COMPRESS_APART_BYTES:
            return await asyncio.to_thread(core.ready, message, is_oneway=is_oneway)
        return core.ready(message, is_oneway=is_oneway)

    async def _send(
        self, outbound: Outbound, context: SendContext | None, choose: Choose | None, timeout_ms: int
    ) -> SendResult:
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        outcome = self._core.watched(Promise(future), context)
        self._core.sender.start(outbound, choose, timeout_ms, outcome)
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
        ready = self._opened().ready_batch(messages)
        choose = chooser(messages[0], sharding_key, queue, None, None)
        return await self._send(*ready, choose, self._core.timeout_ms(choose, timeout_ms))

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
        """Send without wanting an answer: fast, and lost without a word when the broker is away."""
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        outbound, context = await self._ready(ready, is_oneway=True)
        await self._core.oneway(outbound, choose, context)

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
        """Send plain sequences, one element a message, by the fast path of `send_table`."""
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
        self._opened()
        stop = threading.Event()
        try:
            # A thread encodes: kernels let go of the GIL, and waiting for room must not hold up the loop.
            return await asyncio.to_thread(self._tables.send, topic, columns, queue, stop)
        finally:
            stop.set()

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues over which keyed sends to `topic` are spread."""
        return await self._opened().queues_of(topic)

    async def flush(self) -> None:
        """Wait until every send that has begun is acknowledged or has failed."""
        await self._opened().sender.flush()

    def _opened(self) -> ProducerCore:
        if not self._is_open:
            if self._is_closed:
                raise ClientClosed("the producer is closed")
            self._core.open()
            self._tables = TableSender(self._core, asyncio.get_running_loop())
            self._is_open = True
        self._core.instance.check_loop()
        return self._core
