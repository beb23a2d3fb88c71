"""TableSender: encodes tables in the caller's thread and sends them through Lanes on the event loop.

table ─→ slices ─→ queue of each row ─→ frames ─→ Lanes (at most one batch of a queue in flight)
                                          ↑ waits while more than `table_buffer_bytes` are in flight
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.wire.codes import ResponseCode
from cluster.client.config import ProducerConfig
from cluster.client.errors import (
    ClientClosed,
    ClientError,
    ConfigInvalid,
    NameserverUnreachable,
    PermissionDenied,
    TableSendFailed,
)
from cluster.client.namespaces import Namespace
from cluster.client.producer.arguments import GivenQueue, check_queue_of_topic
from cluster.client.producer.lanes import LaneBatch, Lanes, Outcome
from cluster.client.producer.outbound import OutboundFactory, rejected
from cluster.client.producer.send_hooks import SendHooks
from cluster.client.producer.sender import MessageSender
from cluster.client.results import QueueReceipts, TableReceipt
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import TopicRoute
from store.message.hosts import V4_BYTES, V6_BYTES
from store.message.message_id import UniqKeySource
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft
from store.store_errors import MessageInvalid

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.client.producer.table_columns import TableColumns
    from cluster.client.producer.table_frames import Frame, QueueList


class BufferBudget:
    """Limit of the bytes in flight. Encoding threads acquire bytes, the event loop releases them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()

    def acquire(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more are allowed in flight.

        More than the limit is allowed when nothing else is in flight.
        """
        with self._changed:
            while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                self._changed.wait()
            self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release the bytes of a settled batch."""
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()


@dataclass(eq=False)
class TableJob:
    """One table in flight: its receipts and the first error of each queue.

    Attributes:
        topic: The topic.
        budget: The limit of bytes in flight that the producer's tables share.
        names: Translates the topic and the queues of the receipt.
        batches: Number of batches passed to Lanes.
        failures: The first error of each queue that failed.
    """

    topic: str
    budget: BufferBudget
    names: Namespace = Namespace.NONE
    batches: int = 0
    failures: dict[MessageQueue, ClientError] = field(default_factory=dict)
    _receipts: QueueReceipts = field(default_factory=QueueReceipts)
    _open: int = 1  # batches in flight, plus 1 until `wait` is called
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def offered(self) -> None:
        """Count a batch that is passed to Lanes."""
        with self._lock:
            self._open += 1
            self.batches += 1

    def settled(self, batch: LaneBatch, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of `batch`. Called on the event loop."""
        for lane, rows, outcome in zip(batch.queues, batch.runs.messages, outcomes, strict=True):
            queue = self.names.unwrap_queue(lane)
            if isinstance(outcome, ClientError):
                self.failures.setdefault(queue, outcome)
                continue
            self._receipts.add(queue, rows, rows * outcome.resends, outcome.first_offset)
        self.budget.release(batch.size_bytes)
        self._leave()

    def wait(self) -> None:
        """Wait until every batch is settled. No batch may be added after this call."""
        self._leave()
        self._ended.wait()

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._ended.set()

    def receipt(self, rows: int) -> TableReceipt:
        """Return the receipt of a table of `rows` rows. Raises TableSendFailed if a batch failed."""
        receipts, topic = self._receipts, self.names.unwrap(self.topic)
        if self.failures:
            raise TableSendFailed(topic, rows, receipts.rows, self.failures)
        return TableReceipt(topic, receipts.rows, receipts.resent_rows, self.batches, receipts)


class TableSender:
    """Sends the tables of one producer. Built on the event loop; `send` blocks and runs in another thread."""

    def __init__(
        self,
        instance: ClientInstance,
        config: ProducerConfig,
        factory: OutboundFactory,
        hooks: SendHooks,
        sender: MessageSender,
        lanes: Lanes,
        names: Namespace = Namespace.NONE,
    ) -> None:
        self._instance = instance
        self._config = config
        self._factory = factory
        self._hooks = hooks
        self._sender = sender
        self._lanes = lanes
        self._names = names
        self._loop = asyncio.get_running_loop()
        self._budget = BufferBudget(config.table_buffer_bytes)

    def send(
        self,
        topic: str,
        columns: TableColumns,
        queue: MessageQueue | None,
        stop: threading.Event | None = None,
    ) -> TableReceipt:
        """Send all rows and wait until they are acknowledged.

        Setting `stop` cancels the send: no further batch is sent. Raises MessageRejected if a row is invalid,
        TableSendFailed if a batch failed, ClientClosed if the send was cancelled, ConfigInvalid if the rows
        have sharding keys and the producer has sticky keys, and the errors of `RouteCache.get`.
        """
        if columns.is_keyed and self._config.sticky_key_groups:
            raise ConfigInvalid(
                "tables with sharding keys do not support sticky_key_groups: send the rows with send or "
                "send_batch, or use another producer"
            )
        context = self._hooks.before_table(topic, columns.rows)
        try:
            receipt = self._send(topic, columns, queue, stop)
        except ClientError as error:
            self._hooks.after(context, None, error)
            raise
        self._hooks.after(context, receipt)
        return receipt

    def _send(
        self,
        topic: str,
        columns: TableColumns,
        queue: MessageQueue | None,
        stop: threading.Event | None,
    ) -> TableReceipt:
        if queue is not None:
            check_queue_of_topic(topic, queue)
            queue = self._names.wrap_queue(queue)
        topic = self._names.wrap(topic)
        self._factory.check_topic(topic)
        job = TableJob(topic, self._budget, self._names)
        try:
            if columns.rows:
                queues = self._queues_for(topic, columns, queue)
                self._offer_all(job, columns, queues, stop)
        finally:
            job.wait()
        if stop is not None and stop.is_set():
            raise ClientClosed(f"the send of a table to topic {topic!r} was cancelled")
        return job.receipt(columns.rows)

    def _queues_for(
        self, topic: str, columns: TableColumns, queue: MessageQueue | None
    ) -> Sequence[MessageQueue]:
        return asyncio.run_coroutine_threadsafe(self._queues(topic, columns, queue), self._loop).result()

    async def _queues(
        self, topic: str, columns: TableColumns, queue: MessageQueue | None
    ) -> Sequence[MessageQueue]:
        route = await self._route(topic)
        if queue is not None:
            return [GivenQueue(queue)(route)]
        queues = route.keyed
        if not columns.is_keyed and route.writable:
            # Each slice goes to one queue: start after the last queue of the previous table.
            first = route.writable.index(self._sender.next_queue(route))
            queues = (*route.writable[first:], *route.writable[:first])
        if not queues:
            reason = f"topic {topic!r} has no writable queue: check its permission and its brokers"
            raise PermissionDenied(ResponseCode.NO_PERMISSION, reason)
        return queues

    async def _route(self, topic: str) -> TopicRoute:
        """Return the route of `topic`. Retry until the deadline while no nameserver is reachable."""
        instance = self._instance
        deadline_ms = instance.now_ms() + self._config.delivery_timeout_ms
        backoff = Backoff()
        while True:
            try:
                return await instance.routes.get(topic)
            except NameserverUnreachable:
                if instance.now_ms() >= deadline_ms:
                    raise
            await asyncio.sleep(backoff.next_ms() / 1000)

    def _offer_all(
        self,
        job: TableJob,
        columns: TableColumns,
        queues: Sequence[MessageQueue],
        stop: threading.Event | None,
    ) -> None:
        from cluster.client.producer.table_frames import QueueList

        batch_bytes = self._config.table_batch_bytes
        slice_bytes = batch_bytes * len(queues) if columns.is_keyed else batch_bytes
        listed = QueueList(queues)
        first_row = 0
        for turn, rows in enumerate(columns.slices(slice_bytes)):
            if job.failures:
                return
            for frame in self._frames(job.topic, rows, columns.uniq_keys, first_row, listed, turn):
                if stop is not None and stop.is_set():
                    return
                self._offer(job, frame)
            first_row += rows.num_rows

    def _frames(
        self,
        topic: str,
        rows: pa.RecordBatch,
        uniq_keys: UniqKeySource | None,
        first_row: int,
        queues: QueueList,
        turn: int,
    ) -> Iterator[Frame]:
        """Return the requests that send one slice, which begins with row `first_row` of the table."""
        from cluster.client.producer.table_columns import rows_of_slice
        from cluster.client.producer.table_frames import frames

        born_host = bytes(self._host_bytes(topic, queues.queues[0]))
        draft = RecordDraft(topic, 0, b"", born_timestamp=self._instance.clock.wall_ms(), born_host=born_host)
        uniq_keys = uniq_keys or self._factory.uniq_keys
        max_body_bytes = self._config.max_message_bytes
        try:
            dealt = rows_of_slice(rows, draft, queues.ids, turn, uniq_keys, max_body_bytes)
            return frames(dealt, queues, self._config.table_batch_bytes)
        except MessageInvalid as error:
            where = f"in the rows from {first_row:,} on: " if first_row else ""
            raise rejected(MessageInvalid(f"{where}{error}")) from error

    def _host_bytes(self, topic: str, queue: MessageQueue) -> int:
        """Return the size of the hosts in a record, which the broker of `queue` fills in."""
        route = self._instance.routes.peek(topic)
        address = route.master(queue.broker_name) if route is not None else None
        return V6_BYTES if address is not None and address.startswith("[") else V4_BYTES

    def _offer(self, job: TableJob, frame: Frame) -> None:
        batch = LaneBatch(*frame, job, job.settled)
        self._budget.acquire(batch.size_bytes)
        job.offered()
        self._loop.call_soon_threadsafe(self._lanes.offer, batch)
