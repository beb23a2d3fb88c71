"""The pull consumer with an async API."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cluster.client.config import ConsumerConfig, Nameservers
from cluster.client.consumer.arguments import (
    check_is_queue,
    check_poll,
    check_time,
    columns_of,
    queues_of,
    topics_of,
)
from cluster.client.consumer.deliveries import Deliveries
from cluster.client.consumer.pull_core import PullCore
from cluster.client.errors import ClientClosed, QueueNotAssigned
from cluster.client.group.group_config import group_config
from cluster.client.message_selector import MessageSelector
from cluster.client.transport.faces import AsyncFace
from cluster.client.transport.loop_thread import LoopThread
from store.common.clock import Clock
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


ITERATION_WAIT_MS = 60_000


class PullConsumer(AsyncFace[PullCore]):
    """Consumer that returns messages when the program polls for them.

        async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
            await consumer.subscribe("orders", "fruit || wine")
            async for message in consumer:
                print(message.queue_offset, message.body)

    With `subscribe`, the members of the group share the queues. With `assign`, this consumer reads exactly
    the given queues. Each `poll` (or next step of an iteration) acknowledges the messages returned before.
    With `auto_commit`, the offsets of acknowledged messages are committed every `commit_interval_ms` and at
    `close`. Use a consumer from one task at a time.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        config = group_config("a consumer", config, ConsumerConfig(), nameservers, group)
        super().__init__("consumer", lambda: PullCore(config, clock))

    async def close(self, *, commit: bool | None = None) -> None:
        """Release the queues and leave the group.

        Before that, acknowledge and commit all messages returned so far, if `commit` is True. By default,
        do so if `auto_commit` is set.
        """
        if (core := self._closing()) is not None:
            await core.close(committing=core.config.auto_commit if commit is None else commit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error the last messages may not have been processed. They must be delivered again, so their
        # offsets are not committed.
        await self.close(commit=None if error is None else False)

    async def subscribe(self, topics: str | Iterable[str], expression: str | MessageSelector = "*") -> None:
        """Subscribe to `topics`: the members of the group share their queues.

        `expression` selects messages by tag, `*` for all or `tag || tag`, or is a MessageSelector.
        Raises ConfigInvalid.
        """
        self._opened().subscribe(topics, expression)

    async def assign(self, queues: Iterable[MessageQueue], expression: str | MessageSelector = "*") -> None:
        """Read exactly these queues, without group assignment.

        Each queue starts at the group's committed offset. If there is no committed offset, the setting
        `consume_from` decides. Raises ConfigInvalid, BrokerUnreachable, DeadlineExceeded.
        """
        await self._opened().assign(queues, expression)

    async def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[MessageExt]:
        """Acknowledge the messages returned before, and return the next ones, in order within each queue.

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
        """Return the next messages of one queue as Arrow rows of `store.kernels.arrow.RECORD_SCHEMA`.

        Like `poll`, this acknowledges the messages returned before, and raises the same errors.

        Args:
            max_rows: Maximum number of rows.
            timeout_ms: Time to wait for messages. The result has no rows if none arrive.
            columns: Names of the columns to return; all columns by default.
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
        """Commit `offsets` (each is the next offset to consume), or by default all messages returned so far.

        The commit is retried for `commit_timeout_ms` while a broker is unreachable.

        Raises:
            BrokerUnreachable: A broker is still unreachable after `commit_timeout_ms`.
            CommitFenced: Another member holds one of the queues now.
        """
        await self._opened().commit(offsets)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Set the next offset to read of `queue`. Raises QueueNotAssigned, ConfigInvalid."""
        self._opened().seek(queue, offset)

    async def seek_to_beginning(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue at the oldest messages of `queues`, or of all assigned queues."""
        core = self._opened()
        for queue in self._named(queues):
            core.seek(queue, await core.offsets.beginning(queue))

    async def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue after the newest messages of `queues`, or of all assigned queues."""
        core = self._opened()
        for queue in self._named(queues):
            core.seek(queue, await core.offsets.end(queue))

    async def seek_to_time(self, timestamp_ms: int, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue at the first messages stored at or after `timestamp_ms` (ms since the epoch)."""
        core = self._opened()
        check_time(timestamp_ms)
        for queue in self._named(queues):
            core.seek(queue, await core.offsets.at_time(queue, timestamp_ms))

    async def pause(self, *queues: MessageQueue) -> None:
        """Return no messages of `queues` (by default: of any queue) until `resume`.

        Paused queues stay assigned. Without arguments, the pause also applies to queues that are assigned
        later. Raises QueueNotAssigned.
        """
        self._opened().pause(queues, paused=True)

    async def resume(self, *queues: MessageQueue) -> None:
        """End the pause of `queues`, or by default of all queues. Raises QueueNotAssigned."""
        self._opened().pause(queues, paused=False)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are assigned now, sorted."""
        if self._core is None:
            return []
        names, states = self._core.names, list(self._core.deliveries.states.values())
        return sorted(names.unwrap_queue(state.queue) for state in states if not state.is_leaving)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that a poll returns of `queue`. Raises QueueNotAssigned."""
        if self._core is None:
            raise QueueNotAssigned(f"{queue} is not assigned to this consumer: it has no queues yet")
        return self._core.state_of(queue).position

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset in `queue`, or None. The queue need not be assigned."""
        check_is_queue(queue)
        core = self._opened()
        return await core.offsets.committed(core.names.wrap_queue(queue))

    async def beginning_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of `queue`. The queue need not be assigned."""
        check_is_queue(queue)
        core = self._opened()
        return await core.offsets.beginning(core.names.wrap_queue(queue))

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of `queue` will get. The queue need not be assigned."""
        check_is_queue(queue)
        core = self._opened()
        return await core.offsets.end(core.names.wrap_queue(queue))

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages not yet returned by a poll, for each assigned queue."""
        # Read the positions first: an end offset that is read later is never less than the position.
        positions = {queue: self.position(queue) for queue in self._positioned()}
        names = self._opened().names
        return {
            names.unwrap_queue(queue): await self.end_offset(queue) - at for queue, at in positions.items()
        }

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of `topic`, as arguments for `assign`. Raises TopicNotFound."""
        core = self._opened()
        [name] = topics_of([topic])
        route = await core.instance.routes.refresh(core.names.wrap(name))
        return sorted(core.names.unwrap_queues(route.readable))

    def _positioned(self) -> list[MessageQueue]:
        states = [] if self._core is None else list(self._core.deliveries.states.values())
        return sorted(state.queue for state in states if not state.is_leaving and state.position >= 0)

    def _named(self, queues: Iterable[MessageQueue] | None) -> list[MessageQueue]:
        return self._positioned() if queues is None else self._opened().names.wrap_queues(queues_of(queues))

    def _acknowledged(self) -> PullCore:
        core = self._opened()
        core.check_source()
        leaving = core.deliveries.acknowledge()
        if leaving:
            core.release(leaving)
        return core

    def acknowledged(self, thread: LoopThread) -> Deliveries:
        """Acknowledge the messages returned so far, and return the source of the next ones.

        The blocking API calls this in the thread of its caller; `thread` runs the event loop.
        """
        thread.check()
        core = self._core if self._core is not None and not self._is_closed else thread.call(self._opened)
        core.check_source()
        leaving = core.deliveries.acknowledge()
        if leaving:
            thread.post(core.release, leaving)
        return core.deliveries


def empty_rows(columns: list[str] | None) -> pa.RecordBatch:
    """Return a record batch without rows that has the schema of `poll_arrow` for `columns`."""
    import pyarrow as pa

    from store.kernels.arrow import ALL_FIELDS, RECORD_SCHEMA

    schema = RECORD_SCHEMA
    if columns is not None:
        schema = pa.schema([ALL_FIELDS[name] for name in columns])
    return pa.RecordBatch.from_pylist([], schema=schema)
