"""Brokers, topics' statistics and single messages, async face."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import orjson

from actors.remoting.admin_headers import BrokerStatsHeader, ConsumeQueueHeader
from actors.remoting.bodies.broker import BrokerStatsData, ConsumeQueueUnits
from actors.remoting.bodies.progress import TopicStatsTable
from actors.remoting.bodies.routes import decode_kv_table, decode_topic_list
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import BrokerNameHeader, CreateTopicHeader, TopicHeader
from actors.remoting.hot_headers import PullMessageHeader
from actors.remoting.properties_text import encode_properties_text
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import BrokerUnreachable, ConfigInvalid, TopicNotFound, refused
from store.message.compression import plain_body
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.record import decode_records
from store.metadata import TopicConfig

# The group that RocketMQ's own tools read as (MixAll.TOOLS_CONSUMER_GROUP); brokers know it from the start.
TOOLS_GROUP = "TOOLS_CONSUMER"
_SUBSCRIPTION = 0x4
Cleaning = Literal["expired-files", "expired-queues", "unused-topics"]
_CLEANINGS: Mapping[str, RequestCode] = {
    "expired-files": RequestCode.DELETE_EXPIRED_COMMITLOG,
    "expired-queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "unused-topics": RequestCode.CLEAN_UNUSED_TOPIC,
}
_NOTHING_THERE = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


class BrokerAdmin(AdminCore):
    """Calls about brokers, topics' statistics and single messages."""

    async def brokers(self) -> dict[str, str]:
        """Return the masters' addresses by broker name."""
        return await self._masters(None)

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """Return a broker's runtime figures, by RocketMQ's names. Raises ConfigInvalid for an unknown one."""
        answer = await self._call(await self._master(broker), RequestCode.GET_BROKER_RUNTIME_INFO)
        return decode_kv_table(answer.body)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, by RocketMQ's names. Raises NotSupported, ConfigInvalid."""
        answer = await self._call(await self._master(broker), RequestCode.GET_BROKER_CONFIG)
        lines = bytes(answer.body).decode().splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    async def change_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker, by RocketMQ's names; all of them or none.

        They survive restarts until `raymq up` sets others. Raises ConfigInvalid; BrokerRefused for a setting
        that does not exist or needs a restart, and for an impossible value.
        """
        for key, value in settings.items():
            if not key or set(f"{key}{value}") & set("\r\n\\") or set(key) & set("=:# !\t"):
                raise ConfigInvalid(f"{key!r} = {value!r} cannot stand in a line of key=value")
        body = encode_properties_text(settings).encode()
        await self._call(await self._master(broker), RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def clean_broker(self, broker: str, what: Cleaning) -> None:
        """Let a broker clean its store: `expired-files` starts to delete expired log files, `expired-queues`
        removes queues whose messages are all deleted (they begin at offset 0 again), `unused-topics` removes
        the queues of topics that do not exist. Raises ConfigInvalid, BrokerRefused.
        """
        if what not in _CLEANINGS:
            raise ConfigInvalid(f"{what!r} cannot be cleaned: choose from {', '.join(_CLEANINGS)}")
        await self._call(await self._master(broker), _CLEANINGS[what])

    async def broker_stats(self, broker: str, table: str, key: str) -> BrokerStatsData | None:
        """Return a counter over a minute, an hour and a day, such as TOPIC_PUT_NUMS of a topic.

        Returns None if it has not counted.
        """
        command = RemotingCommand(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(table, key).to_ext())
        address = await self._master(broker)
        answer = await self._opened().ask(address, command)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer.code, answer.remark, address)
        return BrokerStatsData.decode(answer.body)

    async def set_writable(self, broker: str, *, writable: bool) -> int:
        """Allow or forbid writes to a broker in all nameservers; return the number of its topics."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        await self._master(broker)
        count = 0
        for address in self._config.addresses():
            answer = await self._call(address, code, BrokerNameHeader(broker))
            count = int(answer.ext.get("addTopicCount") or answer.ext.get("wipeTopicCount") or 0)
        return count

    # ---- topics --------------------------------------------------------------------------------------------

    async def system_topics(self) -> list[str]:
        """Return the topics that brokers created for themselves."""
        found: set[str] = set()
        for address in (await self._masters(None)).values():
            answer = await self._call(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            found.update(decode_topic_list(answer.body))
        return sorted(found)

    async def broker_topics(self, broker: str) -> dict[str, TopicConfig]:
        """Return all topics of one broker and their settings. Raises ConfigInvalid."""
        answer = await self._call(await self._master(broker), RequestCode.GET_ALL_TOPIC_CONFIG)
        table = orjson.loads(answer.body)["topicConfigTable"]
        return {name: TopicConfig.from_json(table[name]) for name in sorted(table)}

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Return the offsets of each queue of `topic`, and its rate of messages. Raises TopicNotFound."""
        route = await self.route(topic)
        stats = TopicStatsTable()
        for address in route.masters().values():
            answer = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic))
            of_broker = TopicStatsTable.decode(answer.body)
            stats.offsets |= of_broker.offsets
            stats.put_tps += of_broker.put_tps
        stats.offsets = dict(sorted(stats.offsets.items()))
        return stats

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return the settings of `topic` by broker. Raises TopicNotFound."""
        route = await self.route(topic)
        found: dict[str, TopicConfig] = {}
        for name, address in route.masters().items():
            answer = await self._call(address, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic))
            found[name] = TopicConfig.from_json(orjson.loads(answer.body))
        return found

    async def set_topic_perm(self, topic: str, perm: int, brokers: Iterable[str] | None = None) -> list[str]:
        """Set whether `topic` can be written (2) and read (4) on `brokers`, by default all that have it.

        Returns the brokers. Raises TopicNotFound.
        """
        found = await self.topic_configs(topic)
        wanted = sorted(found) if brokers is None else list(brokers)
        masters = await self._masters(wanted)
        for name in wanted:
            config = found.get(name)
            if config is None:
                raise TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, f"broker {name!r} has no topic {topic!r}")
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

    async def messages_at(self, queue: MessageQueue, offset: int, count: int = 1) -> list[MessageExt]:
        """Return up to `count` messages of a queue from `offset` on. Raises TopicNotFound, BrokerRefused."""
        await self.route(queue.topic)
        address = await self._master_of_queue(queue)
        found: list[MessageExt] = []
        while len(found) < count:
            header = PullMessageHeader(
                TOOLS_GROUP,
                queue.topic,
                queue.queue_id,
                offset + len(found),
                max_msg_nums=min(count - len(found), 32),
                sys_flag=_SUBSCRIPTION,
                subscription="*",
            )
            answer = await self._opened().ask(
                address, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
            )
            if answer.code in _NOTHING_THERE:
                break
            if answer.code != ResponseCode.SUCCESS:
                raise refused(answer.code, answer.remark, address)
            messages = decode_records(answer.body, broker_name=queue.broker_name)
            if not messages:
                raise BrokerUnreachable(f"{address} answered a pull of {queue} with no message")
            found += messages
        for message in found:
            message.body = plain_body(message)
        return found

    async def units(self, queue: MessageQueue, offset: int, count: int = 32) -> ConsumeQueueUnits:
        """Return units of a consume queue from `offset` on. Raises BrokerRefused if there are none."""
        header = ConsumeQueueHeader(queue.topic, queue.queue_id, offset, count)
        await self.route(queue.topic)
        answer = await self._call(await self._master_of_queue(queue), RequestCode.QUERY_CONSUME_QUEUE, header)
        return ConsumeQueueUnits.decode(answer.body)
