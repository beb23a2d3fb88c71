"""The producer, asyncio API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cluster.client.config import KIB, Nameservers, ProducerConfig
from cluster.client.producer.arguments import as_message, capturing, chooser, delay_message
from cluster.client.producer.producer_core import ProducerCore, open_producer, producer_config
from cluster.client.producer.sender import Choose, Send
from cluster.client.results import SendResult, TableReceipt
from cluster.client.selectors import MessageQueueSelector
from cluster.client.transport.compiled import check_tables
from cluster.client.transport.faces import AsyncFace
from store.common.clock import Clock
from store.message.message import Message, MessageExt
from store.message.message_id import UniqKeySource
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from cluster.client.producer.table_columns import TableColumns

# Bodies from this size on are compressed in a thread: it would block the event loop for milliseconds.
COMPRESS_APART_BYTES = 64 * KIB


class Producer(AsyncFace[ProducerCore]):
    """Sends messages. Any number of tasks of one event loop may share a producer.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send("orders", b"4 apples", tags="fruit", keys="order-1")
            print(result.msg_id, result.queue, result.queue_offset)

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
        config = producer_config(nameservers, group, config)
        super().__init__("producer", lambda: open_producer(config, clock))

    async def close(self) -> None:
        """Wait for the sends in flight, each of which has a deadline, then close the connections."""
        if (core := self._closing()) is not None:
            await core.close()

    @capturing
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
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | int | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and return the queue and offset at which it is stored.

        A send with `sharding_key`, `queue`, `selector` or `lite_topic` is bound to one queue and is retried
        there until `delivery_timeout_ms`. Any other send is retried on other queues, at most
        `retry_times_when_send_failed` times, until `send_timeout_ms`.

        Args:
            message: A `Message`, or the name of the topic.
            body: Body of the message; a string is encoded as UTF-8.
            tags: Tag of the message.
            keys: Keys by which the message can be queried.
            properties: User properties.
            sharding_key: Messages with equal keys are sent to the same queue. They keep their order if the
                caller waits for each send before the next.
            queue: Queue of the message.
            selector: Function that chooses the queue; it gets `argument`.
            argument: Last argument of `selector`.
            delay_level: Deliver the message after the delay of one of RocketMQ's levels, 1 to 18.
            deliver_at: Deliver it at this time: a datetime with a time zone, or milliseconds since the epoch.
            deliver_after: Deliver it after this time: a timedelta, or milliseconds.
            priority: Priority, from 0 on, in a topic of type PRIORITY: pop consumers get larger ones first.
            lite_topic: Lite topic of the message, in a topic of type LITE. Its messages keep their order if
                the caller waits for each send before the next.
            timeout_ms: Deadline of this send, instead of the configured one.

        Raises MessageRejected, TopicNotFound, SendFailed, DeadlineExceeded and other errors of
        `cluster.client.errors`.
        """
        core = self._opened()
        ready = as_message(message, body, tags, keys, properties, priority, lite_topic)
        if delay_level or deliver_at is not None or deliver_after is not None:
            delay_message(ready, message, delay_level, deliver_at, deliver_after)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        if len(ready.body) < COMPRESS_APART_BYTES:  # without another coroutine: the hot path
            return await core.send(core.prepare(ready, choose, timeout_ms))
        return await core.send(await self._prepared(core, ready, choose, timeout_ms))

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

    @capturing
    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send `messages` as one batch: the broker stores all of them in one queue, or none.

        All messages must have the same topic. The size of the batch is limited by `max_message_bytes`. In the
        result `msg_id` and `offset_msg_id` are joined by commas, and `queue_offset` is that of the first
        message.
        """
        core = self._opened()
        return await core.send(core.prepare_batch(messages, sharding_key, queue, timeout_ms))

    @capturing
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
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        deliver_after: timedelta | int | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
    ) -> None:
        """Send one message without waiting for a response. The arguments are those of `send`.

        If the broker is unreachable or rejects the message, the message is lost without an error.
        """
        core = self._opened()
        ready = as_message(message, body, tags, keys, properties, priority, lite_topic)
        if delay_level or deliver_at is not None or deliver_after is not None:
            delay_message(ready, message, delay_level, deliver_at, deliver_after)
        choose = chooser(ready, sharding_key, queue, selector, argument)
        await core.sender.oneway(await self._prepared(core, ready, choose, None, is_oneway=True))

    @capturing
    async def request(
        self,
        message: Message | str,
        body: bytes | str | None = None,
        *,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a request message, wait for the reply of a consumer, and return it.

            reply = await producer.request("prices", b"4 apples", timeout_ms=2_000)

        A consumer sends the reply with `reply`, or RocketMQ's clients with `MessageUtil.createReplyMessage`.
        The message is stored like any other, so a consumer may receive it after the requester has given up.

        Args:
            message: A `Message`, or the name of the topic.
            body: Body of the message; a string is encoded as UTF-8.
            sharding_key: Messages with equal keys are sent to the same queue.
            queue: Queue of the message.
            timeout_ms: Deadline of the send and the reply together; default: `send_timeout_ms`.

        Raises DeadlineExceeded if no reply arrives in time, and the errors of `send`.
        """
        core = self._opened()
        ready = as_message(message, body, None, None, None)
        return await core.request(ready, sharding_key, queue, timeout_ms)

    @capturing
    async def reply(
        self,
        request: MessageExt,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send the reply to `request`, a message that a consumer has received, to its requester.

            async def quote(messages: list[MessageExt]) -> None:
                for message in messages:
                    await producer.reply(message, price_of(message.body))

        The result says where the cluster has stored the reply. It does not say that the requester still
        waits for it.

        Args:
            request: A message sent by `request` of a Python or Java client.
            body: Body of the reply; a string is encoded as UTF-8.
            properties: User properties of the reply.
            timeout_ms: Deadline of the send; default: `send_timeout_ms`.

        Raises ConfigInvalid if `request` is not a request message, and BrokerRefused if the requester is not
        connected to the cluster any more.
        """
        return await self._opened().reply(request, body, properties, timeout_ms)

    @capturing
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
        """Send one message for each element of `bodies`, by the fast path of `send_table`.

            await producer.send_many("numbers", [b"1", b"2"], tags="odd-and-even", keys=["one", "two"])

        `tags`, `keys` and `sharding_keys` have one element for each message; a single string as `tags` is
        used for all messages. Delivery, order and errors are those of `send_table`.
        """
        check_tables("send_many")
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
        properties: str | None = None,
        uniq_keys: UniqKeySource | None = None,
    ) -> TableReceipt:
        """Send one message for each row of `table`; `body`, `tags`, `keys` and `sharding_key` name columns.

            columns = {"body": [b"a", b"b"], "carrier": ["UA", "B6"], "tail": ["N14228", "N804JB"]}
            table = pyarrow.table(columns)
            receipt = await producer.send_table("flights", table, tags="carrier", sharding_key="tail")

        The columns contain bytes, strings or integers. A null in `tags` or `keys` means no tag or key.
        `properties` names a column of maps of strings; names that RocketMQ reserves are left out of it. Rows
        with equal `sharding_key` are sent to the same queue in the order of the table. Without
        `sharding_key` consecutive rows are sent to a queue, the next rows to the next queue. Every row gets a
        UNIQ_KEY: a new one, or the next one of `uniq_keys`.

        At most one batch of a queue is in flight. If its result is unknown, it is sent again before the
        following batches. A broker restart may therefore cause delays and duplicates, but no lost rows and no
        change of order. The memory of the table must not change until then, as Arrow requires.

        Raises TableSendFailed if a batch is not acknowledged within `delivery_timeout_ms`.
        """
        check_tables("send_table")
        from cluster.client.producer.table_columns import columns_of_table

        columns = columns_of_table(table, body, tags, keys, sharding_key, properties, uniq_keys)
        return await self._send_columns(topic, columns, queue)

    async def _send_columns(
        self, topic: str, columns: TableColumns, queue: MessageQueue | None
    ) -> TableReceipt:
        tables = self._opened().tables
        stop = threading.Event()
        try:
            # In a thread, as waiting for buffer space would block the event loop; kernels release the GIL.
            return await asyncio.to_thread(tables.send, topic, columns, queue, stop)
        finally:
            stop.set()

    async def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Cancel a message that waits for its delivery time (`delay_ms` or `deliver_at_ms`).

            later = await producer.send(Message("orders", b"a reminder", delay_ms=90_000))
            await producer.recall("orders", later.recall_handle)

        After this call has returned, the message is not delivered any more. A message with a delay level
        cannot be recalled.

        Args:
            topic: Topic of the message.
            handle: `recall_handle` of the result of its send.
            timeout_ms: Deadline of the request, instead of `request_timeout_ms`.

        Returns:
            The UNIQ_KEY of the message.

        Raises ConfigInvalid if `handle` is not a recall handle, BrokerRefused if the message was already
        delivered or the handle is for another topic.
        """
        return await self._opened().recall(topic, handle, timeout_ms)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of `topic` among which a sharding key or a selector chooses."""
        return await self._opened().queues_of(topic)

    async def flush(self) -> None:
        """Wait until every send in flight is acknowledged or has failed. Tables are not included."""
        await self._opened().sender.flush()
