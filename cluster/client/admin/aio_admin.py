"""The admin client with an async API: topics, routes, offsets and messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from actors.wire.bodies.groups import GroupMembers
from actors.wire.bodies.routes import PERM_READ, PERM_WRITE, decode_topic_list
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    ConsumerGroupHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    QueryMessageHeader,
    TopicHeader,
    ViewMessageHeader,
)
from actors.wire.raymq_requests import SplitsBody
from cluster.client.admin.aio_access_admin import AccessAdmin
from cluster.client.admin.aio_dlq_admin import DeadLetterAdmin
from cluster.client.admin.aio_lite_admin import LiteAdmin
from cluster.client.admin.aio_offset_admin import OffsetAdmin
from cluster.client.admin.aio_raft_admin import RaftAdmin
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    ConfigInvalid,
    DeadlineExceeded,
    GroupNotFound,
    TopicNotFound,
    refused,
)
from cluster.client.group.offset_client import Commit, OffsetClient
from cluster.client.trace.trace_records import TRACE_TOPIC, TraceRecord, decode_trace
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.topic_route import REPLICAS, Replica, TopicRoute
from store.common.logs import get_logger
from store.message.fetched import decode_all
from store.message.message import MessageExt
from store.message.message_id import decode_message_id
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

READ_WRITE = PERM_READ | PERM_WRITE
END_OF_TIME_MS = (1 << 63) - 1
AGREEMENT_MS = 1_000
"""Time to wait until all nameservers know a new topic. After this time one nameserver is enough."""
SPLITS_TIMEOUT_MS = 30_000
"""Timeout of DESCRIBE_SPLITS. For a topic of 20,000 queues whose oldest files were just deleted, the broker
reads the first units of each queue from disk, which takes longer than the default request timeout.
"""


class Admin(OffsetAdmin, DeadLetterAdmin, AccessAdmin, RaftAdmin, LiteAdmin):
    """Admin client: inspects and changes topics, consumer groups, offsets and brokers of a cluster.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)
        print(await admin.end_offsets("orders"))
    """

    # ---- topics --------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        read_queues: int | None = None,
        perm: int = READ_WRITE,
        order: bool = False,
        brokers: Iterable[str] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicRoute:
        """Create `topic`, or change it, and return its route.

        The call returns after the nameservers have the new route, so later sends with a key use all queues.

        Args:
            topic: Name of the topic.
            queues: Number of queues on each broker.
            read_queues: Number of readable queues on each broker; equal to `queues` by default.
            perm: Permission bits: 4 read, 2 write.
            order: True for RocketMQ's ordered topics.
            brokers: Names of the brokers; all brokers by default.
            attributes: Attributes to set, such as `{"message.type": "PRIORITY"}`.

        Raises:
            BrokerRefused: A broker rejected the topic.
            DeadlineExceeded: The nameservers did not have the new route within `request_timeout_ms`.
        """
        reads = queues if read_queues is None else read_queues
        changes = ",".join(f"+{name}={value}" for name, value in (attributes or {}).items())
        header = CreateTopicHeader(topic, reads, queues, perm, order=order, attributes=changes or None)
        addresses = await self._masters(brokers)
        for address in addresses.values():
            await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        wanted = {(name, reads, queues, perm) for name in addresses}

        def is_there(route: TopicRoute | None) -> bool:
            shares = () if route is None else route.shares
            return wanted <= {(s.broker_name, s.read_queues, s.write_queues, s.perm) for s in shares}

        return await self._awaited_route(topic, is_there)

    async def delete_topic(self, topic: str) -> None:
        """Delete `topic`, its messages and its offsets on all brokers. Raises BrokerRefused."""
        header = DeleteTopicHeader(topic)
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        # An unreachable nameserver needs no request: nameservers start without topics.
        await self._request_nameservers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def topics(self) -> list[str]:
        """Return the names of all topics, including system topics, sorted."""
        responses = await self._request_nameservers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted({topic for response in responses for topic in decode_topic_list(response.body)})

    async def splits(self, topic: str, *, replica: Replica = "master") -> list[SplitsBody]:
        """Return the readable offset ranges of `topic` and the location of its files, one item per broker.

        Bulk readers use these ranges to split the queues.

        Args:
            topic: Name of the topic.
            replica: "any": of a broker whose master is not registered, return what its slave with the lowest
                id has confirmed, which may lack the newest messages.

        Raises:
            ConfigInvalid: `replica` is neither "master" nor "any".
            BrokerUnreachable: A broker does not respond, or has no master and `replica` is "master": its
                messages would be missing without notice.
        """
        if replica not in REPLICAS:
            raise ConfigInvalid(f"replica is {replica!r}: it must be 'master' or 'any'")
        header, route = TopicHeader(topic), await self.route(topic)
        addresses = route.all_masters() if replica == "master" else route.all_replicas()
        for name, address in addresses.items():
            if address != route.master(name):
                _log.warning("slave_read", topic=topic, broker=name, address=address)
        responses = [
            await self._call(address, RayMQRequestCode.DESCRIBE_SPLITS, header, timeout_ms=SPLITS_TIMEOUT_MS)
            for address in addresses.values()
        ]
        return [SplitsBody.decode(response.body) for response in responses]

    # ---- offsets and groups --------------------------------------------------------------------------------

    async def beginning_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue of `topic`."""
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.beginning(queue) for queue in await self._queues(topic)}

    async def end_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue of `topic` will get."""
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.end(queue) for queue in await self._queues(topic)}

    async def offsets_at(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Return, for each queue, the offset of the first message stored at or after `timestamp_ms`.

        `timestamp_ms` is in milliseconds since the epoch.
        """
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.at_time(queue, timestamp_ms) for queue in await self._queues(topic)}

    async def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return, for each queue, the offset of the first message stored at or after its time.

        `times_ms` maps queues to times in milliseconds since the epoch.
        """
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.at_time(queue, time_ms) for queue, time_ms in times_ms.items()}

    async def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset of `group` in each queue of `topic`, or None for queues without one."""
        offsets = OffsetClient(self._opened(), group)
        return {queue: await offsets.committed(queue) for queue in await self._queues(topic)}

    async def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the committed offsets of `group`. Running members are not notified. Raises BrokerRefused."""
        for queue in offsets:
            await self._opened().routes.get(queue.topic)
        commits = {queue: Commit(offset, 0) for queue, offset in offsets.items()}
        outcome = await OffsetClient(self._opened(), group).commit(commits)
        outcome.raise_unconfirmed()

    async def group_members(self, group: str) -> list[str]:
        """Return the client ids of the online members of a consumer group. The list may be empty."""
        failure: ClientError = BrokerUnreachable(
            "the nameservers list no broker: start a broker, or check the nameserver addresses"
        )
        header = ConsumerGroupHeader(group)
        for address in (await self._masters(None)).values():
            try:
                response = await self._call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            except GroupNotFound:
                return []
            except ClientError as error:
                failure = error
                continue
            return list(GroupMembers.decode(response.body).members)
        if isinstance(failure, BrokerRefused) and failure.code == ResponseCode.SYSTEM_ERROR:
            return []  # RocketMQ's response for a group without members
        raise failure

    # ---- messages ------------------------------------------------------------------------------------------

    async def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """Return the message whose id is `offset_msg_id` (see `SendResult.offset_msg_id`).

        The id contains the address of the broker and the CommitLog offset. Raises BrokerRefused.
        """
        host, offset = decode_message_id(offset_msg_id)
        address = str(host)
        response = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        return _messages(response)[0]

    async def message_trace(self, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """Return the trace records of the message with this id (UNIQ_KEY), oldest first.

        Producers and consumers of any language write them, if tracing is enabled in them. Raises
        TopicNotFound if the trace topic does not exist.
        """
        found = await self.messages_by_key(trace_topic, msg_id, max_messages=64)
        records = {
            record: None
            for message in found
            for record in decode_trace(message.body)
            if record.msg_id == msg_id
        }
        return sorted(records, key=lambda record: record.time_ms)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        unique: bool = False,
        skip_unreachable: bool = False,
    ) -> list[MessageExt]:
        """Return the messages of `topic` that have `key`, oldest first.

        Args:
            topic: Name of the topic.
            key: The message key to find.
            max_messages: Maximum number of messages from each broker.
            begin_ms: Earliest store timestamp, in ms since the epoch.
            end_ms: Latest store timestamp, in ms since the epoch.
            unique: Search for a UNIQ_KEY (the id that the producer assigned) instead of a user key.
            skip_unreachable: Leave out the messages of brokers that do not respond, instead of raising an
                error.
        """
        header = QueryMessageHeader(topic, key, max_messages, begin_ms, end_ms, unique)
        found: list[MessageExt] = []
        for name, address in (await self.route(topic)).all_masters().items():
            try:
                response = await self._opened().request(
                    address, RemotingCommand(RequestCode.QUERY_MESSAGE, header.to_ext())
                )
            except (BrokerUnreachable, DeadlineExceeded):
                if not skip_unreachable:
                    raise
                continue
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            if response.code != ResponseCode.SUCCESS:
                raise refused(response.code, response.remark, address)
            found += _messages(response, name)
        return sorted(found, key=lambda message: message.store_timestamp)

    # ---- internal ------------------------------------------------------------------------------------------

    async def _awaited_route(self, topic: str, is_there: Callable[[TopicRoute | None], bool]) -> TopicRoute:
        begin_s = time.monotonic()
        backoff = Backoff(first_ms=5, last_ms=200)
        while True:
            waited_ms = (time.monotonic() - begin_s) * 1000
            try:
                routes = await self._opened().routes.get_from_all(topic)
                if all(map(is_there, routes)):
                    return await self.route(topic)
                # A nameserver may lag by one register interval. After AGREEMENT_MS the others are enough.
                if waited_ms > AGREEMENT_MS and is_there(route := await self.route(topic)):
                    return route
            except TopicNotFound:
                pass
            if waited_ms > self._config.request_timeout_ms:
                raise DeadlineExceeded(
                    f"topic {topic!r} was created, but its route has not reached the nameservers within "
                    f"request_timeout_ms {self._config.request_timeout_ms}: "
                    "check that the brokers can connect to the nameservers"
                )
            await asyncio.sleep(backoff.next_ms() / 1000)


def _messages(response: RemotingCommand, broker_name: str = "") -> list[MessageExt]:
    return decode_all(response.body, broker_name)
