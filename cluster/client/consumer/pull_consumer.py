"""The pull consumer, blocking face."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cluster.client.config import ConsumerConfig, Nameservers
from cluster.client.consumer import aio_pull_consumer as aio
from cluster.client.consumer.arguments import check_poll, columns_of
from cluster.client.consumer.deliveries import Deliveries
from cluster.client.errors import ClientClosed
from cluster.client.transport.loop_thread import LoopThread
from store.clock import Clock
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


class PullConsumer:
    """Reads messages when asked to.

        with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders", "fruit || wine")
            for message in consumer:
                print(message.queue_offset, message.body)

        with PullConsumer("127.0.0.1:9876", group="reports") as consumer:
            consumer.assign(consumer.queues("orders"))
            rows = consumer.poll_arrow(max_rows=100_000)      # a pyarrow.RecordBatch

    With `subscribe` the group's members share the queues out; with `assign` this consumer takes the queues
    named. The next `poll` (or the next message of an iteration) says that the last ones are done; with
    `auto_commit` their offsets are committed every `commit_interval_ms` and at `close`. For one thread at a
    time.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._consumer = aio.PullConsumer(nameservers, group, config=config, clock=clock)
        self._thread = LoopThread.shared()
        self._is_closed = False

    def start(self) -> Self:
        """Open the consumer. `with` and the first call do it too."""
        self._thread.run(self._consumer.start())
        return self

    def close(self, *, commit: bool | None = None) -> None:
        """Give the queues back and leave the group; commits what was handed out, with `auto_commit` or
        `commit`.
        """
        self._is_closed = True
        if not self._thread.is_of_parent:
            self._thread.run(self._consumer.close(commit=commit))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error nobody knows whether the last messages were worked on: they will come again.
        self.close(commit=None if error is None else False)

    def subscribe(self, topics: str | Iterable[str], expression: str = "*") -> None:
        """Share the queues of `topics` with the group's other members; `expression` is `*` or `tag ||
        tag`.
        """
        self._thread.run(self._consumer.subscribe(topics, expression))

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Take exactly these queues; each begins at the group's committed offset, else as `consume_from`
        says.
        """
        self._thread.run(self._consumer.assign(queues, expression))

    def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[MessageExt]:
        """The next messages, in order within each queue; empty when none comes within `timeout_ms`.

        Raises ConfigInvalid, DataDamaged, SubscriptionDiffers.
        """
        check_poll("max_messages", max_messages, timeout_ms)
        deliveries = self._acknowledged()
        deadline_s = time.monotonic() + timeout_ms / 1000
        while not (messages := deliveries.take_messages(max_messages)):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            deliveries.wait(left_s)
        return messages

    def poll_arrow(
        self, max_rows: int = 65_536, timeout_ms: int = 1_000, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The next messages of one queue as rows of `store.columns.RECORD_SCHEMA`, or of those `columns` of
        it.

        Empty when none comes within `timeout_ms`. Raises as `poll`.
        """
        check_poll("max_rows", max_rows, timeout_ms)
        deliveries = self._acknowledged()
        names = columns_of(columns)
        deadline_s = time.monotonic() + timeout_ms / 1000
        while (rows := deliveries.take_rows(max_rows, names)) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return aio.empty_rows(names)
            deliveries.wait(left_s)
        return rows

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageExt:
        while True:
            try:
                messages = self.poll(1, aio.ITERATION_WAIT_MS)
            except ClientClosed:
                if self._is_closed:
                    raise StopIteration from None
                raise
            if messages:
                return messages[0]

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit `offsets` (each the next to consume), or all that has been handed out.

        A broker that is away is told again for `commit_timeout_ms`. Raises CommitFenced when another member
        holds a queue now, BrokerUnreachable.
        """
        self._thread.run(self._consumer.commit(offsets))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with `queue` at `offset`. Raises QueueNotAssigned, ConfigInvalid."""
        self._thread.run(self._consumer.seek(queue, offset))

    def seek_to_beginning(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with the oldest messages there are, of all queues held unless named."""
        self._thread.run(self._consumer.seek_to_beginning(queues))

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with what comes from now on."""
        self._thread.run(self._consumer.seek_to_end(queues))

    def seek_to_time(self, timestamp_ms: int, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with the first messages stored at `timestamp_ms` (since the epoch) or later."""
        self._thread.run(self._consumer.seek_to_time(timestamp_ms, queues))

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of `queues` until `resume`; without queues: nothing at all, of those to come
        neither. They stay this consumer's. Raises QueueNotAssigned.
        """
        self._thread.run(self._consumer.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """End the pause of `queues`, or of all."""
        self._thread.run(self._consumer.resume(*queues))

    def assignment(self) -> list[MessageQueue]:
        """The queues held now."""
        return self._consumer.assignment()

    def position(self, queue: MessageQueue) -> int:
        """The offset of the next message of `queue` to be handed out. Raises QueueNotAssigned."""
        return self._consumer.position(queue)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of any queue, None when there is none."""
        return self._thread.run(self._consumer.committed(queue))

    def beginning_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message of any queue."""
        return self._thread.run(self._consumer.beginning_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of any queue will get."""
        return self._thread.run(self._consumer.end_offset(queue))

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages are not handed out yet, by queue held."""
        return self._thread.run(self._consumer.lag())

    def queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of `topic`, for `assign`."""
        return self._thread.run(self._consumer.queues(topic))

    def _acknowledged(self) -> Deliveries:
        return self._consumer.acknowledged(self._thread)
