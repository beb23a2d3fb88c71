"""The pull consumer with a blocking API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cluster.client.config import ConsumerConfig, Nameservers
from cluster.client.consumer import aio_pull_consumer as aio
from cluster.client.consumer.arguments import check_poll, columns_of
from cluster.client.consumer.deliveries import Deliveries
from cluster.client.errors import ClientClosed
from cluster.client.transport.faces import BlockingFace, blocking, documented_by
from store.common.clock import Clock
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


@documented_by(aio.PullConsumer)
class PullConsumer(BlockingFace[aio.PullConsumer]):
    """Consumer that returns messages when the program polls for them.

        with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders", "fruit || wine")
            for message in consumer:
                print(message.queue_offset, message.body)

        with PullConsumer("127.0.0.1:9876", group="reports") as consumer:
            consumer.assign(consumer.queues("orders"))
            rows = consumer.poll_arrow(max_rows=100_000)      # a pyarrow.RecordBatch

    With `subscribe`, the members of the group share the queues. With `assign`, this consumer reads exactly
    the given queues. Each `poll` (or next step of an iteration) acknowledges the messages returned before.
    With `auto_commit`, the offsets of acknowledged messages are committed every `commit_interval_ms` and at
    `close`. Use a consumer from one thread at a time.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(aio.PullConsumer(nameservers, group, config=config, clock=clock))
        self._is_closed = False

    def close(self, *, commit: bool | None = None) -> None:
        self._is_closed = True
        if not self._thread.is_forked:
            self._thread.run(self._face.close(commit=commit))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the last messages may not have been processed. They must be delivered again, so their
        # offsets are not committed.
        self.close(commit=None if error is None else False)

    subscribe = blocking(aio.PullConsumer.subscribe)
    assign = blocking(aio.PullConsumer.assign)
    commit = blocking(aio.PullConsumer.commit)
    seek = blocking(aio.PullConsumer.seek)
    seek_to_beginning = blocking(aio.PullConsumer.seek_to_beginning)
    seek_to_end = blocking(aio.PullConsumer.seek_to_end)
    seek_to_time = blocking(aio.PullConsumer.seek_to_time)
    pause = blocking(aio.PullConsumer.pause)
    resume = blocking(aio.PullConsumer.resume)
    committed = blocking(aio.PullConsumer.committed)
    beginning_offset = blocking(aio.PullConsumer.beginning_offset)
    end_offset = blocking(aio.PullConsumer.end_offset)
    lag = blocking(aio.PullConsumer.lag)
    queues = blocking(aio.PullConsumer.queues)

    def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[MessageExt]:
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

    def assignment(self) -> list[MessageQueue]:
        return self._face.assignment()

    def position(self, queue: MessageQueue) -> int:
        return self._face.position(queue)

    def _acknowledged(self) -> Deliveries:
        return self._face.acknowledged(self._thread)
