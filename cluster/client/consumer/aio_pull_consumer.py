"""The pull consumer, async face."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cluster.client.config import ConsumerConfig, Nameservers
from cluster.client.consumer.arguments import (
    check_poll,
    check_queue,
    check_time,
    columns_of,
    queues_of,
    topics_of,
)
from cluster.client.consumer.deliveries import Deliveries
from cluster.client.consumer.pull_core import PullCore, consumer_config
from cluster.client.errors import ClientClosed, QueueNotAssigned
from cluster.client.transport.faces import AsyncFace
from cluster.client.transport.loop_thread import LoopThread
from store.clock import Clock
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


ITERATION_WAIT_MS = 60_000


class PullConsumer(AsyncFace[PullCore]):
    """Reads messages when asked to.

        async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
            await consumer.subscribe("orders", "fruit || wine")
            async for message in consumer:
                print(message.queue_offset, message.body)

    With `subscribe` the group's members share the queues out; with `assign` this consumer takes the queues
    named. The next `poll` (or the next message of an iteration) says that the last ones are done; with
    `auto_commit` their offsets are committed every `commit_interval_ms` and at `close`. For one task at a
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
        config = consumer_config(nameservers, group, config or ConsumerConfig())
        super().__init__("consumer", lambda: PullCore(config, clock))

    async def close(self, *, commit: bool | None = None) -> None:
        """Release the queues and leave the group.

        With `auto_commit` or `commit`, commit what was handed out.
        """
        if (core := self._closing()) is not None:
            await core.close(committing=core.config.auto_commit if commit is None else commit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the last messages may not have been processed: they are delivered again.
        await self.close(commit=None if error is None else False)

    async def subscribe(self, topics: str | Iterable[str], expression: str = "*") -> None:
        """Share the queues of `topics` with the group's other members.

        `expression` is `*` or `tag || tag`.
        """
        self._opened().subscribe(topics, expression)

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Take exactly these queues, each from the group's committed offset, else as `consume_from` says."""
        await self._opened().assign(queues, expression)

    async def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[MessageExt]:
        """Return the next messages, in order within each queue.

        The list is empty if no message arrives within `timeout_ms`. Raises ConfigInvalid, DataDamaged,
        SubscriptionDiffers.
        """
        check_poll("max_messages", max_messages, timeout_ms)
        core = self._acknowledged()
        deadline_s = time.monotonic() + timeout_ms / 1000
        while not (messages := core.deliveries.take_messages(max_messages)):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            await core.deliveries.wait_async(left_s)
        return messages

    async def poll_arrow(
        self, max_rows: int = 65_536, timeout_ms: int = 1_000, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """Return the next messages of one queue as rows of `store.reading.columns.RECORD_SCHEMA`.

        `columns` names those to return instead of all. No row if no message arrives within `timeout_ms`.
        Raises as `poll`.
        """
        check_poll("max_rows", max_rows, timeout_ms)
        core = self._acknowledged()
        names = columns_of(columns)
        deadline_s = time.monotonic() + timeout_ms / 1000
        while (rows := core.deliveries.take_rows(max_rows, names)) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return empty_rows(names)
            await core.deliveries.wait_async(left_s)
        return rows

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        while True:
            if self._is_closed:
                raise StopAsyncIteration
            try:
                messages = await self.poll(1, ITERATION_WAIT_MS)
            except ClientClosed:
                if not self._is_closed:
                    raise
                raise StopAsyncIteration from None
            if messages:
                return messages[0]

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit `offsets` (each the next to consume), or all that has been handed out.

        Retry for `commit_timeout_ms` while a broker is unreachable, then raise BrokerUnreachable. Raises
        CommitFenced if another member holds a queue now.
        """
        await self._opened().commit(offsets)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset`. Raises QueueNotAssigned, ConfigInvalid."""
        self._opened().seek(queue, offset)

    async def seek_to_beginning(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue at the oldest messages of `queues`, or of all queues held."""
        core = self._opened()
        for queue in self._named(queues):
            core.seek(queue, await core.offsets.beginning(queue))

    async def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue after the newest messages of `queues`, or of all queues held."""
        core = self._opened()
        for queue in self._named(queues):
            core.seek(queue, await core.offsets.end(queue))

    async def seek_to_time(self, timestamp_ms: int, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue at the first messages stored at `timestamp_ms` (since the epoch) or later."""
        core = self._opened()
        check_time(timestamp_ms)
        for queue in self._named(queues):
            core.seek(queue, await core.offsets.at_time(queue, timestamp_ms))

    async def pause(self, *queues: MessageQueue) -> None:
        """Hand out no message of `queues` until `resume`; without `queues`, none at all.

        Without `queues` the pause also covers queues that are assigned later. The queues stay assigned.
        Raises QueueNotAssigned.
        """
        self._opened().pause(queues, paused=True)

    async def resume(self, *queues: MessageQueue) -> None:
        """End the pause of `queues`, or of all."""
        self._opened().pause(queues, paused=False)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues held now."""
        states = [] if self._core is None else list(self._core.deliveries.states.values())
        return sorted(state.queue for state in states if not state.is_leaving)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of `queue` to hand out. Raises QueueNotAssigned."""
        if self._core is None:
            raise QueueNotAssigned(f"{queue} is not among the queues of this consumer: it has none yet")
        return self._core.state_of(queue).position

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of any queue, None if it has none."""
        check_queue(queue)
        return await self._opened().offsets.committed(queue)

    async def beginning_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of any queue."""
        check_queue(queue)
        return await self._opened().offsets.beginning(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of any queue will get."""
        check_queue(queue)
        return await self._opened().offsets.end(queue)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return how many messages are not handed out yet, by queue held."""
        # The position first: the end read after it is never behind it.
        positions = {queue: self.position(queue) for queue in self._begun()}
        return {queue: await self.end_offset(queue) - at for queue, at in positions.items()}

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of `topic`, for `assign`."""
        core = self._opened()
        [name] = topics_of([topic])
        return sorted((await core.instance.routes.refresh(name)).readable)

    def _begun(self) -> list[MessageQueue]:
        states = [] if self._core is None else list(self._core.deliveries.states.values())
        return sorted(state.queue for state in states if not state.is_leaving and state.position >= 0)

    def _named(self, queues: Iterable[MessageQueue] | None) -> list[MessageQueue]:
        return self._begun() if queues is None else queues_of(queues)

    def _acknowledged(self) -> PullCore:
        core = self._opened()
        core.check_source()
        leaving = core.deliveries.acknowledge()
        if leaving:
            core.release(leaving)
        return core

    def acknowledged(self, thread: LoopThread) -> Deliveries:
        """Acknowledge what was handed out and return what is next; for the blocking face, in its caller's
        thread.
        """
        thread.check()
        core = self._core if self._core is not None and not self._is_closed else thread.call(self._opened)
        core.check_source()
        leaving = core.deliveries.acknowledge()
        if leaving:
            thread.post(core.release, leaving)
        return core.deliveries


def empty_rows(columns: list[str] | None) -> pa.RecordBatch:
    """Return no rows, with the schema of a poll."""
    import pyarrow as pa

    from store.reading.columns import RECORD_SCHEMA

    schema = RECORD_SCHEMA
    if columns is not None:
        schema = pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_pylist([], schema=schema)
