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

# A broker that responds "nothing there" at once, instead of holding the pull, gets fewer pulls.
HELD_AT_LEAST_MS = 20
MAX_MESSAGES = 1 << 20  # as good as any number: bytes bound a pull
PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


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
    """From the request to the response."""

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


class Puller:
    """Sends one consumer's pulls: PULL_RECORDS, to RocketMQ's brokers PULL_MESSAGE."""

    def __init__(
        self, instance: ClientInstance, config: ConsumerConfig, max_messages: int = MAX_MESSAGES
    ) -> None:
        """A pull brings at most `max_messages`."""
        self.group = config.group
        self._instance = instance
        self._config = config
        self._max_messages = max_messages
        self._plain: set[str] = set()  # the addresses of RocketMQ's brokers

    async def pull(
        self, queue: MessageQueue, offset: int, expression: str, share_bytes: int
    ) -> RemotingCommand:
        """Return the broker's response: records, nothing, or where to resume. Raises ClientError."""
        header = PullRecordsHeader(
            queue.topic,
            queue.queue_id,
            offset,
            consumer_group=self._config.group,
            max_messages=self._max_messages,
            max_bytes=min(share_bytes, self._config.fetch_bytes),
            wait_ms=self._config.long_poll_ms,
            subscription=expression,
        )
        address = self._instance.master_of(queue.topic, queue.broker_name)
        response = await self._send(address, header)
        if response.code not in PULL_CODES:
            raise refused(response.code, response.remark, address)
        return response

    async def _send(self, address: str, header: PullRecordsHeader) -> RemotingCommand:
        timeout_ms = header.wait_ms + self._instance.config.request_timeout_ms
        if address not in self._plain:
            command = RemotingCommand(RayMQRequestCode.PULL_RECORDS, header.to_ext())
            response = await self._instance.ask(address, command, timeout_ms)
            if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return response
            self._plain.add(address)
        response = await self._instance.ask(address, plain_pull(header), timeout_ms + PLAIN_LATE_MS)
        response.ext["count"] = str(count_records(response.body))
        return response


class Fetcher:
    """Pulls one queue from `offset` on. A seek is a new fetcher: what the old one brings is recognised and
    dropped.
    """

    def __init__(
        self,
        instance: ClientInstance,
        puller: Puller,
        queue: MessageQueue,
        offset: int,
        expression: str,
        share_bytes: Callable[[], int],
        sink: FetchSink,
    ) -> None:
        """`share_bytes()` is how much of the queue may lie fetched and unconsumed now."""
        self.queue = queue
        self.offset = offset
        self.is_paused = False
        self.pulled_ms = 0
        """When the last pull began, in monotonic ms; 0 before the first."""
        self._instance = instance
        self._puller = puller
        self._expression = expression
        self._share_bytes = share_bytes
        self._sink = sink
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
                if await self._fetch(share_bytes):
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
                log.info("fetch_resumed", queue=str(self.queue), offset=self.offset)
            else:
                log.warning("fetch_failed", queue=str(self.queue), offset=self.offset, error=str(error))
        self._failure = error

    async def _fetch(self, share_bytes: int) -> bool:
        """Pull once; return False if the broker had nothing and did not hold the pull either."""
        self.pulled_ms = self._instance.now_ms()
        response = await self._puller.pull(self.queue, self.offset, self._expression, share_bytes)
        took_ms = self._instance.now_ms() - self.pulled_ms
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return took_ms > HELD_AT_LEAST_MS
        self._take(response, took_ms)
        return True

    def _take(self, command: RemotingCommand, took_ms: int) -> None:
        response = PullRecordsResponse.from_ext(command.ext)
        offset, following = self.offset, response.next_begin_offset
        if command.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "offset_moved",
                group=self._puller.group,
                queue=str(self.queue),
                asked=offset,
                min_offset=response.min_offset,
                max_offset=response.max_offset,
                resumed_at=following,
            )
        records = command.body if command.code == ResponseCode.SUCCESS else b""
        self._sink.arrived(Chunk(self, offset, following, response.count, records, took_ms))
        # Only now: if the sink raises, the restarted fetch must bring the same records again.
        self.offset = following
        self._buffered_bytes += len(records)

    async def _refresh(self) -> None:
        try:
            await self._instance.routes.refresh(self.queue.topic)
        except ClientError:
            return  # the old route still stands
