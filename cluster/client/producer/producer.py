"""The producer, blocking API."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from cluster.client.config import Nameservers, ProducerConfig
from cluster.client.errors import ClientClosed
from cluster.client.producer import aio_producer as aio
from cluster.client.producer.arguments import as_message, chooser, delay_message
from cluster.client.producer.direct import DirectConnections
from cluster.client.producer.producer_core import ProducerCore, producer_config
from cluster.client.producer.sender import Send
from cluster.client.results import SendResult, TableReceipt
from cluster.client.selectors import MessageQueueSelector
from cluster.client.transport.compiled import check_tables
from cluster.client.transport.faces import BlockingFace, blocking, documented_by
from cluster.client.transport.loop_thread import LoopThread
from store.common.clock import Clock
from store.message.message import Message
from store.message.message_id import UniqKeySource
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.client.producer.table_columns import TableColumns


class _Opened(NamedTuple):
    """State of an open producer: the core on the event loop, and the callers' connections."""

    core: ProducerCore
    connections: DirectConnections


@documented_by(aio.Producer)
class Producer(BlockingFace[aio.Producer]):
    """Sends messages. Any number of threads may share a producer.

        with Producer("127.0.0.1:9876", group="orders") as producer:
            result = producer.send("orders", b"4 apples", tags="fruit", keys="order-1")
            print(result.msg_id, result.queue, result.queue_offset)

            futures = [producer.send_async("orders", body) for body in bodies]
            results = [future.result() for future in futures]

            producer.send("orders", b"a reminder", delay_level=5)  # in a minute
            later = producer.send("orders", b"a reminder", deliver_after=timedelta(hours=2))
            producer.recall("orders", later.recall_handle)  # cancels it

    A child process made by fork may use the producer too: it opens new connections there.

    Args:
        nameservers: `"host:port;host:port"`, a list of `"host:port"`, or a function that returns such a list.
            Default: the environment variable RAYMQ_NAMESERVERS, else 127.0.0.1:9876.
        group: Name of the producer group.
        config: Other settings; `nameservers` and `group` override its fields.
        clock: Source of time, for tests.
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
        super().__init__(self._make_face())
        self._opening = threading.Lock()
        self._opened: _Opened | None = None
        self._is_closed = False
        _producers.add(self)

    def _make_face(self) -> aio.Producer:
        return aio.Producer(config=self._config, clock=self._clock)

    def reset_after_fork(self) -> None:
        """Reset a forked child's copy of the producer; it opens again at the next call.

        The connections and the sequence of UNIQ_KEYs belong to the parent.
        """
        self._opening = threading.Lock()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.connections.close()
        self._face = self._make_face()

    def start(self) -> Self:
        """Open the producer, as `with` and the first send do too. It connects at the first send."""
        self._open()
        return self

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            self._thread.run(self._face.close())
            opened.connections.close()

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
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | int | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        opened = self._opened or self._open()
        ready = as_message(message, body, tags, keys, properties, priority, lite_topic)
        if delay_level or deliver_at is not None or deliver_after is not None:
            delay_message(ready, message, delay_level, deliver_at, deliver_after)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        return self._send(opened, opened.core.prepare(ready, choose, timeout_ms))

    def _send(self, opened: _Opened, send: Send) -> SendResult:
        result = opened.core.sender.send_directly(send, opened.connections)
        return self._start(opened, send).result() if result is None else result

    def _start(self, opened: _Opened, send: Send) -> Future[SendResult]:
        future: Future[SendResult] = Future()
        self._thread.post(opened.core.sender.start, send, future)
        return future

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
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | int | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send one message as `send` does, but return a future of the result immediately.

        Invalid arguments raise here, all other errors in the future. Messages of one thread are sent in the
        order of the calls; a message that is retried may be stored after later ones.
        """
        opened = self._opened or self._open()
        ready = as_message(message, body, tags, keys, properties, priority, lite_topic)
        if delay_level or deliver_at is not None or deliver_after is not None:
            delay_message(ready, message, delay_level, deliver_at, deliver_after)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        return self._start(opened, opened.core.prepare(ready, choose, timeout_ms))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        opened = self._open()
        return self._send(opened, opened.core.prepare_batch(messages, sharding_key, queue, timeout_ms))

    send_oneway = blocking(aio.Producer.send_oneway)
    request = blocking(aio.Producer.request)
    reply = blocking(aio.Producer.reply)
    recall = blocking(aio.Producer.recall)
    queues = blocking(aio.Producer.queues)
    flush = blocking(aio.Producer.flush)

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
        check_tables("send_many")
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
        properties: str | None = None,
        uniq_keys: UniqKeySource | None = None,
    ) -> TableReceipt:
        check_tables("send_table")
        from cluster.client.producer.table_columns import columns_of_table

        return self._send_columns(
            topic, columns_of_table(table, body, tags, keys, sharding_key, properties, uniq_keys), queue
        )

    def _send_columns(self, topic: str, columns: TableColumns, queue: MessageQueue | None) -> TableReceipt:
        return self._open().core.tables.send(topic, columns, queue)

    def _ensure_open(self) -> None:
        self._open()

    def _open(self) -> _Opened:
        with self._opening:
            if self._opened is None:
                if self._is_closed:
                    raise ClientClosed("the producer is closed: create a new one")
                self._thread = LoopThread.shared()  # another one in a forked child
                core = self._thread.call(lambda: self._face.core)
                config = self._config
                connections = DirectConnections(
                    config.request_timeout_ms, config.call_hooks, config.load_tls(), config.request_signer()
                )
                core.instance.moved_masters.watch(connections)
                self._opened = _Opened(core, connections)
            return self._opened


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _reset_producers() -> None:
    for producer in list(_producers):
        producer.reset_after_fork()


os.register_at_fork(after_in_child=_reset_producers)
