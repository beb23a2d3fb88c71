"""Lanes: finished records on their way to one queue each, at most one batch of a queue unresolved.

    offered → waiting … → in flight ──acknowledged──→ next
                              └─ lost, timed out, busy: the same bytes again, before any successor, until the
                              deadline

So a broker that dies and comes back leaves a queue in order: a batch whose result is unknown may stand in it
twice (with the same UNIQ_KEYs), but never after its successors for the first time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.remoting.codes import RayMQRequestCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.headers import SendRecordsHeader, SendRecordsResponse
from cluster.client.config import ProducerConfig
from cluster.client.core.backoff import Backoff
from cluster.client.core.instance import ClientInstance
from cluster.client.core.sender import is_curable
from cluster.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    DeadlineExceeded,
    refused,
)
from cluster.client.results import STATUS_OF_CODE
from store.message.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch that is acknowledged; it may stand up to `resends` more times in the queue."""

    first_offset: int
    resends: int


Done = Callable[[Stored | ClientError], None]


@dataclass(slots=True)
class LaneBatch:
    """Records back to back, for one queue. `done` is called once, on the loop. Batches of one `job` fail
    together.
    """

    records: Sequence[Buffer]
    rows: int
    size_bytes: int
    job: object
    done: Done


class Lane:
    """One queue's batches."""

    def __init__(self, instance: ClientInstance, config: ProducerConfig, queue: MessageQueue) -> None:
        self._instance = instance
        self._config = config
        self._queue = queue
        self._waiting: deque[LaneBatch] = deque()
        self._task: asyncio.Task[None] | None = None

    def offer(self, batch: LaneBatch) -> None:
        """Take `batch` behind all others."""
        if self._instance.is_closed:
            batch.done(ClientClosed("the producer is closed"))
            return
        self._waiting.append(batch)
        if self._task is None:
            self._task = self._instance.spawn(self._run(), f"lane {self._queue}")

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[0]
                outcome = await self._deliver(batch)
                self._waiting.popleft()
                if isinstance(outcome, ClientError):
                    self._fail_successors(batch.job, outcome)
                batch.done(outcome)
        finally:
            self._task = None
            while self._waiting:  # only when the producer closes in mid-way
                self._waiting.popleft().done(
                    ClientClosed("the producer was closed before the rows were acknowledged")
                )

    def _fail_successors(self, job: object, error: ClientError) -> None:
        """What follows a lost batch of the same table must not be stored: it would leave a hole in the
        order.
        """
        kept: deque[LaneBatch] = deque()
        failed: list[LaneBatch] = []
        for batch in self._waiting:
            (failed if batch.job is job else kept).append(batch)
        self._waiting = kept
        for batch in failed:
            batch.done(error)

    async def _deliver(self, batch: LaneBatch) -> Stored | ClientError:
        deadline_ms = self._instance.now_ms() + self._config.delivery_timeout_ms
        backoff = Backoff()
        resends = 0
        while True:
            left_ms = deadline_ms - self._instance.now_ms()
            try:
                return Stored(await self._send(batch, max(left_ms, 1)), resends)
            except ClientError as error:
                if not is_curable(error) or left_ms <= 0:
                    return error
                resends += isinstance(error, BrokerUnreachable | DeadlineExceeded)
            await asyncio.sleep(backoff.next_ms() / 1000)
            await self._refresh()

    async def _send(self, batch: LaneBatch, timeout_ms: int) -> int:
        """The offset of the batch's first row."""
        queue = self._queue
        address = self._instance.master_of(queue.topic, queue.broker_name)
        header = SendRecordsHeader(
            queue.topic,
            queue.queue_id,
            batch.rows,
            producer_group=self._config.group,
            default_topic_queue_nums=self._config.default_topic_queue_nums,
        )
        command = RemotingCommand(RayMQRequestCode.SEND_RECORDS, header.to_ext(), parts=batch.records)
        answer = await self._instance.ask(address, command, timeout_ms)
        if answer.code not in STATUS_OF_CODE:
            raise refused(answer.code, answer.remark, address)
        return SendRecordsResponse.from_ext(answer.ext).queue_offset

    async def _refresh(self) -> None:
        try:
            await self._instance.routes.refresh(self._queue.topic)
        except ClientError:
            return  # the old route still stands


class Lanes:
    """The lanes of one producer by queue."""

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self._instance = instance
        self._config = config
        self._lanes: dict[MessageQueue, Lane] = {}

    def offer(self, queue: MessageQueue, batch: LaneBatch) -> None:
        """Send `batch` to `queue`, behind what was offered before."""
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(self._instance, self._config, queue)
        lane.offer(batch)
