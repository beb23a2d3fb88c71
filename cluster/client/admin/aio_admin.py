"""Topics, routes, groups and offsets, async face."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from actors.remoting.bodies.groups import GroupMembers
from actors.remoting.bodies.routes import PERM_READ, PERM_WRITE, decode_topic_list
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import (
    ConsumerGroupHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    QueryMessageHeader,
    TopicHeader,
    ViewMessageHeader,
)
from actors.remoting.raymq_requests import SplitsBody
from cluster.client.admin.aio_broker_admin import BrokerAdmin
from cluster.client.admin.aio_group_admin import GroupAdmin
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientError,
    DeadlineExceeded,
    GroupNotFound,
    TopicNotFound,
    refused,
)
from cluster.client.group.offset_client import Commit, OffsetClient
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.topic_route import TopicRoute
from store.message.compression import plain_body
from store.message.message import MessageExt
from store.message.message_id import decode_message_id
from store.message.message_queue import MessageQueue
from store.message.record import decode_records

READ_WRITE = PERM_READ | PERM_WRITE
END_OF_TIME_MS = (1 << 63) - 1
AGREEMENT_MS = 1_000
"""How long to wait for nameservers that do not have a new topic yet although another one has."""
SPLITS_TIMEOUT_MS = 30_000
"""Of 20,000 queues whose oldest files were just deleted, a broker reads the first units from the disk."""


class Admin(GroupAdmin, BrokerAdmin):
    """Looks at a cluster, and changes its topics.

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
    ) -> TopicRoute:
        """Create `topic`, or change it, with `queues` queues on each of `brokers` (default: on all).

        Returns when the nameservers give the new route: keyed sends from then on see all queues.
        Raises BrokerRefused, DeadlineExceeded.
        """
        reads = queues if read_queues is None else read_queues
        header = CreateTopicHeader(topic, reads, queues, perm, order=order)
        addresses = await self._masters(brokers)
        for address in addresses.values():
            await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        wanted = {(name, reads, queues, perm) for name in addresses}

        def is_there(route: TopicRoute | None) -> bool:
            shares = () if route is None else route.shares
            return wanted <= {(s.broker_name, s.read_queues, s.write_queues, s.perm) for s in shares}

        return await self._awaited_route(topic, is_there)

    async def delete_topic(self, topic: str) -> None:
        """Delete `topic` with its messages and offsets, on all brokers and in the nameservers. Raises
        BrokerRefused.
        """
        header = DeleteTopicHeader(topic)
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        # A nameserver that is unreachable now starts without any topic anyway.
        await self._request_nameservers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    async def topics(self) -> list[str]:
        """Return all topics, including those of the system."""
        answers = await self._request_nameservers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted({topic for answer in answers for topic in decode_topic_list(answer.body)})

    async def splits(self, topic: str) -> list[SplitsBody]:
        """Return what each broker lets a bulk reader read of `topic`, and where its files are."""
        header = TopicHeader(topic)
        answers = [
            await self._call(address, RayMQRequestCode.DESCRIBE_SPLITS, header, timeout_ms=SPLITS_TIMEOUT_MS)
            for address in (await self.route(topic)).masters().values()
        ]
        return [SplitsBody.decode(answer.body) for answer in answers]

    # ---- offsets and groups --------------------------------------------------------------------------------

    async def beginning_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offset of the oldest message of each queue."""
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.beginning(queue) for queue in await self._queues(topic)}

    async def end_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.end(queue) for queue in await self._queues(topic)}

    async def offsets_at(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Return the offset of each queue's first message stored at `timestamp_ms` or later."""
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.at_time(queue, timestamp_ms) for queue in await self._queues(topic)}

    async def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the same as `offsets_at`, with a time for each queue."""
        offsets = OffsetClient(self._opened(), "")
        return {queue: await offsets.at_time(queue, time_ms) for queue, time_ms in times_ms.items()}

    async def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset of `group` in each queue, None where it has committed nothing."""
        offsets = OffsetClient(self._opened(), group)
        return {queue: await offsets.committed(queue) for queue in await self._queues(topic)}

    async def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the committed offsets of `group`; running members do not notice. Raises BrokerRefused."""
        for queue in offsets:
            await self._opened().routes.get(queue.topic)
        commits = {queue: Commit(offset, 0) for queue, offset in offsets.items()}
        outcome = await OffsetClient(self._opened(), group).commit(commits)
        outcome.raise_unconfirmed()

    async def group_members(self, group: str) -> list[str]:
        """Return the client ids of a consumer group's members; empty if none is online."""
        failure: ClientError = BrokerUnreachable("the cluster has no broker")
        header = ConsumerGroupHeader(group)
        for address in (await self._masters(None)).values():
            try:
                answer = await self._call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            except GroupNotFound:
                return []
            except ClientError as error:
                failure = error
                continue
            return list(GroupMembers.decode(answer.body).members)
        if isinstance(failure, BrokerRefused) and failure.code == ResponseCode.SYSTEM_ERROR:
            return []  # RocketMQ's response for a group without members
        raise failure

    # ---- messages ------------------------------------------------------------------------------------------

    async def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """Return the message with the broker's own id (`SendResult.offset_msg_id`). Raises BrokerRefused."""
        host, offset = decode_message_id(offset_msg_id)
        address = f"[{host.ip}]:{host.port}" if ":" in host.ip else f"{host.ip}:{host.port}"
        answer = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        return _messages(answer)[0]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        unique: bool = False,
    ) -> list[MessageExt]:
        """Return the messages of `topic` with `key` (`unique`: with that UNIQ_KEY), oldest first.

        They were stored from `begin_ms` to `end_ms`. At most `max_messages` from each broker.
        """
        header = QueryMessageHeader(topic, key, max_messages, begin_ms, end_ms, unique)
        found: list[MessageExt] = []
        for name, address in (await self.route(topic)).masters().items():
            answer = await self._opened().ask(
                address, RemotingCommand(RequestCode.QUERY_MESSAGE, header.to_ext())
            )
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise refused(answer.code, answer.remark, address)
            found += _messages(answer, name)
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
                # One that lags behind may do so for a register interval: the others are enough.
                if waited_ms > AGREEMENT_MS and is_there(route := await self.route(topic)):
                    return route
            except TopicNotFound:
                pass
            if waited_ms > self._config.request_timeout_ms:
                raise DeadlineExceeded(
                    f"topic {topic!r} was created, but its route has not reached the nameservers within "
                    f"{self._config.request_timeout_ms} ms"
                )
            await asyncio.sleep(backoff.next_ms() / 1000)


def _messages(answer: RemotingCommand, broker_name: str = "") -> list[MessageExt]:
    messages = decode_records(answer.body, broker_name=broker_name)
    for message in messages:
        message.body = plain_body(message)
    return messages
