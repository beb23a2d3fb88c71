"""Fetcher: pulls one queue with successive long polls, ahead of the consumer up to a buffer limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from actors.wire.bodies.routes import MASTER_ID
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import Buffer, RemotingCommand
from actors.wire.headers import PullRecordsHeader, PullRecordsResponse
from cluster.client.config import ConsumerConfig
from cluster.client.errors import ClientError, refused
from cluster.client.message_selector import MessageSelector
from cluster.client.read_epoch import ReadEpoch
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.plain_requests import PLAIN_LATE_MS, count_records, plain_pull
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

# If a broker responds "no new message" faster than this, it did not hold the long poll, and the fetcher backs
# off before the next pull.
HELD_AT_LEAST_MS = 20
MAX_MESSAGES = 1 << 20  # effectively unlimited: pulls are limited by their bytes
PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(slots=True, eq=False)
class Chunk:
    """Encoded records of one queue, back to back, as received from the broker.

    `next_offset` is the offset after the last record that the broker examined, including filtered ones.
    """

    fetcher: Fetcher
    begin_offset: int
    next_offset: int
    count: int
    records: Buffer
    took_ms: int = 0
    """Time from the request to the response, in ms."""
    has_gone_back: bool = False
    """True if the requested offset is of another past of the broker's log, which has less than that."""

    @property
    def queue(self) -> MessageQueue:
        """Return the queue of the records."""
        return self.fetcher.queue


class FetchSink(Protocol):
    """Receiver of the chunks of a fetcher. Called on the event loop."""

    def arrived(self, chunk: Chunk) -> None:
        """Receive a chunk.

        A chunk without records only moves the position to `next_offset`: either all records up to there are
        filtered out, or the requested offset is outside the queue. In the second case `next_offset` may be
        lower than the requested offset.
        """


class PullSender:
    """Sends the pulls of one consumer: PULL_RECORDS, or PULL_MESSAGE to RocketMQ's own brokers."""

    def __init__(
        self, instance: ClientInstance, config: ConsumerConfig, max_messages: int = MAX_MESSAGES
    ) -> None:
        """Each pull requests at most `max_messages` messages."""
        self.group = config.group
        self._instance = instance
        self._config = config
        self._max_messages = max_messages
        self._plain: set[str] = set()  # the addresses of RocketMQ's brokers
        self._suggested: dict[MessageQueue, int] = {}  # the broker ids to read from, if not the master

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        selector: MessageSelector,
        share_bytes: int,
        epoch: ReadEpoch,
    ) -> RemotingCommand:
        """Pull `queue` from `offset` on, and return the response, whose code is one of PULL_CODES.

        `epoch` is that of the position; it is updated.

        The broker's response suggests the replica of the next pull. After an error the next pull goes to
        another replica. Raises ClientError if there is no response or it has another code.
        """
        header = PullRecordsHeader(
            queue.topic,
            queue.queue_id,
            offset,
            consumer_group=self._config.group,
            max_messages=self._max_messages,
            max_bytes=min(share_bytes, self._config.fetch_bytes),
            wait_ms=self._config.long_poll_ms,
            subscription=selector.expression,
            expression_type=selector.type,
        )
        broker_id = self._suggested.get(queue, MASTER_ID)
        address = self._instance.replica_of(queue.topic, queue.broker_name, broker_id)
        header.history = epoch.at(address)
        try:
            response = await self._send(address, header)
            if response.code not in PULL_CODES:
                raise refused(response.code, response.remark, address)
        except ClientError:
            self._suggest(queue, self._next_replica(queue, broker_id))
            raise
        found = PullRecordsResponse.from_ext(response.ext)
        self._suggest(queue, found.suggest_which_broker_id)
        epoch.read(address, found.history)
        return response

    def _suggest(self, queue: MessageQueue, broker_id: int) -> None:
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        else:
            self._suggested.pop(queue, None)

    def _next_replica(self, queue: MessageQueue, failed: int) -> int:
        """Return the id of the replica to try after `failed`, in a circle."""
        route = self._instance.routes.peek(queue.topic)
        known = route.replicas(queue.broker_name) if route is not None else ()
        return next((each for each in known if each > failed), MASTER_ID)

    async def _send(self, address: str, header: PullRecordsHeader) -> RemotingCommand:
        timeout_ms = header.wait_ms + self._instance.config.request_timeout_ms
        if address not in self._plain:
            command = RemotingCommand(RayMQRequestCode.PULL_RECORDS, header.to_ext())
            response = await self._instance.request(address, command, timeout_ms)
            if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return response
            self._plain.add(address)
        response = await self._instance.request(address, plain_pull(header), timeout_ms + PLAIN_LATE_MS)
        response.ext["count"] = str(count_records(response.body))
        return response


class Fetcher:
    """Pulls one queue, starting at `offset`.

    A seek replaces the fetcher of the queue. Each chunk refers to its fetcher, so the chunks of a replaced
    fetcher can be dropped.
    """

    def __init__(
        self,
        instance: ClientInstance,
        puller: PullSender,
        queue: MessageQueue,
        offset: int,
        selector: MessageSelector,
        share_bytes: Callable[[], int],
        sink: FetchSink,
        consumed: Callable[[], int] | None = None,
        epoch: ReadEpoch | None = None,
    ) -> None:
        """Create the fetcher.

        `share_bytes()` returns how many bytes of the queue may be fetched but not consumed. `consumed()`
        returns up to where the queue is consumed, if the sink drops other messages when it is moved back.
        `epoch` is that of the offset, if it was saved with it.
        """
        self.queue = queue
        self.offset = offset
        self.is_paused = False
        self.pulled_ms = 0
        """Time of the last pull request, in monotonic ms; 0 before the first one."""
        self._instance = instance
        self._puller = puller
        self._selector = selector
        self._share_bytes = share_bytes
        self._sink = sink
        self._consumed = consumed
        self.epoch = epoch or ReadEpoch()
        """The epoch of the log that the offset belongs to."""
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None

    def start(self) -> None:
        """Start fetching in a background task."""
        self._task = self._instance.supervisor.start(f"fetch {self.queue}", self._run)

    def stop(self) -> None:
        """Stop fetching and cancel the pull in flight."""
        if self._task is not None:
            self._task.cancel()

    def filter_by(self, selector: MessageSelector) -> None:
        """Use another selector from the current offset on. A pull in flight is repeated with it."""
        if selector != self._selector:
            self._selector = selector
            if self._task is not None and not self._task.done():
                self._task.cancel()
                self.start()

    def pause(self, *, paused: bool) -> None:
        """Pause fetching, or resume it."""
        self.is_paused = paused
        self._room.set()

    def consumed(self, size_bytes: int) -> None:
        """Release `size_bytes` of the buffer limit, because the consumer has taken that many bytes."""
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
                    self._log_failure(None)
                    continue
            except ClientError as error:
                self._log_failure(error)
                await self._refresh()
            await asyncio.sleep(backoff.next_ms() / 1000)

    def _log_failure(self, error: ClientError | None) -> None:
        """Log the first failure of each error type, and the first success (`error` None) after failures."""
        if type(error) is not type(self._failure):
            if error is None:
                _log.info("fetch_resumed", queue=str(self.queue), offset=self.offset)
            else:
                _log.warning("fetch_failed", queue=str(self.queue), offset=self.offset, error=str(error))
        self._failure = error

    async def _fetch(self, share_bytes: int) -> bool:
        """Pull once. Return False if the broker had no message and did not hold the pull."""
        self.pulled_ms = self._instance.now_ms()
        response = await self._puller.pull(self.queue, self.offset, self._selector, share_bytes, self.epoch)
        took_ms = self._instance.now_ms() - self.pulled_ms
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return took_ms > HELD_AT_LEAST_MS
        began = self.offset
        if self._take(response, took_ms):
            return True
        # A slave that lacks the offset sends the consumer to the master, which may be gone.
        return response.code != ResponseCode.PULL_RETRY_IMMEDIATELY or self.offset != began

    def _take(self, command: RemotingCommand, took_ms: int) -> bool:
        """Pass a response to the sink. Return True if it only names the epoch of the log."""
        response = PullRecordsResponse.from_ext(command.ext)
        offset, following = self.offset, response.next_begin_offset
        has_gone_back = response.history is not None and following < offset
        if has_gone_back and self._consumed is not None:
            following = min(following, self._consumed())
        if command.code == ResponseCode.PULL_OFFSET_MOVED:
            _log.warning(
                "log_went_back" if has_gone_back else "offset_moved",
                group=self._puller.group,
                queue=str(self.queue),
                requested=offset,
                min_offset=response.min_offset,
                max_offset=response.max_offset,
                resumed_at=following,
            )
        records = command.body if command.code == ResponseCode.SUCCESS else b""
        self._sink.arrived(Chunk(self, offset, following, response.count, records, took_ms, has_gone_back))
        # Advance the offset last: if the sink raises, the restarted fetcher must pull the same records again.
        self.offset = following
        self._buffered_bytes += len(records)
        return response.history is not None

    async def _refresh(self) -> None:
        try:
            await self._instance.routes.refresh(self.queue.topic)
        except ClientError:
            return  # keep the cached route
