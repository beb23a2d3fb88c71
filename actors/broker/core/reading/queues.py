"""Queries for queue offsets, timestamps and single messages, and for the splits of a bulk reader."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.loop.log_history import PastPositions
from actors.broker.core.loop.reads import SEARCH_ATTEMPTS, Reads, stored_record
from actors.broker.core.metadata.topics import Topics
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow, TopicCheck
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    OffsetResponse,
    QueryMessageHeader,
    QueryMessageResponse,
    SearchOffsetHeader,
    TimestampResponse,
    TopicHeader,
    TopicQueueHeader,
    ViewMessageHeader,
)
from actors.wire.raymq_requests import QueueRange, SplitsBody
from actors.wire.targets import Action, on_topic
from store.consumequeue.unit import UNIT_BYTES
from store.message.record import decode_record
from store.message_store import MessageStore
from store.ownership.machine import machine_id

QUERY_MESSAGES_MAX = 64
"""Limit of messages in one QUERY_MESSAGE response."""
NO_TIMESTAMP = -1


class QueueQueries:
    """Request handler for queries about queues and messages, and for DESCRIBE_SPLITS."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        topics: Topics,
        identity: BrokerIdentity,
        may_read: TopicCheck,
        past: PastPositions,
    ) -> None:
        """Create the handler. Bulk readers connect to `address`, the broker's `host:port`."""
        self._settings = settings
        self._store = store
        self._reads = reads
        self._topics = topics
        self._identity = identity
        self._may_read = may_read
        self._past = past

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.SERVED)
        code, get, query = RequestCode, on_topic(Action.GET), Cost.QUERY
        queue, search = TopicQueueHeader, SearchOffsetHeader
        splits = RayMQRequestCode.DESCRIBE_SPLITS
        return (
            row(code.GET_MAX_OFFSET, self.max_offset, queue, get, query),
            row(code.GET_MIN_OFFSET, self.min_offset, queue, get, query),
            row(code.SEARCH_OFFSET_BY_TIMESTAMP, self.search_offset, search, get, query),
            row(code.GET_EARLIEST_MSG_STORETIME, self.earliest_store_time, queue, get, query),
            row(code.VIEW_MESSAGE_BY_ID, self.view_message, ViewMessageHeader, get, query),
            row(code.QUERY_MESSAGE, self.query_message, QueryMessageHeader, get, query),
            row(splits, self.describe_splits, TopicHeader, get, query),
        )

    def max_offset(self, context: RequestContext) -> RemotingCommand | None:
        """Handle GET_MAX_OFFSET: return the offset after the last readable message of a queue."""
        return self._reads.when_caught_up(context, self._max_offset)

    def _max_offset(self, context: RequestContext) -> RemotingCommand:
        header: TopicQueueHeader = context.header
        return _offset(self._store.max_offset(header.topic, header.queue_id))

    def min_offset(self, context: RequestContext) -> None:
        """Handle GET_MIN_OFFSET: return the offset of the oldest message of a queue."""
        header: TopicQueueHeader = context.header
        self._reads.serve(
            context,
            lambda: self._store.min_offset(header.topic, header.queue_id),
            _offset,
            SEARCH_ATTEMPTS,
        )

    def search_offset(self, context: RequestContext) -> None:
        """Handle SEARCH_OFFSET_BY_TIMESTAMP: return a queue's offset for a store timestamp in ms.

        By the boundary type, this is the first message stored at or after the timestamp (LOWER), or the last
        one stored at or before it (UPPER).
        """
        self._reads.when_caught_up(context, self._search_offset)

    def _search_offset(self, context: RequestContext) -> None:
        header: SearchOffsetHeader = context.header
        topic, queue_id, time_ms = header.topic, header.queue_id, header.timestamp
        upper = header.boundary_type.upper() == "UPPER"
        self._reads.serve(
            context,
            lambda: self._store.offset_by_timestamp(topic, queue_id, time_ms, upper=upper),
            _offset,
            SEARCH_ATTEMPTS,
        )

    def earliest_store_time(self, context: RequestContext) -> None:
        """Handle GET_EARLIEST_MSG_STORETIME: return the store timestamp of a queue's oldest message, in ms.

        It is -1 if the queue is empty.
        """
        self._reads.when_caught_up(context, self._earliest_store_time)

    def _earliest_store_time(self, context: RequestContext) -> None:
        header: TopicQueueHeader = context.header
        self._reads.serve(
            context,
            lambda: self._earliest_ms(header.topic, header.queue_id),
            lambda timestamp: RemotingCommand.response(ext=TimestampResponse(timestamp).to_ext()),
        )

    def _earliest_ms(self, topic: str, queue_id: int) -> int:
        oldest = self._store.min_offset(topic, queue_id)
        found = self._store.get_message(topic, queue_id, oldest, 1, 1)
        return _store_timestamp(found.slices[0]) if found.slices else NO_TIMESTAMP

    def view_message(self, context: RequestContext) -> None:
        """Handle VIEW_MESSAGE_BY_ID: return the record at a CommitLog offset.

        Raises Refused if there is no valid record at the offset.
        """
        header: ViewMessageHeader = context.header

        def read() -> memoryview:
            return stored_record(self._store, header.offset)

        def respond(record: memoryview) -> RemotingCommand:
            self._may_read(context, decode_record(record, check_crc=False).topic)
            return RemotingCommand.response(parts=[record])

        self._reads.serve(context, read, respond)

    def query_message(self, context: RequestContext) -> None:
        """Handle QUERY_MESSAGE: return the messages of a topic with a key, stored within a period of time.

        A query by UNIQ_KEY returns one message.
        """
        context.spawn(self._query_message(context.header))

    async def _query_message(self, header: QueryMessageHeader) -> RemotingCommand:
        await self._reads.caught_up()
        store = self._store
        if header.is_unique_key:
            query = store.key_query(header.topic, header.key)
        else:
            query = store.key_query(
                header.topic,
                header.key,
                max(min(header.max_num, QUERY_MESSAGES_MAX), 1),
                header.begin_timestamp,
                header.end_timestamp,
            )
        records = await self._reads.search(query)
        if header.is_unique_key:
            records = records[:1]
        newest = max(map(_store_timestamp, records), default=0)
        ext = QueryMessageResponse(newest, self._store.positions.dispatched).to_ext()
        if not records:
            remark = (
                f"no message of topic {header.topic!r} has the key {header.key!r} in the requested period"
            )
            return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, remark, ext)
        return RemotingCommand.response(ext=ext, parts=records)

    def describe_splits(self, context: RequestContext) -> None:
        """Handle DESCRIBE_SPLITS: return a topic's readable offset ranges and its files' location."""
        context.spawn(self._describe_splits(context.header))

    async def _describe_splits(self, header: TopicHeader) -> RemotingCommand:
        return RemotingCommand.response(body=(await self.splits(header.topic)).encode())

    async def splits(self, topic_name: str) -> SplitsBody:
        """Return the readable offset range of each queue of a topic, and the location of the store's files.

        Raises:
            Refused: the topic does not exist or is not readable.
        """
        topic = self._topics.for_pulling(topic_name)
        await self._reads.caught_up()
        store = self._store
        queues = await self._reads.all_of(
            partial(self._range, topic_name, queue_id) for queue_id in range(topic.read_queue_nums)
        )
        return SplitsBody(
            self._settings.broker_name,
            self._identity.address,
            self._identity.node_ip,
            machine_id(),
            str(self._settings.store_root.resolve()),
            store.identity.store_id,
            self._settings.store.commit_log_file_bytes,
            self._settings.store.consume_queue_file_bytes // UNIT_BYTES,
            store.positions.confirmed,
            queues,
            self._past.current,
        )

    def _range(self, topic: str, queue_id: int) -> QueueRange:
        store = self._store
        return QueueRange(queue_id, store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))


def _offset(offset: int) -> RemotingCommand:
    return RemotingCommand.response(ext=OffsetResponse(offset).to_ext())


def _store_timestamp(record: memoryview) -> int:
    return decode_record(record, check_crc=False).store_timestamp
