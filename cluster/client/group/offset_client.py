"""Offsets on the brokers: where a queue begins and ends, and how far a group has come."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from actors.remoting.codes import RayMQRequestCode, RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.header import Header
from actors.remoting.headers import (
    OffsetResponse,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    TopicQueueHeader,
)
from actors.remoting.raymq_requests import CommitOffsetsBody, CommitOffsetsReply, OffsetCommit
from cluster.client.config import AutoOffset
from cluster.client.errors import ClientError, NotSupported, OffsetNotFound
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.plain_requests import plain_commits
from store.clock import NS_PER_MS
from store.logs import get_logger
from store.message.message_queue import MessageQueue

log = get_logger(__name__)

CONSUME_TIMESTAMP_AGO_MS = 30 * 60_000  # RocketMQ's consumeTimestamp


class Commit(NamedTuple):
    """An offset – the next to consume – and the generation under which the queue is held (0: none)."""

    offset: int
    generation: int


class Committed(NamedTuple):
    """What came of commits: the queues that others hold now; the brokers that could not be told, and why."""

    refused: list[MessageQueue]
    unconfirmed: dict[str, ClientError]

    def has(self, queue: MessageQueue) -> bool:
        """Whether this queue's commit stands now."""
        return queue not in self.refused and queue.broker_name not in self.unconfirmed

    def raise_unconfirmed(self) -> None:
        """Raise why the first broker could not be told, if there is one."""
        for error in self.unconfirmed.values():
            raise error


class OffsetClient:
    """Asks and tells brokers about offsets, for one group."""

    def __init__(self, instance: ClientInstance, group: str, timestamp_ms: int | None = None) -> None:
        """`timestamp_ms` is where "timestamp" begins; None: half an hour before now."""
        self._instance = instance
        self._group = group
        if timestamp_ms is None:
            timestamp_ms = instance.clock.wall_ms() - CONSUME_TIMESTAMP_AGO_MS
        self._timestamp_ms = timestamp_ms
        self._unheard: set[str] = set()
        self._plain: dict[str, asyncio.Lock] = {}
        """By address, of RocketMQ's brokers. They are told one offset after the other: of a group's first
        ones that come side by side they lose some (RocketMQ ConsumerOffsetManager.commitOffset).
        """

    async def beginning(self, queue: MessageQueue) -> int:
        """The offset of the oldest message there is."""
        header = TopicQueueHeader(queue.topic, queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)

    async def end(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        header = TopicQueueHeader(queue.topic, queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at `timestamp_ms` (since the epoch) or later."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def committed(self, queue: MessageQueue, generation: int = 0) -> int | None:
        """How far the group has come, None when it has committed nothing.

        A new owner names its `generation`: from then on a former owner's commits are refused.
        """
        header = QueryConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, set_zero_if_not_found=False
        )
        try:
            return await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, generation)
        except OffsetNotFound:
            return None

    async def starting(
        self,
        queue: MessageQueue,
        consume_from: AutoOffset,
        generation: int = 0,
        *,
        is_patient: bool = False,
    ) -> int:
        """Where to begin: what is committed, else as `consume_from` says. Waits for a broker that is away,
        and with `is_patient` while one refuses to say: a queue that is held must not stand still for good.
        """
        backoff = Backoff()
        told = ""
        while True:
            try:
                committed = await self.committed(queue, generation)
                if committed is not None:
                    return committed
                if consume_from == "timestamp":
                    return await self.at_time(queue, self._timestamp_ms)
                return await (self.beginning(queue) if consume_from == "earliest" else self.end(queue))
            except ClientError as error:
                if not error.retriable and not is_patient:
                    raise
                if str(error) != told:
                    told = str(error)
                    log.warning("starting_offset_failed", group=self._group, queue=str(queue), error=told)
            await asyncio.sleep(backoff.next_ms() / 1000)
            await self._refresh(queue.topic)

    async def commit(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """Commit, a request a broker. One that cannot be told keeps nobody from committing to the others."""
        by_broker: dict[tuple[str, str], list[tuple[MessageQueue, Commit]]] = defaultdict(list)
        unconfirmed: dict[str, ClientError] = {}
        for queue, commit in offsets.items():
            try:
                address = self._instance.master_of(queue.topic, queue.broker_name)
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

    async def commit_with_retries(
        self, offsets: Mapping[MessageQueue, Commit], patience_ms: int
    ) -> Committed:
        """The same, and again for those brokers that cannot be told, as long as `patience_ms`: one that is
        started again is back in seconds.
        """
        backoff, deadline_ns = Backoff(), self._instance.clock.monotonic_ns() + patience_ms * NS_PER_MS
        outcome = await self.commit(offsets)
        while outcome.unconfirmed and all(error.retriable for error in outcome.unconfirmed.values()):
            if self._instance.clock.monotonic_ns() >= deadline_ns:
                break
            await asyncio.sleep(backoff.next_ms() / 1000)
            left = {queue: offsets[queue] for queue in offsets if queue.broker_name in outcome.unconfirmed}
            for topic in {queue.topic for queue in left}:
                await self._refresh(topic)
            again = await self.commit(left)
            outcome = Committed([*outcome.refused, *again.refused], again.unconfirmed)
        return outcome

    async def commit_best_effort(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """The same for commits that come again and again: a broker that cannot be told is logged once, until
        it can be.
        """
        outcome = await self.commit(offsets)
        for broker_name in {queue.broker_name for queue in offsets}:
            error = outcome.unconfirmed.get(broker_name)
            if error is None:
                self._unheard.discard(broker_name)
            elif broker_name not in self._unheard:
                self._unheard.add(broker_name)
                log.warning("commit_failed", group=self._group, broker=broker_name, error=str(error))
        return outcome

    async def _commit(
        self, address: str, commits: Iterable[tuple[MessageQueue, Commit]]
    ) -> list[MessageQueue]:
        by_id = {(queue.topic, queue.queue_id): queue for queue, _ in commits}
        rows = [
            OffsetCommit(queue.topic, queue.queue_id, commit.offset, commit.generation)
            for queue, commit in commits
        ]
        plain = self._plain.get(address)
        if plain is None:
            body = CommitOffsetsBody(self._group, self._instance.client_id, rows).encode()
            command = RemotingCommand(RayMQRequestCode.COMMIT_OFFSETS, body=body)
            try:
                answer = await self._instance.invoke(address, command)
            except NotSupported:
                plain = self._plain.setdefault(address, asyncio.Lock())
            else:
                reply = CommitOffsetsReply.decode(answer.body) if answer.body else CommitOffsetsReply([])
                return [by_id[each.topic, each.queue_id] for each in reply.refused]
        async with plain:
            for each in plain_commits(self._group, rows):
                await self._instance.invoke(address, each)
        return []

    async def _ask(self, queue: MessageQueue, code: int, header: Header, generation: int = 0) -> int:
        await self._instance.routes.get(queue.topic)
        address = self._instance.master_of(queue.topic, queue.broker_name)
        ext = header.to_ext()
        if generation:
            ext["generation"] = str(generation)
        answer = await self._instance.invoke(address, RemotingCommand(code, ext))
        return OffsetResponse.from_ext(answer.ext).offset

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except ClientError:
            return  # the old route still stands
