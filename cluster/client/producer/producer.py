"""The producer, blocking face."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cluster.client.config import Nameservers, ProducerConfig
from cluster.client.errors import ClientClosed
from cluster.client.hooks import SendContext
from cluster.client.producer.direct import DirectConnections
from cluster.client.producer.outbound import Outbound
from cluster.client.producer.producer_core import ProducerCore, as_message, chooser, producer_config
from cluster.client.producer.sender import Choose
from cluster.client.producer.table_send import TableSender
from cluster.client.results import SendResult, TableReceipt
from cluster.client.selectors import MessageQueueSelector
from cluster.client.transport.loop_thread import LoopThread, Waiter
from store.clock import Clock
from store.message.message import Message
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.client.producer.table_columns import TableColumns


class _Promise:
    """A concurrent future as a send's outcome; whoever holds it may have cancelled it."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: Future[SendResult] = Future()

    def resolve(self, value: SendResult, /) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)

    def reject(self, error: BaseException, /) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class Producer:
    """Sends messages. One per process and group is enough; safe for any number of threads. In a forked child
    it opens anew.

        with Producer("127.0.0.1:9876", group="orders") as producer:
            result = producer.send("orders", b"4 apples", tags="fruit", keys="order-1")
            print(result.msg_id, result.queue, result.queue_offset)

            futures = [producer.send_async("orders", body) for body in bodies]
            results = [future.result() for future in futures]

            producer.send(Message("orders", b"a reminder", delay_level=5))  # in a minute

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
        self._config = producer_config(nameservers, group, config)
        self._clock = clock
        self._tables: TableSender
        self._is_closed = False
        self._begin()
        _producers.add(self)

    def _begin(self) -> None:
        self._core = ProducerCore(self._config, self._clock)
        self._connections = DirectConnections(self._config.request_timeout_ms, self._config.call_hooks)
        self._opening = threading.Lock()
        self._thread: LoopThread | None = None

    def forked(self) -> None:
        """This is a child now: the connections are the parent's, and so are the ids that would come next."""
        self._connections.close()
        self._begin()

    def start(self) -> Self:
        """Open the producer. `with` and the first send do it too; nothing is dialled before the first
        send.
        """
        self._opened()
        return self

    def close(self) -> None:
        """Wait for what is under way (each send has its deadline), then end the connections."""
        with self._opening:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._core.close())
        self._connections.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
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

        Equal `sharding_key`s share a queue and keep their order. A send with `sharding_key`, `queue` or
        `selector` waits for its own queue until `delivery_timeout_ms`; any other is tried on two more queues
        within `send_timeout_ms`.

        Raises MessageRejected, TopicNotFound, SendFailed, DeadlineExceeded and others of
        `cluster.client.errors`.
        """
        thread = self._thread or self._opened()
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        timeout_ms = self._core.timeout_ms(choose, timeout_ms)
        outbound, context = self._core.ready(ready)
        if context is None:
            return self._send(thread, outbound, choose, timeout_ms)
        return self._send_watched(thread, outbound, choose, timeout_ms, context)

    def _send_watched(
        self,
        thread: LoopThread,
        outbound: Outbound,
        choose: Choose | None,
        timeout_ms: int,
        context: SendContext,
    ) -> SendResult:
        try:
            result = self._send(thread, outbound, choose, timeout_ms)
        except Exception as error:
            self._core.hooks.after(context, None, error)
            raise
        self._core.hooks.after(context, result)
        return result

    def _send(
        self, thread: LoopThread, outbound: Outbound, choose: Choose | None, timeout_ms: int
    ) -> SendResult:
        began_s = time.monotonic()
        sender = self._core.sender
        sent = sender.send_directly(outbound, choose, timeout_ms, self._connections)
        if isinstance(sent, SendResult):
            return sent
        left_ms = timeout_ms - int((time.monotonic() - began_s) * 1000)
        waiter: Waiter[SendResult] = Waiter()
        thread.post(sender.start_after, outbound, choose, left_ms, sent, waiter)
        return waiter.wait()

    def send_async(
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
    ) -> Future[SendResult]:
        """As `send`, at once giving a future of the result. A message that is illegal raises here.

        Sends of one thread leave in their order; a retried one may be stored after its successors.
        """
        thread = self._thread or self._opened()
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        promise = _Promise()
        timeout_ms = self._core.timeout_ms(choose, timeout_ms)
        outbound, context = self._core.ready(ready)
        outcome = self._core.watched(promise, context)
        thread.post(self._core.sender.start, outbound, choose, timeout_ms, outcome)
        return promise.future

    def send_batch(
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
        thread = self._opened()
        outbound, context = self._core.ready_batch(messages)
        choose = chooser(messages[0], sharding_key, queue, None, None)
        timeout_ms = self._core.timeout_ms(choose, timeout_ms)
        if context is None:
            return self._send(thread, outbound, choose, timeout_ms)
        return self._send_watched(thread, outbound, choose, timeout_ms, context)

    def send_oneway(
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
        thread = self._opened()
        ready = as_message(message, body, tags, keys, properties)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        outbound, context = self._core.ready(ready, is_oneway=True)
        thread.run(self._core.oneway(outbound, choose, context))

    def send_many(
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

        producer.send_many("numbers", [b"1", b"2"], tags="odd-and-even", keys=["one", "two"])
        """
        from cluster.client.producer.table_columns import columns_of_sequences

        return self._send_columns(topic, columns_of_sequences(bodies, tags, keys, sharding_keys), queue)

    def send_table(
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
            receipt = producer.send_table("flights", table, tags="carrier", sharding_key="tail")

        `body` is of bytes or text; `tags` and `keys` are of text (null: none). Rows with equal
        `sharding_key` go to one queue in the table's order; without one the rows are dealt to the queues in
        runs. Every row gets a UNIQ_KEY. At most one batch a queue is unresolved, and it is sent again before
        its successors when its result is unknown: a restarting broker costs time and perhaps duplicates, no
        order and no rows.

        Raises TableSendFailed when rows stay unacknowledged at `delivery_timeout_ms`.
        """
        from cluster.client.producer.table_columns import columns_of_table

        return self._send_columns(topic, columns_of_table(table, body, tags, keys, sharding_key), queue)

    def _send_columns(self, topic: str, columns: TableColumns, queue: MessageQueue | None) -> TableReceipt:
        self._opened()
        return self._tables.send(topic, columns, queue)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues over which keyed sends to `topic` are spread."""
        return self._opened().run(self._core.queues_of(topic))

    def flush(self) -> None:
        """Wait until every send that has begun is acknowledged or has failed."""
        thread = self._opened()
        thread.run(self._core.sender.flush())

    def _opened(self) -> LoopThread:
        with self._opening:
            if self._thread is None:
                if self._is_closed:
                    raise ClientClosed("the producer is closed")
                thread = LoopThread.shared()
                thread.call(self._core.open)
                self._tables = TableSender(self._core, thread.loop)
                self._thread = thread
            return self._thread


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _forked() -> None:
    for producer in list(_producers):
        producer.forked()


os.register_at_fork(after_in_child=_forked)
