"""Lanes: sends batches of encoded records, at most one batch of a queue at a time.

A batch has one run of records for each of one or more queues of a broker. It is sent when the preceding batch
of each of its queues is settled (acknowledged or failed). Here A and B are in flight, and C waits for both:

    queue 0   A ─→ C
    queue 1   A
    queue 2   B ─→ C

    waiting ──→ in flight ──acknowledged──→ settled
                    ├─ connection lost, timed out, broker busy: send the same bytes again until the deadline
                    └─ refused: the broker stored nothing; send the records of each queue as a batch

This keeps the order of each queue when a broker crashes and restarts. A batch whose result was unknown may be
stored twice (with the same UNIQ_KEYs), but its first copy is stored before all following batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from actors.wire.codes import RayMQRequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import SendRunsHeader
from cluster.client.config import ProducerConfig
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    DataDamaged,
    DeadlineExceeded,
    refused,
)
from cluster.client.producer.sender import is_retriable
from cluster.client.results import STATUS_OF_CODE
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from store.message.message_queue import MessageQueue
from store.message.runs import Runs, decode_offsets, encode_heads


class Stored(NamedTuple):
    """An acknowledged run: the records of a batch for one queue, the first of them at `first_offset`.

    The queue may contain up to `resends` duplicates of the run.
    """

    first_offset: int
    resends: int


Outcome = Stored | ClientError


class Job(Protocol):
    """A set of batches of which none may be stored in a queue after an earlier one of them failed there.

    Attributes:
        failures: The error of each queue with a failed batch.
    """

    failures: dict[MessageQueue, ClientError]


@dataclass(slots=True, eq=False)
class LaneBatch:
    """A batch: one run of records for each of `queues`.

    Attributes:
        queues: Queues of one topic and one broker, in ascending order of their ids.
        runs: The encoded records.
        job: The set of batches to which this one belongs.
        done: Called once, on the event loop, with the outcome of each run.
        resends: Number of times that the batch was sent again because a result was unknown.
        waits: Number of queues in which the preceding batch is not settled yet.
        followers: Batches that wait for this one.
    """

    queues: Sequence[MessageQueue]
    runs: Runs
    job: Job
    done: Callable[[LaneBatch, Sequence[Outcome]], None]
    resends: int = 0
    waits: int = 0
    followers: list[LaneBatch] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Return the size of the records."""
        return len(self.runs.records)

    def parts(self) -> list[LaneBatch]:
        """Split the batch into one batch for each queue."""
        made: list[LaneBatch] = []
        begin = 0
        ids, messages, sizes, records = self.runs
        for number, queue in enumerate(self.queues):
            one = slice(number, number + 1)
            end = begin + sizes[number]
            runs = Runs(ids[one], messages[one], sizes[one], records[begin:end])
            made.append(LaneBatch([queue], runs, self.job, self.done, self.resends))
            begin = end
        return made


class Lanes:
    """Sends the batches of one producer. Used only on the event loop of its ClientInstance."""

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self._instance = instance
        self._config = config
        self._last: dict[MessageQueue, LaneBatch] = {}

    def offer(self, batch: LaneBatch) -> None:
        """Send `batch` once all batches offered earlier for its queues are settled."""
        for queue in batch.queues:
            before = self._last.get(queue)
            if before is not None:
                before.followers.append(batch)
                batch.waits += 1
            self._last[queue] = batch
        if not batch.waits:
            self._start([batch])

    def _start(self, ready: list[LaneBatch]) -> None:
        while ready:
            batch = ready.pop()
            if self._instance.is_closed:
                ready += self._settle(batch, self._closed(batch))
                continue
            task = self._instance.spawn(self._deliver(batch), f"lane {batch.queues[0]}")
            task.add_done_callback(partial(self._ended, batch))

    def _ended(self, batch: LaneBatch, task: asyncio.Task[Sequence[Outcome]]) -> None:
        is_done = not task.cancelled() and task.exception() is None
        self._start(self._settle(batch, task.result() if is_done else self._closed(batch)))

    @staticmethod
    def _closed(batch: LaneBatch) -> list[Outcome]:
        error = ClientClosed("the producer was closed before the rows were acknowledged")
        return [error] * len(batch.queues)

    def _settle(self, batch: LaneBatch, outcomes: Sequence[Outcome]) -> list[LaneBatch]:
        """Report the outcomes of `batch`. Return the batches that are now ready to be sent."""
        batch.done(batch, outcomes)
        for queue in batch.queues:
            if self._last[queue] is batch:
                del self._last[queue]
        ready: list[LaneBatch] = []
        for follower in batch.followers:
            follower.waits -= 1
            if not follower.waits:
                ready.append(follower)
        return ready

    # ---- delivery ------------------------------------------------------------------------------------------

    async def _deliver(self, batch: LaneBatch) -> Sequence[Outcome]:
        lost: Mapping[MessageQueue, ClientError] = batch.job.failures
        if lost and not lost.keys().isdisjoint(batch.queues):
            # A batch of the same table failed in one of the queues: do not store later rows there.
            return await self._deliver_apart(batch, lost)
        outcome = await self._attempt(batch)
        if not isinstance(outcome, ClientError):
            return outcome
        if len(batch.queues) > 1 and isinstance(outcome, BrokerRefused) and not is_retriable(outcome):
            # Send the queues separately: one may be refused alone.
            return await self._deliver_apart(batch, {})
        return [outcome] * len(batch.queues)

    async def _deliver_apart(
        self, batch: LaneBatch, lost: Mapping[MessageQueue, ClientError]
    ) -> Sequence[Outcome]:
        async def deliver(part: LaneBatch) -> Outcome:
            error = lost.get(part.queues[0])
            if error is not None:
                return error
            outcome = await self._attempt(part)
            return outcome if isinstance(outcome, ClientError) else outcome[0]

        return await asyncio.gather(*map(deliver, batch.parts()))

    async def _attempt(self, batch: LaneBatch) -> list[Stored] | ClientError:
        """Send `batch` until it is acknowledged, the error is not retriable, or the deadline expires."""
        deadline_ms = self._instance.now_ms() + self._config.delivery_timeout_ms
        backoff = Backoff()
        while True:
            left_ms = deadline_ms - self._instance.now_ms()
            try:
                offsets = await self._send(batch, max(left_ms, 1))
                return [Stored(offset, batch.resends) for offset in offsets]
            except ClientError as error:
                if not is_retriable(error) or left_ms <= 0:
                    return error
                batch.resends += isinstance(error, BrokerUnreachable | DeadlineExceeded)
            await asyncio.sleep(backoff.next_ms() / 1000)
            await self._instance.routes.refresh_or_keep(batch.queues[0].topic)

    async def _send(self, batch: LaneBatch, timeout_ms: int) -> Sequence[int]:
        """Send `batch` once. Return the offset of the first record of each run."""
        queue = batch.queues[0]
        address = self._instance.master_of(queue.topic, queue.broker_name)
        header = SendRunsHeader(
            queue.topic,
            producer_group=self._config.group,
            default_topic_queue_nums=self._config.default_topic_queue_nums,
        )
        parts = (encode_heads(batch.runs), batch.runs.records)
        command = RemotingCommand(RayMQRequestCode.SEND_RUNS, header.to_ext(), parts=parts)
        response = await self._instance.request(address, command, timeout_ms)
        if response.code not in STATUS_OF_CODE:
            raise refused(response.code, response.remark, address)
        try:
            return decode_offsets(response.body, len(batch.queues))
        except ValueError as error:
            raise DataDamaged(f"{address} sent an invalid response: {error}") from error
