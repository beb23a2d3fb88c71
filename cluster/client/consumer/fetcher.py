"""Fetching one queue: one long poll after the other, ahead of the consumer by at most its share of the
buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from actors.remoting.codes import RayMQRequestCode, ResponseCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.headers import PullRecordsHeader, PullRecordsResponse
from cluster.client.config import ConsumerConfig
from cluster.client.errors import ClientError, refused
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.plain_requests import PLAIN_LATE_MS, count_records, plain_pull
from store.logs import get_logger
from store.message.message_queue import MessageQueue

log = get_logger(__name__)

# A broker that answers "nothing there" at once, instead of holding the pull, is asked less often.
HELD_AT_LEAST_MS = 20
MAX_MESSAGES = 1 << 20  # as good as any number: bytes bound a pull


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one queue as they came, back to back; `next_offset` follows the last (filtered ones
    included).
    """

    fetcher: Fetcher
    begin_offset: int
    next_offset: int
    count: int
    records: Buffer
    took_ms: int = 0
    """From the question to the answer."""

    @property
    def queue(self) -> MessageQueue:
        """Whose records these are."""
        return self.fetcher.queue


class FetchSink(Protocol):
    """Who takes what a fetcher brings. Called on the loop."""

    def arrived(self, chunk: Chunk) -> None:
        """Take a chunk. Without records it says where the queue goes on: what lies between is filtered out,
        or the offset that was asked for is outside the queue (then `next_offset` may be lower).
        """


class Fetcher:
    """Pulls one queue from `offset` on. A seek is a new fetcher: what the old one brings is recognised and
    dropped.
    """

    def __init__(
        self,
        instance: ClientInstance,
        queue: MessageQueue,
        offset: int,
        expression: str,
        config: ConsumerConfig,
        share_bytes: Callable[[], int],
        sink: FetchSink,
        *,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        """`share_bytes()` is how much of the queue may lie fetched and unconsumed now; a pull brings at
        most `max_messages`.
        """
        self.queue = queue
        self.offset = offset
        self.is_paused = False
        self.asked_ms = 0
        """When the last pull began, in monotonic ms; 0 before the first."""
        self._instance = instance
        self._group = config.group
        self._expression = expression
        self._wait_ms = config.long_poll_ms
        self._fetch_bytes = config.fetch_bytes
        self._share_bytes = share_bytes
        self._sink = sink
        self._max_messages = max_messages
        self._is_plain = False
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None

    def start(self) -> None:
        """Begin to fetch."""
        self._task = self._instance.supervisor.start(f"fetch {self.queue}", self._run)

    def stop(self) -> None:
        """Fetch no more; a pull under way is given up."""
        if self._task is not None:
            self._task.cancel()

    def filter_by(self, expression: str) -> None:
        """From where it stands on, ask for what fits another expression; a pull under way is given up."""
        if expression != self._expression:
            self._expression = expression
            if self._task is not None and not self._task.done():
                self._task.cancel()
                self.start()

    def pause(self, *, paused: bool) -> None:
        """Stop asking for more, or go on."""
        self.is_paused = paused
        self._room.set()

    def consumed(self, size_bytes: int) -> None:
        """Give back room: so much of what was fetched has been taken."""
        self._buffered_bytes -= size_bytes
        self._room.set()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            share_bytes = self._share_bytes()
            if self.is_paused or self._buffered_bytes >= share_bytes:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                asked_at_ms = self._instance.now_ms()
                max_bytes = min(share_bytes, self._fetch_bytes)
                if await self._fetch(max_bytes) or self._instance.now_ms() - asked_at_ms > HELD_AT_LEAST_MS:
                    backoff.reset()
                    self._note(None)
                    continue
            except ClientError as error:
                self._note(error)
                await self._refresh()
            await asyncio.sleep(backoff.next_ms() / 1000)

    def _note(self, error: ClientError | None) -> None:
        """Log the first failure of a kind, and that it is over; not every attempt between."""
        if type(error) is not type(self._failure):
            if error is None:
                log.info("fetch_goes_on", queue=str(self.queue), offset=self.offset)
            else:
                log.warning("fetch_failed", queue=str(self.queue), offset=self.offset, error=str(error))
        self._failure = error

    async def _fetch(self, max_bytes: int) -> bool:
        """One pull; says whether it brought the queue forward."""
        header = PullRecordsHeader(
            self.queue.topic,
            self.queue.queue_id,
            self.offset,
            consumer_group=self._group,
            max_messages=self._max_messages,
            max_bytes=max_bytes,
            wait_ms=self._wait_ms,
            subscription=self._expression,
        )
        address = self._instance.master_of(self.queue.topic, self.queue.broker_name)
        self.asked_ms = self._instance.now_ms()
        answer = await self._ask(address, header)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return False
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise refused(answer.code, answer.remark, address)
        self._take(answer)
        return True

    async def _ask(self, address: str, header: PullRecordsHeader) -> RemotingCommand:
        timeout_ms = self._wait_ms + self._instance.config.request_timeout_ms
        if not self._is_plain:
            command = RemotingCommand(RayMQRequestCode.PULL_RECORDS, header.to_ext())
            answer = await self._instance.ask(address, command, timeout_ms)
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return answer
            self._is_plain = True  # one of RocketMQ's brokers
        answer = await self._instance.ask(address, plain_pull(header), timeout_ms + PLAIN_LATE_MS)
        answer.ext["count"] = str(count_records(answer.body))
        return answer

    def _take(self, answer: RemotingCommand) -> None:
        response = PullRecordsResponse.from_ext(answer.ext)
        asked, following = self.offset, response.next_begin_offset
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "offset_moved",
                group=self._group,
                queue=str(self.queue),
                asked=asked,
                min_offset=response.min_offset,
                max_offset=response.max_offset,
                going_on_at=following,
            )
        records = answer.body if answer.code == ResponseCode.SUCCESS else b""
        took_ms = self._instance.now_ms() - self.asked_ms
        self._sink.arrived(Chunk(self, asked, following, response.count, records, took_ms))
        # Only now: if the sink raises, the restarted fetch must bring the same records again.
        self.offset = following
        self._buffered_bytes += len(records)

    async def _refresh(self) -> None:
        try:
            await self._instance.routes.refresh(self.queue.topic)
        except ClientError:
            return  # the old route still stands
