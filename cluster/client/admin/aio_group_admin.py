"""Async admin requests about consumer groups: settings, progress, members and offset resets."""

from __future__ import annotations

import orjson

from actors.wire.admin_headers import (
    BrokerConsumeStatsHeader,
    ClientHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
)
from actors.wire.bodies.connected import (
    ClientConnection,
    ConsumerConnection,
    ProducerInfo,
    decode_producer_table,
    decode_producers,
)
from actors.wire.bodies.progress import (
    ConsumeStats,
    QueueTimeSpan,
    decode_consume_stats_list,
    decode_group_list,
    decode_time_spans,
)
from actors.wire.bodies.routes import decode_topic_list
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import ConsumerGroupHeader, TopicHeader
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import BrokerRefused, GroupNotFound
from store.message.group_config import SubscriptionGroupConfig
from store.message.json_text import parse_rocketmq_json
from store.message.message_queue import MessageQueue


class GroupAdmin(AdminCore):
    """Requests about consumer groups and producers."""

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all consumer groups of all brokers, by group."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for address in (await self._masters(None)).values():
            response = await self._call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            table = orjson.loads(response.body)["subscriptionGroupTable"]
            for name, content in table.items():
                found.setdefault(name, SubscriptionGroupConfig.from_json(content))
        return dict(sorted(found.items()))

    async def put_group(self, group: SubscriptionGroupConfig) -> None:
        """Create a consumer group on all brokers, or change its settings. Raises BrokerRefused."""
        body = orjson.dumps(group.to_json())
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a consumer group on all brokers, and its committed offsets unless `offsets` is False."""
        header = DeleteGroupHeader(group, clean_offset=offsets)
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def group_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return the progress of `group` in each queue of `topic` (None: of all topics it has consumed)."""
        stats = ConsumeStats()
        header = ConsumeStatsHeader(group, topic)
        for address in (await self._masters(None)).values():
            response = await self._call(address, RequestCode.GET_CONSUME_STATS, header)
            of_broker = ConsumeStats.decode(response.body)
            stats.offsets |= of_broker.offsets
            stats.consume_tps += of_broker.consume_tps
        stats.offsets = dict(sorted(stats.offsets.items()))
        return stats

    async def all_group_stats(self) -> dict[str, ConsumeStats]:
        """Return the progress of each group in all topics that it has consumed, by group."""
        found: dict[str, ConsumeStats] = {}
        for address in (await self._masters(None)).values():
            response = await self._call(
                address, RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader()
            )
            for group, rows in decode_consume_stats_list(response.body).items():
                merged = found.setdefault(group, ConsumeStats())
                for stats in rows:
                    merged.offsets |= stats.offsets
                    merged.consume_tps += stats.consume_tps
        return dict(sorted(found.items()))

    async def group_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Return RocketMQ's QueueTimeSpan of each queue of `topic`, sorted by queue.

        A span has the store timestamps of the oldest message, of the newest, and of the one that `group`
        consumes next.
        """
        route = await self.route(topic)
        header = GroupTopicHeader(group, topic)
        spans: list[QueueTimeSpan] = []
        for address in route.all_masters().values():
            response = await self._call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            spans += decode_time_spans(response.body)
        return sorted(spans, key=lambda span: span.queue)

    async def queue_generations(self, group: str) -> dict[MessageQueue, int]:
        """Return the generation under which each queue was last assigned to a member of `group`.

        Raises NotSupported for brokers of RocketMQ.
        """
        found: dict[MessageQueue, int] = {}
        for broker, address in (await self._masters(None)).items():
            response = await self._call(address, RayMQRequestCode.GET_ALL_GENERATIONS)
            for key, queues in parse_rocketmq_json(response.body)["generations"].items():
                topic, _, owner = key.partition("@")
                if owner == group:
                    found |= {
                        MessageQueue(topic, broker, int(number)): each for number, each in queues.items()
                    }
        return found

    async def group_connection(self, group: str) -> ConsumerConnection | None:
        """Return the online members of `group` and their subscriptions, or None if no member is online."""
        merged: ConsumerConnection | None = None
        for address in (await self._masters(None)).values():
            try:
                response = await self._call(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)
                )
            except GroupNotFound:
                continue
            of_broker = ConsumerConnection.decode(response.body)
            if merged is None:
                merged = of_broker
                continue
            known = {connection.client_id for connection in merged.connections}
            merged.connections += [each for each in of_broker.connections if each.client_id not in known]
            merged.subscriptions |= of_broker.subscriptions
        if merged is not None:
            merged.connections.sort(key=lambda connection: connection.client_id)
        return merged

    async def producers(self, group: str) -> list[ClientConnection]:
        """Return the connected producers of a producer group, sorted by client id."""
        found: dict[str, ClientConnection] = {}
        for address in (await self._masters(None)).values():
            try:
                response = await self._call(
                    address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader(group)
                )
            except BrokerRefused as error:
                if error.code != ResponseCode.SYSTEM_ERROR:  # RocketMQ's response for a group without members
                    raise
                continue
            found |= {connection.client_id: connection for connection in decode_producers(response.body)}
        return [found[client_id] for client_id in sorted(found)]

    async def all_producers(self) -> dict[str, list[ProducerInfo]]:
        """Return the connected producers of all producer groups, by group."""
        found: dict[str, dict[str, ProducerInfo]] = {}
        for address in (await self._masters(None)).values():
            response = await self._call(address, RequestCode.GET_ALL_PRODUCER_INFO)
            for group, producers in decode_producer_table(response.body).items():
                found.setdefault(group, {}).update({each.client_id: each for each in producers})
        return {group: [of[client] for client in sorted(of)] for group, of in sorted(found.items())}

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the consumer groups that have consumed `topic` or subscribe to it. Raises TopicNotFound.

        RocketMQ 5.3 lists the groups that have committed offsets there, and the name of the topic once it has
        subscribers.
        """
        route = await self.route(topic)
        found: set[str] = set()
        for address in route.all_masters().values():
            response = await self._call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic))
            found.update(decode_group_list(response.body))
        if topic in found and topic not in await self.groups():
            found.remove(topic)
        return sorted(found)

    async def topics_of_group(self, group: str) -> list[str]:
        """Return the topics that `group` has consumed, sorted."""
        found: set[str] = set()
        for address in (await self._masters(None)).values():
            response = await self._call(address, RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader(group))
            found.update(decode_topic_list(response.body))
        return sorted(found)

    async def running_info(self, group: str, client_id: str, *, stack: bool = False) -> bytes:
        """Return the running info of one group member as JSON bytes (RocketMQ's ConsumerRunningInfo).

        With `stack`, it contains the stacks of the member's threads (`jstack`).

        Raises GroupNotFound if the member is not connected, and BrokerRefused if it does not respond.
        """
        header = ClientHeader(group, client_id, jstack_enable=stack)
        for address in (await self._masters(None)).values():
            try:
                response = await self._call(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(group)
                )
            except GroupNotFound:
                continue
            connected = {each.client_id for each in ConsumerConnection.decode(response.body).connections}
            if client_id in connected:
                response = await self._call(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
                return bytes(response.body)
        raise GroupNotFound(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"no member {client_id!r} of group {group!r} is connected: see group_members({group!r})",
        )
