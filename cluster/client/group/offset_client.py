"""Queries of queue offsets, and queries and commits of a group's consumer offsets, at the brokers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.header import Header
from actors.wire.headers import (
    OffsetResponse,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    TopicQueueHeader,
)
from actors.wire.raymq_requests import CommitOffsetsBody, CommitOffsetsReply, OffsetCommit
from cluster.client.config import AutoOffset
from cluster.client.errors import ClientError, NotSupported, OffsetNotFound
from cluster.client.times import check_plausible
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.plain_requests import plain_commits
from store.common.clock import NS_PER_MS
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

CONSUME_TIMESTAMP_AGO_MS = 30 * 60_000  # default of RocketMQ's consumeTimestamp


class Commit(NamedTuple):
    """Offset of the next message to consume, and the generation of the assignment (0: no generation).

    `history` is the epoch of the log in which the messages were read (`ReadEpoch`), and `address` the replica
    that it is of.
    """

    offset: int
    generation: int
    history: str = ""
    address: str = ""


class Committed(NamedTuple):
    """Result of a commit.

    `refused` lists the queues that other members hold now. `unconfirmed` maps the name of each broker that
    did not acknowledge the commit to its error.
    """

    refused: list[MessageQueue]
    unconfirmed: dict[str, ClientError]

    def has(self, queue: MessageQueue) -> bool:
        """Return True if the broker acknowledged the commit of `queue`."""
        return queue not in self.refused and queue.broker_name not in self.unconfirmed

    def raise_unconfirmed(self) -> None:
        """Raise the error of the first unconfirmed broker, if there is one."""
        for error in self.unconfirmed.values():
            raise error


class OffsetClient:
    """Queries and commits offsets for one consumer group."""

    def __init__(self, instance: ClientInstance, group: str, timestamp_ms: int | None = None) -> None:
        """Create the client of `group`.

        Args:
            instance: The client instance that sends the requests.
            group: The consumer group.
            timestamp_ms: Store timestamp at which `consume_from="timestamp"` begins, in ms since the epoch.
                By default half an hour before now.
        """
        self._instance = instance
        self._group = group
        if timestamp_ms is None:
            timestamp_ms = instance.clock.wall_ms() - CONSUME_TIMESTAMP_AGO_MS
        self._timestamp_ms = timestamp_ms
        self._unconfirmed_brokers: set[str] = set()
        # One lock per address of a RocketMQ broker. Its commits are sent one at a time: RocketMQ may lose
        # some of a group's first commits if they are concurrent (ConsumerOffsetManager.commitOffset).
        self._plain: dict[str, asyncio.Lock] = {}

    async def beginning(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in `queue`."""
        header = TopicQueueHeader(queue.topic, queue.queue_id)
        return await self._query(queue, RequestCode.GET_MIN_OFFSET, header)

    async def end(self, queue: MessageQueue) -> int:
        """Return the offset that the next message appended to `queue` will get."""
        header = TopicQueueHeader(queue.topic, queue.queue_id)
        return await self._query(queue, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after `timestamp_ms` (ms since the epoch).

        Raises ConfigInvalid if the time is before 2000, except 0, or more than a day ahead.
        """
        check_plausible("timestamp_ms", timestamp_ms, self._instance.clock.wall_ms())
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        return await self._query(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def committed(self, queue: MessageQueue, generation: int = 0) -> int | None:
        """Return the committed offset of the group in `queue`, or None without a commit.

        A new owner of the queue passes its `generation`. From then on the broker refuses commits of previous
        owners.
        """
        header = QueryConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, False, generation or None
        )
        try:
            return await self._query(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except OffsetNotFound:
            return None

    async def initial(self, queue: MessageQueue, consume_from: AutoOffset) -> int:
        """Return the offset given by `consume_from`."""
        if consume_from == "timestamp":
            return await self.at_time(queue, self._timestamp_ms)
        return await (self.beginning(queue) if consume_from == "earliest" else self.end(queue))

    async def starting(
        self,
        queue: MessageQueue,
        consume_from: AutoOffset,
        generation: int = 0,
        *,
        retry_refusals: bool = False,
    ) -> int:
        """Return the offset to start at: the committed offset, else the offset given by `consume_from`.

        Retriable errors, such as an unreachable broker, are retried until they end. With `retry_refusals`,
        errors that are not retriable are retried too: the consumption of an assigned queue must not stop
        permanently because of one error response. Raises ClientError otherwise.
        """
        backoff = Backoff()
        logged_error = ""
        while True:
            try:
                committed = await self.committed(queue, generation)
                if committed is not None:
                    return committed
                return await self.initial(queue, consume_from)
            except ClientError as error:
                if not error.retriable and not retry_refusals:
                    raise
                if str(error) != logged_error:
                    logged_error = str(error)
                    _log.warning(
                        "starting_offset_failed", group=self._group, queue=str(queue), error=logged_error
                    )
            await asyncio.sleep(backoff.next_ms() / 1000)
            await self.refresh(queue.topic)

    async def commit(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """Commit `offsets`, one request per broker. An error of one broker does not affect the others."""
        by_broker: dict[tuple[str, str], list[tuple[MessageQueue, Commit]]] = defaultdict(list)
        unconfirmed: dict[str, ClientError] = {}
        for queue, commit in offsets.items():
            try:
                address = self._instance.replica_of(queue.topic, queue.broker_name)
            except ClientError as error:
                unconfirmed[queue.broker_name] = error
            else:
                by_broker[queue.broker_name, address].append((queue, commit))
        results = await asyncio.gather(
            *(self._commit(address, commits) for (_, address), commits in by_broker.items()),
            return_exceptions=True,
        )
        refused: list[MessageQueue] = []
        for (broker_name, _), result in zip(by_broker, results, strict=True):
            if isinstance(result, ClientError):
                unconfirmed[broker_name] = result
            elif isinstance(result, BaseException):
                raise result
            else:
                refused.extend(result)
        return Committed(refused, unconfirmed)

    async def commit_with_retries(self, offsets: Mapping[MessageQueue, Commit], timeout_ms: int) -> Committed:
        """Commit `offsets`, and retry unconfirmed brokers for up to `timeout_ms` after retriable errors.

        A broker that restarts is available again within seconds.
        """
        backoff, deadline_ns = Backoff(), self._instance.clock.monotonic_ns() + timeout_ms * NS_PER_MS
        outcome = await self.commit(offsets)
        while outcome.unconfirmed and all(error.retriable for error in outcome.unconfirmed.values()):
            if self._instance.clock.monotonic_ns() >= deadline_ns:
                break
            await asyncio.sleep(backoff.next_ms() / 1000)
            unsent = {queue: offsets[queue] for queue in offsets if queue.broker_name in outcome.unconfirmed}
            for topic in {queue.topic for queue in unsent}:
                await self.refresh(topic)
            retried = await self.commit(unsent)
            outcome = Committed([*outcome.refused, *retried.refused], retried.unconfirmed)
        return outcome

    async def commit_best_effort(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """Commit `offsets` once without retries; for periodic commits.

        The first failure of a broker is logged. Further failures are not, until a commit to it succeeds.
        """
        outcome = await self.commit(offsets)
        for broker_name in {queue.broker_name for queue in offsets}:
            error = outcome.unconfirmed.get(broker_name)
            if error is None:
                self._unconfirmed_brokers.discard(broker_name)
            elif broker_name not in self._unconfirmed_brokers:
                self._unconfirmed_brokers.add(broker_name)
                _log.warning("commit_failed", group=self._group, broker=broker_name, error=str(error))
        return outcome

    def epoch(self, queue: MessageQueue) -> tuple[str, str]:
        """Return no epoch: the broker that keeps an offset goes back with it."""
        return "", ""

    def close(self) -> None:
        """Do nothing. The brokers keep the offsets."""

    async def _commit(
        self, address: str, commits: Iterable[tuple[MessageQueue, Commit]]
    ) -> list[MessageQueue]:
        by_id = {(queue.topic, queue.queue_id): queue for queue, _ in commits}
        rows = [
            OffsetCommit(queue.topic, queue.queue_id, commit.offset, commit.generation, commit.history)
            for queue, commit in commits
        ]
        plain = self._plain.get(address)
        if plain is None:
            body = CommitOffsetsBody(self._group, self._instance.client_id, rows).encode()
            command = RemotingCommand(RayMQRequestCode.COMMIT_OFFSETS, body=body)
            try:
                response = await self._instance.invoke(address, command)
            except NotSupported:
                plain = self._plain.setdefault(address, asyncio.Lock())
            else:
                reply = CommitOffsetsReply.decode(response.body) if response.body else CommitOffsetsReply([])
                return [by_id[each.topic, each.queue_id] for each in reply.refused]
        failed: ClientError | None = None
        async with plain:
            for each in plain_commits(self._group, rows):
                try:
                    await self._instance.invoke(address, each)
                except ClientError as error:  # such as a deleted topic: commit the other queues all the same
                    failed = failed or error
                    if error.retriable:
                        break
        if failed is not None:
            raise failed
        return []

    async def _query(self, queue: MessageQueue, code: int, header: Header) -> int:
        await self._instance.routes.get(queue.topic)
        address = self._instance.replica_of(queue.topic, queue.broker_name)
        response = await self._instance.invoke(address, RemotingCommand(code, header.to_ext()))
        return OffsetResponse.from_ext(response.ext).offset

    async def refresh(self, topic: str) -> None:
        """Refresh the route of `topic`. Without a response, the cached one stays in use."""
        try:
            await self._instance.routes.refresh(topic)
        except ClientError:
            return  # keep the cached route
