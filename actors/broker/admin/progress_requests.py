"""Requests for the progress of topics and consumer groups, which mqadmin shows as tables.

A response covers every queue of a topic: its offsets, and the store timestamps of some messages. The broker
computes it in slices of QUEUES_PER_SLICE queues, so that twenty thousand queues do not delay other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

from actors.broker.build_loop import BrokerLoop
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.parts import BrokerGroups
from actors.transport.request import OnSlave, Permits, RequestContext, RequestRow
from actors.wire.admin_headers import (
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    GroupHeader,
    GroupTopicHeader,
)
from actors.wire.bodies.progress import (
    EXPECTED,
    UNKNOWN,
    ConsumeStats,
    OffsetWrapper,
    QueueTimeSpan,
    TopicCounters,
    TopicCountersTable,
    TopicOffset,
    TopicStatsTable,
    encode_consume_stats_list,
    encode_group_list,
    encode_time_spans,
    encode_topics_of_group,
)
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicHeader
from actors.wire.targets import (
    Action,
    DecodedRequest,
    Resource,
    Target,
    each_of,
    on_every,
    on_group,
    on_topic,
)
from store.common.clock import Clock
from store.message.message_queue import MessageQueue

QUEUES_PER_SLICE = 32
"""Queues that are computed before other requests get a turn."""
ENCODE_ON_LOOP_QUEUES_MAX = 1000
"""A response with more queues is encoded in a thread."""


class ProgressRequests:
    """Request handler for the progress of topics and consumer groups.

    It handles GET_TOPIC_STATS_INFO, GET_TOPIC_COUNTERS, GET_CONSUME_STATS, GET_BROKER_CONSUME_STATS,
    QUERY_CONSUME_TIME_SPAN, QUERY_TOPIC_CONSUME_BY_WHO and QUERY_TOPICS_BY_CONSUMER. A response to a request
    that names a group omits the topics that the sender of the request may not see, and vice versa.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        loop: BrokerLoop,
        tables: BrokerTables,
        groups: BrokerGroups,
        clock: Clock,
        permits: Permits,
    ) -> None:
        self._permits = permits
        self._identity = identity
        self._store = loop.store
        self._reads = loop.reads
        self._stats = loop.stats
        self._tables = tables
        self._clients = groups.clients
        self._progress = groups.progress
        self._clock = clock

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, row = RequestCode, partial(RequestRow, on_slave=OnSlave.SERVED)
        by_topic, by_group = on_topic(Action.GET), on_group(Action.GET, "group")
        stats = each_of(on_group(Action.GET), _topics)
        every = each_of(on_every(Resource.GROUP, Action.LIST), on_every(Resource.TOPIC, Action.LIST))
        both, topics = each_of(by_group, by_topic), on_every(Resource.TOPIC, Action.LIST)
        all_stats = BrokerConsumeStatsHeader
        return (
            row(code.GET_TOPIC_STATS_INFO, self.topic_stats, TopicHeader, by_topic),
            row(code.GET_CONSUME_STATS, self.consume_stats, ConsumeStatsHeader, stats),
            row(code.GET_BROKER_CONSUME_STATS, self.broker_consume_stats, all_stats, every),
            row(code.QUERY_CONSUME_TIME_SPAN, self.time_span, GroupTopicHeader, both),
            row(code.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic, TopicHeader, by_topic),
            row(RayMQRequestCode.GET_TOPIC_COUNTERS, self.topic_counters, None, topics),
            row(code.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group, GroupHeader, by_group),
        )

    def topic_stats(self, context: RequestContext) -> None:
        """Handle GET_TOPIC_STATS_INFO: return the offset range of each queue, and the topic's put rate."""
        header: TopicHeader = context.header
        self._tables.topics.get(header.topic)
        context.spawn(self._topic_stats(header.topic))

    def topic_counters(self, context: RequestContext) -> None:
        """Handle GET_TOPIC_COUNTERS: return the stored messages and the rate of each topic."""
        context.spawn(self._topic_counters())

    def consume_stats(self, context: RequestContext) -> None:
        """Handle GET_CONSUME_STATS: return a group's progress in each queue of its topics."""
        header: ConsumeStatsHeader = context.header
        group = header.consumer_group
        known = (*self._progress.topics_of(group), *self._tables.offsets.lite_topics_of(group))
        context.spawn(self._consume_stats(group, header.topics or self._visible(context, known)))

    def broker_consume_stats(self, context: RequestContext) -> None:
        """Handle GET_BROKER_CONSUME_STATS: return the progress of all groups."""
        header: BrokerConsumeStatsHeader = context.header
        context.spawn(self._all_consume_stats(only_ordered=header.is_order))

    def time_span(self, context: RequestContext) -> None:
        """Handle QUERY_CONSUME_TIME_SPAN: return store timestamps for each queue of a topic.

        They are those of the oldest message, of the newest one and of the one that the group consumed last.
        """
        header: GroupTopicHeader = context.header
        self._tables.topics.get(header.topic)
        context.spawn(self._time_spans(header.group, header.topic))

    def groups_of_topic(self, context: RequestContext) -> RemotingCommand:
        """Handle QUERY_TOPIC_CONSUME_BY_WHO: return the groups that consume or have consumed a topic."""
        header: TopicHeader = context.header
        online = {group.name for group in self._clients.groups() if header.topic in group.subscriptions}
        found = online | set(self._tables.offsets.groups_of(header.topic))
        visible = {each for each in found if self._permits(context, Target(Resource.GROUP, each, Action.GET))}
        return RemotingCommand.response(body=encode_group_list(visible))

    def topics_of_group(self, context: RequestContext) -> RemotingCommand:
        """Handle QUERY_TOPICS_BY_CONSUMER: return the topics in which a group has committed offsets."""
        header: GroupHeader = context.header
        topics = self._visible(context, self._tables.offsets.topics_of(header.group))
        return RemotingCommand.response(body=encode_topics_of_group(topics, self._identity.address))

    def _visible(self, context: RequestContext, topics: Iterable[str]) -> list[str]:
        """Return the topics that the sender of the request may see."""
        return [each for each in topics if self._permits(context, Target(Resource.TOPIC, each, Action.GET))]

    async def _topic_stats(self, topic: str) -> RemotingCommand:
        config = self._tables.topics.get(topic)
        await self._reads.caught_up()
        offsets: dict[MessageQueue, TopicOffset] = {}
        async for queue in self._queues(topic, max(config.read_queue_nums, config.write_queue_nums)):
            first = await self._first(topic, queue.queue_id)
            end = self._store.max_offset(topic, queue.queue_id)
            newest_ms = await self._stored_ms(topic, queue.queue_id, end - 1) if end else 0
            offsets[queue] = TopicOffset(first, end, newest_ms)
        return await _response(TopicStatsTable(offsets, self._stats.put_tps(topic)).encode, len(offsets))

    async def _topic_counters(self) -> RemotingCommand:
        await self._reads.caught_up()
        table = TopicCountersTable()
        for topic, config in list(self._tables.topics.table.topics.items()):
            counters = table.topics[topic] = TopicCounters(put_tps=self._stats.put_tps(topic))
            async for queue in self._queues(topic, max(config.read_queue_nums, config.write_queue_nums)):
                end = self._store.max_offset(topic, queue.queue_id)
                counters.end += end
                counters.messages += end - await self._first(topic, queue.queue_id)
        return await _response(table.encode, len(table.topics))

    async def _consume_stats(self, group: str, topics: Iterable[str]) -> RemotingCommand:
        await self._reads.caught_up()
        stats = ConsumeStats()
        for topic in topics:
            of_topic = await self._stats_of(group, topic)
            if of_topic is not None:
                stats.offsets |= of_topic.offsets
                stats.consume_tps += of_topic.consume_tps
        return await _response(stats.encode, len(stats.offsets))

    async def _all_consume_stats(self, *, only_ordered: bool) -> RemotingCommand:
        await self._reads.caught_up()
        groups: dict[str, list[ConsumeStats]] = {name: [] for name in self._tables.groups.table.groups}
        topics = self._progress.topics_by_group()
        for group, rows in groups.items():
            for topic in topics.get(group, ()):
                config = self._tables.topics.find(topic)
                if only_ordered and (config is None or not config.order):
                    continue
                stats = await self._stats_of(group, topic)
                if stats is not None:
                    rows.append(stats)
        queues = sum(len(stats.offsets) for rows in groups.values() for stats in rows)
        return await _response(lambda: encode_consume_stats_list(groups, self._identity.address), queues)

    async def _stats_of(self, group: str, topic: str) -> ConsumeStats | None:
        """Return the group's progress in a topic.

        Returns None if the topic is deleted, or if the group's connected members do not subscribe to it.
        """
        config = self._tables.topics.find(topic)
        if config is None or not self._progress.may_consume(group, topic):
            return None
        stats = ConsumeStats(consume_tps=self._stats.got_tps(group, topic))
        async for queue in self._queues(topic, config.read_queue_nums):
            stats.offsets[queue] = await self._offsets_of(group, topic, queue.queue_id)
        return stats

    async def _offsets_of(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        """Return the group's progress in a queue; RocketMQ's tools read an unknown offset as 0."""
        offsets, progress = self._tables.offsets, self._progress
        committed = offsets.query(group, topic, queue_id)
        begin = await self._reads.read(partial(progress.begin, group, topic, queue_id))
        consumed = next((each for each in (committed, begin) if each is not None), 0)
        last_ms = await self._stored_ms(topic, queue_id, committed - 1) if committed else 0
        pulled = offsets.pulled.get((topic, group, queue_id), 0)
        found = OffsetWrapper(
            self._store.max_offset(topic, queue_id), consumed, max(consumed, pulled), max(last_ms, 0)
        )
        if begin is None or committed is None:
            found.origin = UNKNOWN if begin is None else EXPECTED
            if found.lag:
                found.first_timestamp = await self._stored_ms(topic, queue_id, consumed)
        if claimed := offsets.claimed[topic, group, queue_id]:
            found.claimed = claimed
        return found

    async def _time_spans(self, group: str, topic: str) -> RemotingCommand:
        await self._reads.caught_up()
        store, now_ms = self._store, self._clock.wall_ms()
        spans: list[QueueTimeSpan] = []
        async for queue in self._queues(topic, self._tables.topics.get(topic).write_queue_nums):
            queue_id = queue.queue_id
            first, end = await self._first(topic, queue_id), store.max_offset(topic, queue_id)
            consumed = self._tables.offsets.query(group, topic, queue_id)
            span = QueueTimeSpan(queue)
            span.min_timestamp = await self._stored_ms(topic, queue_id, first)
            span.max_timestamp = await self._stored_ms(topic, queue_id, end - 1)
            span.consume_timestamp = (
                await self._stored_ms(topic, queue_id, consumed - 1) if consumed else span.min_timestamp
            )
            if consumed is not None and consumed < end:
                span.delay_ms = now_ms - await self._stored_ms(topic, queue_id, max(consumed, first))
            spans.append(span)
        return await _response(lambda: encode_time_spans(spans), len(spans))

    async def _first(self, topic: str, queue_id: int) -> int:
        return await self._reads.read(lambda: self._store.min_offset(topic, queue_id))

    async def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        return await self._reads.read(lambda: self._store.store_timestamp(topic, queue_id, offset))

    async def _queues(self, topic: str, count: int) -> AsyncIterator[MessageQueue]:
        for queue_id in range(count):
            # Also before the first queue, because there may be many topics with few queues.
            if queue_id % QUEUES_PER_SLICE == 0:
                await asyncio.sleep(0)
            yield MessageQueue(topic, self._identity.name, queue_id)


def _topics(context: DecodedRequest) -> Iterable[Target]:
    header: ConsumeStatsHeader = context.header
    return [Target(Resource.TOPIC, topic, Action.GET) for topic in (header.topic or "", *header.topics)]


async def _response(encode: Callable[[], bytes], queues: int) -> RemotingCommand:
    """Return a response whose body is the result of `encode`, which runs in a thread if the body is large."""
    body = encode() if queues <= ENCODE_ON_LOOP_QUEUES_MAX else await asyncio.to_thread(encode)
    return RemotingCommand.response(body=body)
