"""Async admin requests about brokers, topic statistics and single messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import orjson

from actors.wire.admin_headers import (
    BrokerConsumeStatsHeader,
    BrokerStatsHeader,
    ConsumeQueueHeader,
    DrainBrokerHeader,
    ReplaceQueueFileHeader,
    RestartBrokerHeader,
)
from actors.wire.bodies.broker import BrokerStatsData, ConsumeQueueUnits
from actors.wire.bodies.progress import TopicCounters, TopicCountersTable, TopicStatsTable
from actors.wire.bodies.routes import decode_kv_table, decode_topic_list
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    BrokerNameHeader,
    CreateTopicHeader,
    TopicHeader,
    TransferLeadershipHeader,
)
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.properties_text import encode_properties_text
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import BrokerUnreachable, ConfigInvalid, TopicNotFound, refused
from store.message.fetched import decode_all
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.topic_config import TopicConfig

# The consumer group of RocketMQ's own tools (MixAll.TOOLS_CONSUMER_GROUP). It exists on every broker.
TOOLS_GROUP = "TOOLS_CONSUMER"
_SUBSCRIPTION = 0x4  # PullSysFlag: the request contains a subscription
Cleaning = Literal["expired-files", "expired-queues", "unused-topics"]
_CLEANINGS: Mapping[str, RequestCode] = {
    "expired-files": RequestCode.DELETE_EXPIRED_COMMITLOG,
    "expired-queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "unused-topics": RequestCode.CLEAN_UNUSED_TOPIC,
}
_NO_MESSAGE_CODES = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


class BrokerAdmin(AdminCore):
    """Requests about brokers, topic statistics and single messages."""

    async def brokers(self) -> dict[str, str]:
        """Return the master address of each broker, by broker name."""
        return await self._masters(None)

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """Return runtime statistics of `broker` under RocketMQ's names.

        Raises ConfigInvalid if the broker is unknown.
        """
        response = await self._call(await self._master(broker), RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_kv_table(response.body)

    async def check_sees_everything(self, broker: str) -> None:
        """Raise PermissionDenied unless the user may see a broker's figures and all its topics and groups.

        Raises ConfigInvalid if the broker is unknown.
        """
        await self.broker_runtime(broker)
        header = BrokerConsumeStatsHeader(is_order=True)  # the shortest of the responses that need the right
        await self._call(await self._master(broker), RequestCode.GET_BROKER_CONSUME_STATS, header)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return the settings of `broker` under RocketMQ's names. Raises NotSupported, ConfigInvalid."""
        response = await self._call(await self._master(broker), RequestCode.GET_BROKER_CONFIG)
        lines = bytes(response.body).decode().splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    async def change_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker. Either all of `settings` are changed or none.

        The keys are RocketMQ's names. The changes survive restarts until `raymq up` applies other settings.

        Raises:
            ConfigInvalid: The broker is unknown, or a key or value contains a character that is not allowed.
            BrokerRefused: A setting does not exist or needs a restart, or a value is invalid.
        """
        for key, value in settings.items():
            if not key or set(f"{key}{value}") & set("\r\n\\") or set(key) & set("=:# !\t"):
                raise ConfigInvalid(
                    f"setting {key!r} = {value!r} contains a character that a key=value line cannot hold"
                )
        body = encode_properties_text(settings).encode()
        await self._call(await self._master(broker), RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def clean_broker(self, broker: str, what: Cleaning) -> None:
        """Make a broker clean its store.

        Args:
            broker: Name of the broker.
            what: `expired-files` starts the deletion of expired CommitLog files; `expired-queues` removes
                consume queues whose messages are all deleted (their offsets restart at 0); `unused-topics`
                removes the consume queues of topics that do not exist.

        Raises:
            ConfigInvalid: The broker or `what` is unknown.
            BrokerRefused: The broker returned an error.
        """
        if what not in _CLEANINGS:
            raise ConfigInvalid(f"{what!r} is not a kind of cleaning: use one of {', '.join(_CLEANINGS)}")
        await self._call(await self._master(broker), _CLEANINGS[what])

    async def restart_broker(self, broker: str, *, dry_run: bool = False) -> None:
        """Make a broker stop cleanly and start again with the same settings. Returns before it has stopped.

        With `dry_run`, only check that it can be restarted.

        Raises:
            ConfigInvalid: The broker is unknown.
            BrokerRefused: The broker is not an actor of Ray, so nothing would start it again.
            NotSupported: The broker is one of RocketMQ.
        """
        header = RestartBrokerHeader(dry_run)
        await self._call(await self._master(broker), RayMQRequestCode.RESTART_BROKER, header)

    async def transfer_leadership(self, broker: str, replica: int, *, dry_run: bool = False) -> str:
        """Make a replica the leader of its Raft group. Return the address of the leader.

        The former leader forwards requests to the new one until clients have refreshed their routes. With
        `dry_run`, only check that the replica could become the leader.

        Raises:
            ConfigInvalid: The broker is unknown, or has no leader at present.
            BrokerRefused: The broker is in no Raft group or has no such replica, or the replica did not take
                over; then the former leader leads on.
            NotSupported: The broker is one of RocketMQ.
        """
        header = TransferLeadershipHeader(replica, dry_run)
        master = await self._master(broker)
        response = await self._call(master, RayMQRequestCode.TRANSFER_LEADERSHIP, header)
        return response.ext["leader"]

    async def drain_broker(
        self, broker: str, step: Literal["look", "start", "cancel"] = "look"
    ) -> Mapping[str, Any]:
        """Start or cancel a drain of a broker, or look at it; return its progress.

        A drained broker is not in the routes of producers, and refuses sends after three seconds without one.
        It keeps running and serving consumers until it is stopped. The drain ends when it is cancelled or the
        broker restarts.

        Returns:
            state ("active", "draining", "closed": refuses sends), up_s (age of the broker), messages_in,
            producers (connected), and groups with group, members, unread (messages) and topics (unread
            messages of each): all online groups, and offline groups with unread messages.

        Raises:
            ConfigInvalid: The broker is unknown.
            BrokerRefused: `step` is not a step of a drain.
            NotSupported: The broker is one of RocketMQ.
        """
        response = await self._call(
            await self._master(broker), RayMQRequestCode.DRAIN_BROKER, DrainBrokerHeader(step)
        )
        progress: Mapping[str, Any] = orjson.loads(response.body)
        return progress

    async def replace_queue_file(self, broker: str, topic: str, queue_id: int, offset: int, crc: int) -> None:
        """Make a broker replace a full consume queue file by the file that a re-index job has written.

        Args:
            broker: Name of the broker.
            topic: The topic.
            queue_id: The queue on this broker.
            offset: The queue offset at which the file begins.
            crc: The CRC-32 of the new file.

        Raises:
            ConfigInvalid: The broker is unknown.
            BrokerRefused: The file does not exist, is not full, or its units do not match the log.
        """
        header = ReplaceQueueFileHeader(topic, queue_id, offset, crc)
        await self._call(await self._master(broker), RayMQRequestCode.REPLACE_QUEUE_FILE, header)

    async def broker_stats(self, broker: str, table: str, key: str) -> BrokerStatsData | None:
        """Return a broker statistic over the last minute, hour and day, or None if it has no data.

        Args:
            broker: Name of the broker.
            table: Name of the statistic, such as `TOPIC_PUT_NUMS`.
            key: Key within the statistic, such as the topic.
        """
        command = RemotingCommand(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(table, key).to_ext())
        address = await self._master(broker)
        response = await self._opened().request(address, command)
        if response.code == ResponseCode.SYSTEM_ERROR:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, response.remark, address)
        return BrokerStatsData.decode(response.body)

    async def timer_counts(self, broker: str) -> dict[str, int]:
        """Return the number of pending timer messages of a broker, by topic. Raises BrokerRefused."""
        response = await self._call(await self._master(broker), RequestCode.GET_TIMER_METRICS)
        table = orjson.loads(response.body).get("timingCount", {})
        return {topic: int(entry.get("count", 0)) for topic, entry in sorted(table.items())}

    async def set_writable(self, broker: str, *, writable: bool) -> int:
        """Allow or forbid writes to `broker` in all nameservers; return the number of topics changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        await self._master(broker)
        count = 0
        for address in self._config.addresses():
            response = await self._call(address, code, BrokerNameHeader(broker))
            count = int(response.ext.get("addTopicCount") or response.ext.get("wipeTopicCount") or 0)
        return count

    # ---- topics --------------------------------------------------------------------------------------------

    async def system_topics(self) -> list[str]:
        """Return the names of the system topics of all brokers, sorted."""
        found: set[str] = set()
        for address in (await self._masters(None)).values():
            response = await self._call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            found.update(decode_topic_list(response.body))
        return sorted(found)

    async def broker_topics(self, broker: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics of `broker`, by topic. Raises ConfigInvalid if it is unknown."""
        response = await self._call(await self._master(broker), RequestCode.GET_ALL_TOPIC_CONFIG)
        table = orjson.loads(response.body)["topicConfigTable"]
        return {name: TopicConfig.from_json(table[name]) for name in sorted(table)}

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Return the offsets of each queue of `topic`, and its send rate. Raises TopicNotFound."""
        route = await self.route(topic)
        stats = TopicStatsTable()
        for address in route.all_masters().values():
            response = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic))
            of_broker = TopicStatsTable.decode(response.body)
            stats.offsets |= of_broker.offsets
            stats.put_tps += of_broker.put_tps
        stats.offsets = dict(sorted(stats.offsets.items()))
        return stats

    async def topic_counters(self, broker: str) -> dict[str, TopicCounters]:
        """Return stored messages and send rate of each topic of `broker`, by topic.

        Raises NotSupported, ConfigInvalid if the broker is unknown.
        """
        response = await self._call(await self._master(broker), RayMQRequestCode.GET_TOPIC_COUNTERS)
        return dict(TopicCountersTable.decode(response.body).topics)

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return the settings of `topic` on each of its brokers, by broker name. Raises TopicNotFound."""
        route = await self.route(topic)
        found: dict[str, TopicConfig] = {}
        for name, address in route.all_masters().items():
            response = await self._call(address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic))
            found[name] = TopicConfig.from_json(orjson.loads(response.body))
        return found

    async def set_topic_perm(self, topic: str, perm: int, brokers: Iterable[str] | None = None) -> list[str]:
        """Set the permission of `topic` and return the names of the changed brokers.

        Args:
            topic: Name of the topic.
            perm: Permission bits: 4 read, 2 write.
            brokers: Names of the brokers; by default all brokers that have the topic.

        Raises:
            TopicNotFound: The topic does not exist, or not on one of `brokers`.
        """
        found = await self.topic_configs(topic)
        wanted = sorted(found) if brokers is None else list(brokers)
        masters = await self._masters(wanted)
        for name in wanted:
            config = found.get(name)
            if config is None:
                raise TopicNotFound(
                    ResponseCode.TOPIC_NOT_EXIST, f"broker {name!r} has no topic {topic!r}: create it there"
                )
            header = CreateTopicHeader(
                topic,
                config.read_queue_nums,
                config.write_queue_nums,
                perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
            )
            await self._call(masters[name], RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        return wanted

    # ---- messages ------------------------------------------------------------------------------------------

    async def messages_at(
        self, queue: MessageQueue, offset: int, count: int = 1, *, lite_topic: str | None = None
    ) -> list[MessageExt]:
        """Return up to `count` messages of `queue` from `offset` on. Raises TopicNotFound, BrokerRefused.

        With `lite_topic`, they are those of a lite topic of the broker, and the offset is one there.
        """
        await self.route(queue.topic)
        address = await self._master_of_queue(queue)
        found: list[MessageExt] = []
        while len(found) < count:
            header = PullMessageHeader(
                TOOLS_GROUP,
                queue.topic,
                queue.queue_id if lite_topic is None else 0,
                offset + len(found),
                max_msg_nums=min(count - len(found), 32),
                sys_flag=_SUBSCRIPTION,
                subscription="*",
                lite_topic=lite_topic,
            )
            response = await self._opened().request(
                address, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
            )
            if response.code in _NO_MESSAGE_CODES:
                break
            if response.code != ResponseCode.SUCCESS:
                raise refused(response.code, response.remark, address)
            messages = decode_all(response.body, queue.broker_name)
            if not messages:
                raise BrokerUnreachable(
                    f"broker {address} sent a successful pull response without messages: "
                    f"{queue}, offset {offset + len(found)}"
                )
            found += messages
        return found

    async def units(self, queue: MessageQueue, offset: int, count: int = 32) -> ConsumeQueueUnits:
        """Return up to `count` ConsumeQueue units of `queue`, starting at `offset`.

        Raises BrokerRefused if the queue has no unit at `offset`.
        """
        header = ConsumeQueueHeader(queue.topic, queue.queue_id, offset, count)
        await self.route(queue.topic)
        response = await self._call(
            await self._master_of_queue(queue), RequestCode.QUERY_CONSUME_QUEUE, header
        )
        return ConsumeQueueUnits.decode(response.body)
